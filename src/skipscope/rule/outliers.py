"""One site among its siblings: which of them is too large, and what was expected of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.records import Site
from skipscope.rule.medians import row_medians
from skipscope.rule.siblings import Role, Stage, roles

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Place:
    """A block-level site along its stream."""

    site: Site
    k: int  #: position in its stage
    judged: bool
    role: Role


@dataclass(frozen=True)
class Limits:
    """The thresholds of the comparison."""

    above: float  #: times the median of the siblings
    smallest: float | Floats  #: a value below this is never too large: for all places, or for each
    reach: int  #: siblings stand at most so many places away
    siblings: int  #: so many are needed
    flood: float  #: a site that is not judged and has more parts its neighbours


def places(stages: Sequence[Stage]) -> dict[int, tuple[Place, ...]]:
    """The sites of each stream along depth."""
    found: dict[int, list[Place]] = {}
    for stream in {stage.stream: None for stage in stages}:
        inside = [stage for stage in stages if stage.stream == stream]
        role = roles([site for stage in inside for site in stage.sites])
        line = [
            Place(site, k, k in judged, role[site.index])
            for stage in inside
            for judged in [{k for k, _ in stage.judged}]
            for k, site in enumerate(stage.sites)
        ]
        found[stream] = sorted(line, key=lambda place: (place.site.depth, place.site.index))
    return {stream: tuple(line) for stream, line in found.items()}


def siblings(
    line: Sequence[Place], at: int, limits: Limits, between: tuple[int, int] | None = None
) -> tuple[list[int], Floats]:
    """The siblings of one place, and the factors that carry their r over to it.

    Those of its own stage when they are enough, else those of other stages too, by 1/sqrt(k+1).
    """
    low, high = between or (-1, len(line))
    own = line[at]
    near = [
        other
        for other in range(max(low + 1, at - limits.reach), min(high, at + limits.reach + 1))
        if other != at and line[other].judged and line[other].role == own.role
    ]
    inside = [other for other in near if line[other].site.stage == own.site.stage]
    chosen = inside if len(inside) >= limits.siblings else near
    factors = [
        1.0 if other in inside else np.sqrt((line[other].k + 1) / (own.k + 1)) for other in chosen
    ]
    return chosen, np.array(factors)


def expected(values: Floats, chosen: Sequence[int], factors: Floats, needed: int) -> Floats:
    """The median of the siblings in each row, NaN where fewer than `needed` have a value.

    Shape: `values` (rows, places); the result (rows,).

    A value of 0 is a branch that has not woken up, or is dead. It tells nothing of the usual size,
    and keeps nobody from being judged as long as at least half of those needed are above 0.
    """
    theirs = values[:, list(chosen)] * factors
    finite = np.isfinite(theirs)
    usable = finite & (theirs > 0)
    enough = (finite.sum(axis=1) >= needed) & (2 * usable.sum(axis=1) >= needed)
    result = np.full(len(values), np.nan)
    if enough.any():
        result[enough] = row_medians(np.where(usable, theirs, np.nan)[enough])
    return result


def dominating(values: Floats, line: Sequence[Place], limits: Limits) -> tuple[Mask, Floats]:
    """Which places are too large in which rows, and what was expected there.

    Shape: `values` (rows, places), NaN where not measured; both results like it.
    """
    wanted = np.full(values.shape, np.nan)
    for at, place in enumerate(line):
        if place.judged:
            chosen, factors = siblings(line, at, limits)
            if len(chosen) >= limits.siblings:
                wanted[:, at] = expected(values, chosen, factors, limits.siblings)
    smallest = np.broadcast_to(limits.smallest, len(line))
    shown = _too_large(values, wanted, limits.above, smallest)
    judged = np.array([place.judged for place in line], dtype=bool)
    walls = ~judged & (np.nan_to_num(values) > limits.flood)
    several = (shown.sum(axis=1) > 1) | (shown.any(axis=1) & walls.any(axis=1))
    for row in np.flatnonzero(several).tolist():
        _one_by_one(row, values, line, limits, np.flatnonzero(walls[row]).tolist(), shown, wanted)
    return shown, wanted


def _too_large(values: Floats, wanted: Floats, above: float, smallest: Floats) -> Mask:
    with np.errstate(invalid="ignore"):
        over = (values > smallest) & (values > above * wanted)
    result: Mask = over & np.isfinite(values)
    return result


def _one_by_one(
    row: int,
    values: Floats,
    line: Sequence[Place],
    limits: Limits,
    walls: list[int],
    shown: Mask,
    wanted: Floats,
) -> None:
    """Judge the largest first; behind it the stream is larger, so the others keep to their side."""
    smallest = np.broadcast_to(limits.smallest, len(line))
    largest_first = np.argsort(-np.nan_to_num(values[row]), kind="stable")
    for at in largest_first[shown[row][largest_first]].tolist():
        low = max((wall for wall in walls if wall < at), default=-1)
        high = min((wall for wall in walls if wall > at), default=len(line))
        chosen, factors = siblings(line, at, limits, (low, high))
        one = values[row : row + 1]
        value = expected(one, chosen, factors, limits.siblings)[0] if chosen else np.nan
        wanted[row, at] = value
        over = _too_large(one[:, at], np.array([value]), limits.above, smallest[at : at + 1])
        shown[row, at] = bool(over[0])
        if shown[row, at]:
            walls.append(at)
