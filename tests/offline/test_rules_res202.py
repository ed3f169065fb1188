"""RES202: a stream whose mean outweighs its spread, late in a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.rule_values import chain, names, rates, staged, table

RULE = RULES["RES202"]


def look(
    shift: Any, sites: SiteMap | None = None, lr: Any = 1e-3, **over: float
) -> tuple[Hit, ...]:
    """One number a step for all sites, or (steps, sites)."""
    known = sites or chain(8)
    values = np.asarray(shift, float)
    values = values if values.ndim == 2 else np.tile(values[:, None], (1, len(known.sites)))
    given = {
        "mean_shift": table("mean_shift", values, names(known)),
        "sites": known,
        "lr": rates(len(values), lr),
        "groups": (),
    }
    return RULE.run(given, **over)


def late(level: float, since: int = 117, steps: int = 120) -> np.ndarray:
    return np.where(np.arange(steps) < since, 1.0, level)


@pytest.mark.parametrize(("level", "found"), [(9.9, 0), (10.1, 1), (np.inf, 1)])
def test_on_the_last_three_captures(level: float, found: int) -> None:
    hits = look(late(level))
    assert len(hits) == found
    assert all(hit.first_step == 117 for hit in hits)
    assert not look(late(level, since=118))


def test_it_is_never_more_than_an_information() -> None:
    assert (RULE.severity, look(late(1e5))[0].severity) == ("info", None)


def test_what_has_passed_is_silent() -> None:
    shift = late(50, since=105)
    shift[-1] = 2.0
    assert not look(shift)


def test_the_first_hundred_steps_are_left_out() -> None:
    with pytest.raises(NotMeasurable, match="needs 100 steps after warm-up, has 89"):
        look(late(38, since=5, steps=90))
    transient = np.where((np.arange(120) > 4) & (np.arange(120) < 75), 38.0, 0.5)
    assert not look(transient)
    assert not look(late(50, since=99, steps=102))  # two captures behind step 100


def test_warm_up_counts_from_its_end() -> None:
    warm = 1e-3 * np.minimum(np.arange(1, 121) / 60, 1)[:, None]
    with pytest.raises(NotMeasurable, match="after warm-up"):
        look(late(50), lr=warm)


def test_the_median_counts_not_single_sites() -> None:
    """The first site is not judged; a ReLU stream stays at 1.4."""
    shift = np.full((120, 9), 1.4)
    shift[:, :4] = 1e4
    assert not look(shift, chain(9))
    shift[:, 4:6] = 1e4
    (hit,) = look(shift, chain(9))
    assert hit.value == 1e4


def test_shallow_stages_are_skipped() -> None:
    with pytest.raises(NotMeasurable, match="needs 8 sites in one stage, has 7"):
        look(late(50), staged(7, 7))
