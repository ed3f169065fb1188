"""RES203: late branches that hardly change the stream, for a thousand steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.rule_values import chain, law, names, table

RULE = RULES["RES203"]
STEPS = np.arange(0, 2050, 50)


def look(r: Any, sites: SiteMap, steps: Any = STEPS, **over: float) -> tuple[Hit, ...]:
    values = np.broadcast_to(np.asarray(r, float), (len(steps), len(sites.sites)))
    given = {
        "branch_ratio": table("branch_ratio", values, names(sites), steps),
        "sites": sites,
        "captures": np.asarray(steps),
    }
    return RULE.run(given, **over)


def faded(level: float, sites: int = 13) -> np.ndarray:
    """The last third of the sites after the first at `level`."""
    r = np.full(sites, 0.3)
    r[-4:] = level
    return r


@pytest.mark.parametrize(("level", "found"), [(0.021, 0), (0.019, 1), (0.0, 1)])
def test_the_last_third(level: float, found: int) -> None:
    hits = look(faded(level), chain(13))
    assert len(hits) == found
    assert all("last 4 of 13 sites" in hit.message for hit in hits)


def test_it_is_never_more_than_an_information() -> None:
    (hit,) = look(faded(1e-5), chain(13))
    assert (RULE.severity, hit.severity) == ("info", None)


def test_a_thousand_steps_up_to_the_last() -> None:
    r = np.tile(faded(0.3), (len(STEPS), 1))
    r[STEPS >= 1050, -4:] = 0.01
    assert not look(r, chain(13))  # 950 steps
    r[STEPS >= 1000, -4:] = 0.01
    assert look(r, chain(13))
    r[-1] = faded(0.3)
    assert not look(r, chain(13))


def test_short_runs_are_skipped() -> None:
    with pytest.raises(NotMeasurable, match="needs 1000 steps, has 100"):
        look(faded(0.01), chain(13), np.arange(0, 101, 10))


def test_the_law_is_silent_at_any_usual_depth() -> None:
    for depth in (8, 24, 96, 300):
        assert not look(0.5 * law(chain(depth)), chain(depth))


def test_waking_branches_are_silent() -> None:
    r = np.tile(faded(0.001), (len(STEPS), 1)) * np.exp(STEPS / 300)[:, None]
    assert not look(r, chain(13))


def test_shallow_stages_are_skipped() -> None:
    with pytest.raises(NotMeasurable, match="needs 8 sites"):
        look(np.full(7, 0.01), chain(7))
