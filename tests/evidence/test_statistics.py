"""Medians, ties, ranks: computed by hand, or by another library."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipscope.evidence.statistics import (
    at_step,
    keeps,
    median,
    onset,
    paired,
    rank_correlation,
    ranks,
    ratio,
    reaches,
    spread,
    tied,
)

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("values", "middle", "lowest", "highest", "diverged"),
    [
        ([0.3, 0.1, 0.2], 0.2, 0.1, 0.3, 0),
        ([0.1], 0.1, 0.1, 0.1, 0),
        ([0.1, 0.3], 0.2, 0.1, 0.3, 0),
        ([0.1, INF, 0.2], 0.2, 0.1, INF, 1),
        ([0.1, NAN, 0.2], 0.2, 0.1, INF, 1),
        ([0.1, INF], INF, 0.1, INF, 1),  # half are lost: diverged
        ([0.1, INF, NAN], INF, 0.1, INF, 2),
        ([NAN, NAN, -INF], INF, INF, INF, 3),
    ],
)
def test_a_run_that_is_not_finite_counts_as_the_worst(
    values: list[float], middle: float, lowest: float, highest: float, diverged: int
) -> None:
    found = spread(values)
    assert found.median == pytest.approx(middle)
    assert (found.lowest, found.highest, found.diverged) == (lowest, highest, diverged)
    assert found.runs == len(values)
    assert found.lost == (2 * diverged >= len(values))


def test_no_runs_have_no_median() -> None:
    assert math.isnan(spread([]).median)
    assert math.isnan(median([]))
    assert spread([]).runs == 0


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1.0], [1.0526], True),  # .0526 is 4.997 % of the larger
        ([1.0], [1.0527], False),  # 5.006 %
        ([0.0], [0.0], True),
        ([0.9, 1.0, 1.1], [1.09], True),  # 8 % between the medians, and a seed above 1.09
        ([0.9, 1.0, 1.1], [1.1], True),  # one as high
        ([0.9, 1.0, 1.1], [1.11], False),  # all below
        ([1.11], [0.9, 1.0, 1.1], False),
        (
            [0.45, 0.51, 0.65],
            [0.69, 0.69, 0.69],
            False,
        ),  # .18 apart, under the range .20: all below
        ([0.99, 1.0, 1.01], [1.02, 1.04, 1.06], True),  # all below, by 4 %
        ([1.0, 1.0, INF], [1.06], True),  # a run that is not finite is above all
        ([INF], [NAN], True),
        ([INF], [1e300], False),
        ([0.1, INF, INF], [0.5], False),  # it diverged, whatever its first seed came to
        ([0.1, INF, INF], [0.2, INF, INF], True),
    ],
)
def test_ties(first: list[float], second: list[float], expected: bool) -> None:
    assert tied(spread(first), spread(second)) is expected


def test_ranks_average_over_ties_and_put_divergence_last() -> None:
    assert ranks([spread([v]) for v in (0.5, INF, 0.1, 0.5, NAN, 0.2)]) == [
        3.5,
        5.5,
        1,
        3.5,
        5.5,
        2,
    ]


def test_a_slow_drift_is_not_one_large_tie() -> None:
    """Each step is 4 %; the third is 8 % above the first, whose group it does not join."""
    assert ranks([spread([v]) for v in (1.0, 1.04, 1.0816, 1.1249)]) == [1.5, 1.5, 3.5, 3.5]


def test_two_that_do_not_tie_never_share_a_rank() -> None:
    """The wide one ties with both of the others, which do not tie."""
    wide, low, high = spread([0.4, 0.4, 1.0]), spread([0.5] * 3), spread([0.9] * 3)
    assert tied(wide, low)
    assert tied(wide, high)
    assert ranks([low, high, wide]) == [1.5, 3, 1.5]


SEEDS = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.31, 1.0, 2.0, INF]), min_size=3, max_size=3)


@given(st.lists(SEEDS, min_size=2, max_size=4))
def test_where_all_tie_there_is_no_onset(seeds: list[list[float]]) -> None:
    each, depths = [spread(one) for one in seeds], range(len(seeds))
    assert onset(depths, each) is None or not math.isnan(rank_correlation(depths, each))


def test_rank_correlation_by_hand() -> None:
    """Ranks 1 2 3 4 against 1.5 1.5 3 4: sum of products 4.5, sizes 5 and 4.5, 4.5/sqrt(22.5)."""
    found = rank_correlation([10, 20, 50, 100], [spread([v]) for v in (1.0, 1.01, 2.0, 3.0)])
    assert found == pytest.approx(4.5 / math.sqrt(22.5))
    assert math.isnan(rank_correlation([10, 20], [spread([1.0]), spread([1.0])]))
    assert math.isnan(rank_correlation([10], [spread([1.0])]))


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=8))
def test_rank_correlation_without_ties_by_another_formula(numbers: list[int]) -> None:
    """1 - 6 sum d^2 / (n (n^2 - 1)), which holds where nothing ties."""
    values = [1.2**one for one in dict.fromkeys(numbers)]  # 20 % apart at least
    if len(values) < 2:
        return
    order = sorted(values)
    gaps = [place - order.index(value) for place, value in enumerate(values)]
    count = len(values)
    expected = 1 - 6 * sum(gap * gap for gap in gaps) / (count * (count**2 - 1))
    found = rank_correlation(range(count), [spread([value]) for value in values])
    assert found == pytest.approx(expected)


def test_paired_differences_are_those_of_shared_seeds() -> None:
    assert paired({0: 1.0, 1: 2.0}, {1: 0.5, 2: 9.0}) == {1: 1.5}
    assert paired({0: INF, 1: INF}, {0: INF, 1: 1.0}) == {0: 0.0, 1: INF}


def test_ratios_with_no_answer() -> None:
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(INF, 2.0) == ratio(1.0, 0.0) == INF
    assert ratio(2.0, INF) == 0.0
    for pair in ((0.0, 0.0), (INF, INF), (NAN, 1.0), (1.0, NAN)):
        assert math.isnan(ratio(*pair))


def test_limits_are_not_decided_by_rounding() -> None:
    assert 0.15 - 0.10 < 0.05  # as float64 has it
    assert reaches(0.15 - 0.10, 0.05)
    assert keeps(0.1 + 0.2, 0.3)
    assert not reaches(0.05 - 1e-6, 0.05)
    assert not keeps(0.05 + 1e-6, 0.05)
    assert not reaches(NAN, 0.0)
    assert not keeps(NAN, 0.0)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([[0.01], [0.02], [0.5]], 20),
        ([[0.01, 0.03], [0.02, 0.9], [0.04, 0.5]], 50),  # 20's best seed is below 10's worst
        ([[0.02], [0.01], [0.015]], 50),  # against the best shallower depth, which is 20
        ([[0.5], [0.1], [0.05]], None),
        ([[1.0], [1.05], [1.06]], 50),  # 5 % of 1.05 is .0525, which is a tie; of 1.06 it is .053
        ([[0.45, 0.51, 0.65], [0.69, 0.69, 0.69]], 20),
        ([[0.01], [INF], [INF]], 20),
        ([[0.01, INF], [0.5, 0.6], [0.7, 0.8]], 50),  # one seed lost at 10: its worst is infinite
        ([[0.01]], None),
    ],
)
def test_onset(losses: list[list[float]], expected: int | None) -> None:
    depths = [10, 20, 50][: len(losses)]
    assert onset(depths, [spread(one) for one in losses]) == expected


def test_steps_of_runs_that_never_get_there() -> None:
    assert at_step([100, 120, INF], 330) == "120"
    assert at_step([100, 120], 330) == "110"
    assert at_step([100, INF], 330) == "> 330"
    assert at_step([INF], 200) == "> 200"
    assert at_step([INF, INF, 90], 330, diverged=1) == "> 330"  # the other had 330 steps
    assert at_step([INF, INF, 90], 330, diverged=2) == "diverged"
    assert at_step([INF], 2, diverged=1) == "diverged"
    assert at_step([100, 120, INF], 330, diverged=1) == "120"


def test_a_step_that_was_not_read_is_none_that_never_came() -> None:
    assert at_step([100, None, 120], 330) == "110 (1 not read)"
    assert at_step([100, INF, INF, None], 330) == "> 330 (1 not read)"
    assert at_step([None, None], 330) == "not read"
