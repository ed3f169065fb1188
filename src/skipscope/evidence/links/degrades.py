"""Link 2: without shortcuts, more depth fits the training set worse."""

from __future__ import annotations

from skipscope.evidence.link import (
    POINT,
    Kind,
    Pair,
    at_least,
    decided,
    every_seed,
    not_applicable,
    one_depth,
    points,
    straw_man,
    times,
)
from skipscope.evidence.runs import by_seed, error, losses
from skipscope.evidence.statistics import onset, paired, rank_correlation, ratio
from skipscope.evidence.verdict import Answer
from skipscope.names import counted

WORSE = 5 * POINT  #: of training error, deepest over shallowest
LOSS = 2.0  #: times the loss
RISING = 0.8  #: rank correlation of depth and loss


def degrades(pair: Pair) -> Answer:
    """Compare the deepest plain nets with the shallowest, and look at all between."""
    if pair.plain.straw_man:
        return straw_man(pair)
    found = pair.depths(pair.plain)
    if len(found) < 2:
        return one_depth(pair.plain, found)
    low, high = found[0], found[-1]
    shallow, deep = (by_seed((r, error(r)) for r in pair.runs(pair.plain, d)) for d in (low, high))
    rises = paired(deep, shallow)
    if not rises:
        return not_applicable(f"no seed ran at both depth {low} and depth {high}")
    each = [losses(pair.runs(pair.plain, depth)) for depth in found]
    least, larger = min(rises.values()), ratio(each[-1].median, each[0].median)
    rising, seeds = rank_correlation(found, each), counted(len(rises), "seed")
    every = every_seed(len(rises))
    checks = [
        at_least(
            f"training error, depth {high} less depth {low}, least of {seeds}",
            100 * least, 100 * WORSE, points(least), "5 points",
        ),
        at_least(
            f"median training loss, depth {high} over depth {low}",
            larger, LOSS, times(larger), "x2",
        ),
        at_least(
            "rank correlation of depth and loss", rising, RISING,
            f"{rising:.2f}" if rising == rising else "undefined, all losses tie", "0.8",
        ),
    ]  # fmt: skip
    first = onset(found, each)
    notes = [f"onset: depth {first}" if first else f"onset: no depth is worse in {every}"]
    lost = {depth: one.diverged for depth, one in zip(found, each, strict=True) if one.diverged}
    notes += [f"diverged at depth {depth}: {counted(n, 'run')}" for depth, n in lost.items()]
    shown = (
        f"from depth {low} to {high} training error {points(least)} or more in {every}, loss "
        f"{times(larger)}; {notes[0]}"
    )
    return decided(checks, shown, notes)


DEGRADES = Kind(
    name="plain degrades",
    claim="the plain arm fits the training set worse the deeper it is",
    criterion=(
        "training error at the deepest at least 5 points above that at the shallowest in every "
        "seed, and median loss at least twice, and rank correlation of depth and loss at least 0.8"
    ),
    ask=degrades,
)
