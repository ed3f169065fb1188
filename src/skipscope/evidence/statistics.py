"""Few seeds, some of which diverge: medians with their range, ties, ranks. No p-values.

A run that is not finite is the worst there is: +inf in a median, the last rank. Three seeds carry
no test of significance; a range and a difference in every seed say what they can say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

TIE = 0.05  #: differences under this share of the larger number are none
SLACK = 1e-9  #: what float64 may put a number on the wrong side of its limit by


@dataclass(frozen=True)
class Spread:
    """What the seeds of one arm at one depth came to."""

    median: float  #: inf when half or more of the runs are not finite; NaN without runs
    lowest: float
    highest: float
    runs: int
    diverged: int  #: runs that are not finite, the +inf of the three above
    width: float  #: the seed range: largest less smallest of the finite runs

    @property
    def lost(self) -> bool:
        """Half or more of the runs diverged."""
        return math.isinf(self.median)


def spread(values: Sequence[float]) -> Spread:
    """Median and range; NaN counts as +inf.

    >>> s = spread([0.3, 0.1, 0.2])
    >>> s.median, s.lowest, s.highest, round(s.width, 12)
    (0.2, 0.1, 0.3, 0.2)
    >>> s = spread([0.1, math.inf, math.nan])
    >>> s.median, s.highest, s.diverged, s.width, s.lost
    (inf, inf, 2, 0.0, True)
    """
    worst = [value if math.isfinite(value) else math.inf for value in values]
    finite = [value for value in worst if math.isfinite(value)]
    width = max(finite) - min(finite) if finite else 0.0
    if not worst:
        return Spread(math.nan, math.nan, math.nan, 0, 0, 0.0)
    diverged = len(worst) - len(finite)
    return Spread(median(worst), min(worst), max(worst), len(worst), diverged, width)


def median(values: Sequence[float]) -> float:
    """The middle one, the mean of the middle two; +inf as soon as one of these is; NaN of none.

    >>> median([3.0, 1.0, 2.0]), median([1.0, math.inf]), median([])
    (2.0, inf, nan)
    """
    ordered = sorted(math.inf if math.isnan(value) else value for value in values)
    if not ordered:
        return math.nan
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    """`first` less `second` in each seed that both have; two infinities are equal.

    >>> paired({0: 0.5, 1: math.inf, 2: 0.1}, {0: 0.25, 1: math.inf, 3: 0.0})
    {0: 0.25, 1: 0.0}
    """
    seeds = sorted(first.keys() & second.keys())
    return {
        seed: 0.0 if first[seed] == second[seed] else first[seed] - second[seed] for seed in seeds
    }


def below(first: Spread, second: Spread) -> bool:
    """Whether every seed of the first is below every seed of the second, and that by enough.

    Enough is 5 % of the larger median between the two medians. So a wide range of seeds stands in
    the way only as far as it reaches into the other. A run that is not finite reaches above all.

    >>> below(spread([0.9, 1.0, 1.3]), spread([1.4])), below(spread([0.9, 1.0, 1.3]), spread([1.2]))
    (True, False)
    >>> below(spread([1.0]), spread([1.04])), below(spread([1.0, 1.0, math.inf]), spread([9.0]))
    (False, False)
    """
    if not first.highest < second.lowest:
        return False
    room = TIE * max(abs(first.median), abs(second.median))
    return second.lost or reaches(second.median - first.median, room)


def tied(first: Spread, second: Spread) -> bool:
    """Whether two medians are too near for their order to mean anything.

    They tie where neither is `below` the other. A median that diverged ties with another such only,
    whatever its other seeds came to.

    >>> tied(spread([1.0]), spread([1.04])), tied(spread([1.0]), spread([1.06]))
    (True, False)
    >>> tied(spread([0.9, 1.0, 1.3]), spread([1.2])), tied(spread([1.0]), spread([math.inf]))
    (True, False)
    """
    if first.lost != second.lost:
        return False
    return not below(first, second) and not below(second, first)


def ranks(spreads: Sequence[Spread]) -> list[float]:
    """The rank of each, 1 the lowest median; ties get the mean of their ranks.

    Whatever ties with all of a group belongs to it: so a slow drift over many small steps is not
    one large tie, and two that do not tie never share a rank.

    >>> ranks([spread([0.2]), spread([0.1]), spread([0.101]), spread([math.inf])])
    [3.0, 1.5, 1.5, 4.0]
    """
    order = sorted(range(len(spreads)), key=lambda at: spreads[at].median)
    groups: list[list[int]] = []
    for at in order:
        if groups and all(tied(spreads[one], spreads[at]) for one in groups[-1]):
            groups[-1].append(at)
        else:
            groups.append([at])
    found = [0.0] * len(spreads)
    before = 0
    for group in groups:
        for at in group:
            found[at] = before + (len(group) + 1) / 2
        before += len(group)
    return found


def rank_correlation(values: Sequence[float], spreads: Sequence[Spread]) -> float:
    """Spearman's correlation of distinct values, such as depths, with medians that may tie.

    NaN where all tie: nothing rises or falls.

    >>> r = [rank_correlation([10, 20, 50], [spread([v]) for v in m])
    ...      for m in ([1, 2, 3], [1, 1, 3], [3, 2, 1], [1, 1, 1])]
    >>> [round(one, 3) for one in r]
    [1.0, 0.866, -1.0, nan]

    Source: Spearman 1904; average ranks for ties.
    """
    across = np.array(ranks([spread([value]) for value in values]))
    along = np.array(ranks(spreads))
    across, along = across - across.mean(), along - along.mean()
    size = math.sqrt(float(across @ across) * float(along @ along))
    return float(across @ along) / size if size > 0 else math.nan


def ratio(first: float, second: float) -> float:
    """How many times larger `first` is; NaN where the question has no answer.

    >>> ratio(2.0, 0.5), ratio(1.0, 0.0), ratio(math.inf, 1.0), ratio(0.0, 0.0)
    (4.0, inf, inf, nan)
    >>> ratio(math.inf, math.inf)
    nan
    """
    if math.isnan(first) or math.isnan(second):
        return math.nan
    if second == 0:
        return math.inf if first > 0 else math.nan
    return math.nan if math.isinf(first) and math.isinf(second) else first / second


def reaches(value: float, limit: float) -> bool:
    """`value >= limit`, where rounding does not decide; never for NaN.

    >>> reaches(0.15 - 0.10, 0.05), reaches(0.0499, 0.05), reaches(math.nan, 0.0)
    (True, False, False)
    """
    return value >= limit - SLACK * max(1.0, abs(limit))


def keeps(value: float, limit: float) -> bool:
    """`value <= limit`, where rounding does not decide; never for NaN.

    >>> keeps(0.3 - 0.29, 0.01), keeps(0.0101, 0.01), keeps(math.inf, 1.0)
    (True, False, False)
    """
    return value <= limit + SLACK * max(1.0, abs(limit))


def onset(depths: Sequence[int], spreads: Sequence[Spread]) -> int | None:
    """The first depth whose best seed is worse than the worst seed of the best shallower depth.

    Worse as in `below`: what ties with that depth is none.

    >>> onset([10, 20, 50], [spread(v) for v in ([0.01, 0.02], [0.015, 0.9], [0.8, 1.4])])
    50
    """
    for at in range(1, len(depths)):
        best = min(spreads[:at], key=lambda one: one.median)
        if below(best, spreads[at]):
            return depths[at]
    return None


def at_step(steps: Sequence[float | None], most: int, diverged: int = 0) -> str:
    """The median first step, "> N" where half or more never got there (inf) in N steps.

    Runs in which it was not read (None) are not counted, and told. Where half or more of the
    others never got there because they `diverged`, no number of steps is theirs.

    >>> at_step([120, 90, math.inf], 330), at_step([120, math.inf, math.inf], 330)
    ('120', '> 330')
    >>> at_step([120, None, None], 330), at_step([None], 330)
    ('120 (2 not read)', 'not read')
    >>> at_step([120, math.inf, math.inf], 330, diverged=2)
    'diverged'
    """
    read = [step for step in steps if step is not None]
    if not read:
        return "not read"
    middle, absent = median(read), len(steps) - len(read)
    text = f"> {most}" if math.isinf(middle) else f"{middle:g}"
    text = "diverged" if math.isinf(middle) and 2 * diverged >= len(read) else text
    return f"{text} ({absent} not read)" if absent else text
