"""RES903: the monitor's share of the step time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import Run
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.rule_values import table

RULE = RULES["RES903"]


def look(
    host: float = 1.0, capture: float = 0.1, steps: int = 300, every: int = 25, **run: Any
) -> tuple[Hit, ...]:
    """Steps of .1 s; `capture` is the time of a captured one, `host` the monitor's own ms there."""
    captured = np.arange(steps) % every == 0
    seconds = np.where(captured, capture, 0.1)
    missing = (np.arange(steps) == steps - 1)[:, None]  # the step under way is not timed
    values = {
        "host_ms": table("host_ms", np.where(captured, host, 0.01)[:, None], ("host_ms",)),
        "seconds": table("seconds", seconds[:, None], ("seconds",), missing=missing),
        "captured": table("captured", captured[:, None], ("captured",)),
        "run": Run(every_n_steps=every, **run),
    }
    return RULE.run(values)


def test_a_cheap_monitor_passes() -> None:
    assert not look()


@pytest.mark.parametrize(("host", "found"), [(110, 0), (140, 1)])
def test_its_own_clock(host: float, found: int) -> None:
    """4 % of the steps take the monitor `host` ms of 100."""
    assert len(look(host)) == found
    assert RULE.severity == "info"


@pytest.mark.parametrize(("capture", "found"), [(0.2, 0), (0.3, 1)])
def test_slower_captured_steps(capture: float, found: int) -> None:
    assert len(look(capture=capture)) == found


def test_the_dense_start_does_not_count() -> None:
    with pytest.raises(NotMeasurable, match="needs 100 timed steps after step 50, has 99"):
        look(steps=150)
    assert not look(steps=151)


def test_several_distances_between_captures() -> None:
    with pytest.raises(NotMeasurable, match="needs 400 timed steps"):
        look(every=100)


def test_the_debug_preset_is_dear_by_choice() -> None:
    with pytest.raises(NotMeasurable, match="debug preset"):
        look(host=1000, preset="debug")
