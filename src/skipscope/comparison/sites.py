"""Which site of one run corresponds to which of the other, and their numbers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from skipscope.comparison.records import Match, Number, Pair, SitePair, StreamPair
from skipscope.history import History
from skipscope.names import counted
from skipscope.records import Site
from skipscope.reports._collect import DEPTH
from skipscope.rule.siblings import streams

#: Numbers of a site, as the profile along depth shows them.
PROFILE = ("branch_ratio", "rms_sum", "growth", "gradient_gain")
NEAR = 0.1  #: a site of the same name stands elsewhere when its relative depth differs by more
Steps = tuple[int, int]


def numbers_at(history: History, measure: str, step: int) -> dict[str, Number]:
    """A measure's row of one step; None where nothing was measured."""
    table = history.table(measure)
    rows = [row for row, one in enumerate(table.steps) if one == step]
    if not rows:
        return {}
    held = zip(table.columns, table.values[rows[-1]], table.missing[rows[-1]], strict=True)
    return {column: None if missing else float(value) for column, value, missing in held}


def pair_streams(
    a: History, b: History, first: Steps | None, last: Steps | None
) -> tuple[tuple[StreamPair, ...], tuple[str, ...]]:
    """The streams that both have, by number, and what one alone has."""
    of_a, of_b = streams(a.sites), streams(b.sites)
    both = [index for index in of_a if index in of_b]
    alone = [f"stream {i} of A ({counted(len(of_a[i]), 'site')})" for i in of_a if i not in of_b]
    alone += [f"stream {i} of B ({counted(len(of_b[i]), 'site')})" for i in of_b if i not in of_a]
    pairs = [_stream(a, b, index, (of_a[index], of_b[index]), (first, last)) for index in both]
    return tuple(pairs), tuple(alone)


def _stream(
    a: History,
    b: History,
    index: int,
    sites: tuple[Sequence[Site], Sequence[Site]],
    steps: tuple[Steps | None, Steps | None],
) -> StreamPair:
    match, why, places = correspond(*sites)
    in_a, in_b = sites
    taken_a, taken_b = {at for at, _ in places}, {at for _, at in places}
    return StreamPair(
        index=index,
        sites_a=len(in_a),
        sites_b=len(in_b),
        match=match,
        why=why,
        sites=_sites(a, b, [(in_a[i], in_b[k]) for i, k in places], steps[1]),
        only_a=tuple(site.name for at, site in enumerate(in_a) if at not in taken_a),
        only_b=tuple(site.name for at, site in enumerate(in_b) if at not in taken_b),
        start=_depth(a, b, index, steps[0]),
        now=_depth(a, b, index, steps[1]),
    )


def correspond(
    a: Sequence[Site], b: Sequence[Site]
) -> tuple[Match, str, tuple[tuple[int, int], ...]]:
    """Positions along two streams that correspond, and by what.

    By name (module path) where the runs share at least half of the names, at about the same
    relative depth; by position where the streams are equally long; else each site of the shorter
    stream goes with the one of the longer that is nearest in relative depth.
    """
    at = {site.name: k for k, site in enumerate(b)}
    shared = [(i, at[site.name]) for i, site in enumerate(a) if site.name in at]
    same = all(abs(_relative(i, len(a)) - _relative(k, len(b))) <= NEAR for i, k in shared)
    ordered = all(one[1] < two[1] for one, two in pairwise(shared))
    if 2 * len(shared) >= max(len(a), len(b)) and same and ordered:
        return "name", "", tuple(shared)
    if len(a) == len(b):
        return "position", "names differ", tuple((k, k) for k in range(len(a)))
    why = f"{len(a)} and {len(b)} sites"
    few, many = sorted((len(a), len(b)))
    nearest = [(k, round(_relative(k, few) * (many - 1))) for k in range(few)]
    if few == len(a):
        return "relative depth", why, tuple(nearest)
    return "relative depth", why, tuple((i, k) for k, i in nearest)


def _relative(position: int, count: int) -> float:
    """0 at the first site, 1 at the last."""
    return position / (count - 1) if count > 1 else 0.0


def _sites(
    a: History, b: History, pairs: Sequence[tuple[Site, Site]], steps: Steps | None
) -> tuple[SitePair, ...]:
    if steps is None:
        return ()
    of_a = {name: numbers_at(a, name, steps[0]) for name in PROFILE}
    of_b = {name: numbers_at(b, name, steps[1]) for name in PROFILE}
    return tuple(
        SitePair(
            one.depth,
            two.depth,
            one.name,
            two.name,
            tuple(Pair(n, of_a[n].get(one.name), of_b[n].get(two.name)) for n in PROFILE),
        )
        for one, two in pairs
    )


def _depth(a: History, b: History, index: int, steps: Steps | None) -> tuple[Pair, ...]:
    """The depth numbers of a stream that one run has at least."""
    if steps is None:
        return ()
    column = f"stream {index}"
    pairs = [
        Pair(
            name,
            numbers_at(a, name, steps[0]).get(column),
            numbers_at(b, name, steps[1]).get(column),
        )
        for name in DEPTH
    ]
    return tuple(one for one in pairs if one.a is not None or one.b is not None)
