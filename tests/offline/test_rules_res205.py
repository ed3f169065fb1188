"""RES205: rows that have become one, while training and at the start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import Run, SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.rule_values import chain, names, staged, table

RULE = RULES["RES205"]


def look(
    shift: Any,
    sites: SiteMap | None = None,
    steps: Any = None,
    alignment: Any = None,
    r: Any = None,
    run: Run | None = None,
    **over: float,
) -> tuple[Hit, ...]:
    known = sites or chain(8)
    values = np.asarray(shift, float)
    values = values if values.ndim == 2 else np.tile(values[:, None], (1, len(known.sites)))
    given = {
        "mean_shift": table("mean_shift", values, names(known), steps),
        "sites": known,
        "run": run or Run(),
    }
    if r is not None:
        given["branch_ratio"] = table("branch_ratio", r, names(known), steps)
    if alignment is not None:
        given["row_alignment"] = table("row_alignment", alignment, names(known), steps)
    return RULE.run(given, **over)


def peak(level: float, first: int, last: int, steps: int = 60) -> np.ndarray:
    at = np.arange(steps)
    return np.where((at >= first) & (at <= last), level, 2.0)


def test_collapse_is_found_at_once() -> None:
    (hit,) = look(peak(6e5, 5, 59))
    assert hit.where == ("model",)
    assert (hit.first_step, hit.last_step, hit.severity) == (5, 59, None)
    assert hit.evidence["at first"] == 2.0
    assert look(np.full(4, np.inf))  # every row is exactly the same


@pytest.mark.parametrize(("level", "found"), [(99, 0), (101, 1)])
def test_twenty_steps_above_a_hundred(level: float, found: int) -> None:
    assert len(look(peak(level, 5, 25))) == found
    assert not look(peak(level, 5, 24))


@pytest.mark.parametrize(("level", "found"), [(999, 0), (1001, 1)])
def test_three_captures_above_a_thousand(level: float, found: int) -> None:
    assert len(look(peak(level, 5, 7))) == found
    assert not look(peak(level, 5, 6))


def test_transients_of_healthy_runs_are_silent() -> None:
    assert not look(peak(38, 5, 50))
    assert not look(peak(109, 20, 24))


def test_sparse_captures() -> None:
    steps = (0, 1, 2, 4, 8, 16, 32, 50)
    assert look([1, 1, 1, 200, 300, 400, 500, 600], steps=steps)
    assert not look([1, 1, 1, 200, 300, 400, 5, 2], steps=steps)


def starting(r: float, rows: int, first: int = 0) -> np.ndarray:
    """r of 8 sites: that of the first in the first capture, .3 else."""
    values = np.full((rows, 8), 0.3)
    values[first, 0] = r
    return values


@pytest.mark.parametrize(("r", "found"), [(1.9, 1), (2.1, 0)])
def test_a_stream_that_starts_small_has_a_hundred_steps(r: float, found: int) -> None:
    """An embedding of .02: its rows are as alike as the first branch's biases."""
    assert len(look(peak(150, 0, 60, 110), r=starting(r, 110))) == found
    assert len(look(peak(6e5, 0, 60, 110), r=starting(r, 110))) == found


@pytest.mark.parametrize(("last", "found"), [(119, 0), (120, 1)])
def test_a_collapse_that_stays_is_found_then(last: int, found: int) -> None:
    hits = look(peak(150, 0, last, 140), r=starting(40, 140))
    assert [hit.first_step for hit in hits] == [100] * found


def test_a_debug_run_of_a_stream_that_starts_small_is_skipped() -> None:
    with pytest.raises(NotMeasurable, match="needs 100 steps where the first branch outweighs"):
        look(peak(150, 0, 99, 100), r=starting(40, 100))
    assert look([1.0], alignment=aligned(0.5, 1.0), r=starting(40, 1))  # the start itself


def test_only_the_start_tells_that_a_stream_starts_small() -> None:
    assert look(peak(150, 5, 50), r=starting(40, 60, first=1))
    unknown = starting(40, 60)
    unknown[0] = np.nan
    assert look(peak(150, 5, 50), r=unknown)


def test_another_stage_is_judged_all_the_same() -> None:
    sites = staged(8, 8, projections=False)
    r = np.full((60, 16), 0.3)
    r[0, 0] = 40
    (hit,) = look(np.full((60, 16), 150.0), sites, r=r)
    assert hit.evidence["stage"] == "stream 0 stage 1"


def test_single_samples_are_not_judged() -> None:
    """By the squared mean: one text's tokens may well share a direction."""
    one = chain(8, shape=(1, 32, 16))
    with pytest.raises(NotMeasurable, match="more than one sample"):
        look(np.full(4, np.inf), one)
    assert not look(np.full(4, np.inf), one, alignment=np.tile(aligned(0.5, 0.9), (4, 1)))
    (hit,) = look(np.full(4, np.inf), one, alignment=np.tile(aligned(0.5, 1.0), (4, 1)))
    assert "mean cosine" in hit.message


def test_shallow_streams_are_skipped() -> None:
    """Class tokens start alike: two blocks of class attention are four sites."""
    with pytest.raises(NotMeasurable, match="needs 8 sites"):
        look(np.full(30, 1e8), chain(4))


def test_projections_are_left_out_of_the_median() -> None:
    sites = staged(8, 9)
    shift = np.ones((4, 17))
    shift[:, 8] = 1e6
    assert not look(shift, sites)


# ------------------------------------------------------------------ at the start
def aligned(first: float, last: float, sites: int = 8) -> np.ndarray:
    return np.linspace(first, last, sites)[None, :]


@pytest.mark.parametrize(("last", "found"), [(0.994, 0), (0.996, 1), (1.0, 1)])
def test_rows_that_depth_makes_one(last: float, found: int) -> None:
    hits = look([1.0], alignment=aligned(0.5, last))
    assert len(hits) == found
    assert all((hit.first_step, hit.last_step) == (0, 0) for hit in hits)


def test_rows_that_start_alike_are_not_the_blocks_doing() -> None:
    """Object queries and class tokens are one learned vector for every sample."""
    assert not look([1.0], alignment=aligned(0.999, 0.99999))
    assert not look([1.0], alignment=aligned(0.81, 0.999))
    assert look([1.0], alignment=aligned(0.79, 0.999))


def test_the_start_needs_a_fresh_run() -> None:
    assert not look([1.0], alignment=aligned(0.5, 1.0), run=Run(fresh=False))
    assert not look([1.0], alignment=aligned(0.5, 1.0), steps=[3])


def test_a_start_that_was_not_measured_is_silent() -> None:
    """Rows of 0, or one row a sample: no cosine."""
    for at in (0, -1):
        unknown = aligned(0.5, 1.0)
        unknown[0, at] = np.nan
        assert not look([1.0], alignment=unknown)


def test_one_finding_where_both_arms_see_it() -> None:
    (hit,) = look(np.full(4, 1e5), alignment=np.tile(aligned(0.5, 1.0), (4, 1)))
    assert "squared channel mean" in hit.message
