"""RES303: gradient spikes against the run's own past."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.rule_values import rates, table

RULE = RULES["RES303"]


def norms(spikes: dict[int, float], steps: int = 60, spread: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(0)
    values = np.exp(spread * rng.standard_normal(steps))
    for step, times in spikes.items():
        values[step] = times
    return values


def look(values: np.ndarray, **more: Any) -> tuple[Hit, ...]:
    held = np.stack([0.6 * values, 0.8 * values], axis=1)
    return RULE.run({"gradient_norm": table("gradient_norm", held, ("a", "b")), **more})


def test_one_spike_is_information() -> None:
    (hit,) = look(norms({45: 20}))
    assert hit.severity == "info"
    assert (hit.first_step, hit.last_step) == (45, 45)
    assert hit.evidence["norm"] == pytest.approx(20)


def test_three_are_a_warning() -> None:
    (hit,) = look(norms({40: 20, 45: 30, 50: 20}))
    assert hit.severity is None
    assert hit.evidence["spikes"] == 3
    assert (hit.first_step, hit.last_step) == (40, 50)


def test_three_within_1000_steps() -> None:
    values = norms({40: 20, 45: 20, 1200: 20}, 1210)
    (hit,) = look(values)
    assert (hit.severity, hit.evidence["spikes"]) == ("info", 1)


def test_the_first_32_are_not_judged() -> None:
    assert not look(norms({20: 50, 31: 50}))
    with pytest.raises(NotMeasurable, match="needs more than 32 recorded steps, has 32"):
        look(norms({}, 32))


def test_six_sigma_and_three_times() -> None:
    assert not look(norms({45: 2.9}, spread=0.01))  # 100 sigma and no spike
    assert look(norms({45: 3.3}, spread=0.01))
    assert not look(norms({45: 12}, spread=0.6))  # wide spread: 4 sigma
    assert look(norms({45: 80}, spread=0.6))


def test_silent_while_the_learning_rate_rises() -> None:
    rising = np.linspace(1e-5, 1e-3, 60)[:, None]
    assert not look(norms({45: 20}), lr=rates(60, rising))
    assert look(norms({45: 20}), lr=rates(60))


def test_a_new_level_is_no_row_of_spikes() -> None:
    values = norms({})
    values[40:] *= 20
    assert not look(values)


def test_skipped_steps_are_no_steps() -> None:
    skipped = table("skipped", (np.arange(60) == 45)[:, None], ("skipped",))
    assert not look(norms({45: 20}), skipped=skipped)


def test_drops_are_silent() -> None:
    assert not look(norms({45: 0.01}))
