"""What can be said of any arms without a chain: a table, a ranking, a look at validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, groupby, pairwise

from skipscope.evidence.link import POINT, times
from skipscope.evidence.outcome import Evidence, Outcome
from skipscope.evidence.runs import (
    arms_of,
    by_seed,
    canonical,
    depths,
    errors,
    loss,
    losses,
    of_arm,
    rates,
    validation_error,
)
from skipscope.evidence.statistics import (
    at_step,
    keeps,
    median,
    onset,
    paired,
    rank_correlation,
    ratio,
    spread,
    tied,
)
from skipscope.evidence.verdict import Comparison, Generalisation, Place, Row

EQUAL, APART = 1 * POINT, 2 * POINT  #: in training, in validation
FLAT = 2.0  #: times by which a loss has to grow or fall with depth to be called so


def rows(evidence: Evidence) -> tuple[Row, ...]:
    """Every arm at every depth and rate that ran, in the study's order of arms."""
    return tuple(
        _row(evidence, arm.name, arm.pair, depth, rate)
        for arm in evidence.arms
        for depth in depths(run for run in evidence.outcomes if run.cell.arm == arm.name)
        for rate in rates(evidence, arm.name, depth)
    )


def _row(evidence: Evidence, arm: str, pair: str, depth: int, rate: float) -> Row:
    runs = of_arm(evidence, arm, depth, rate)
    batch_losses = [r.train_loss_batch for r in runs if r.train_loss_batch is not None]
    batch_errors = [r.train_error_batch for r in runs if r.train_error_batch is not None]
    return Row(
        arm=arm,
        pair=pair,
        depth=depth,
        lr=rate,
        main=rate == canonical(evidence.lr),
        loss=losses(runs),
        error=errors(runs),
        loss_batch=spread(batch_losses) if batch_losses else None,
        error_batch=spread(batch_errors) if batch_errors else None,
        validation_loss=spread([run.validation_loss for run in runs]),
        validation_error=spread([validation_error(run) for run in runs]),
        steps_to_90=_steps_to_90(runs),
        seconds=median([run.seconds for run in runs]),
    )


def _steps_to_90(runs: Sequence[Outcome]) -> str:
    lost = sum(run.steps_to_90 == math.inf and not run.finite for run in runs)
    return at_step([run.steps_to_90 for run in runs], max(run.steps for run in runs), lost)


def comparison(evidence: Evidence, pair: str) -> Comparison | None:
    """The arms of a pair by training loss at each depth; None when fewer than two ran."""
    names = [arm.name for arm in arms_of(evidence, pair)]
    by_depth: dict[int, list[str]] = {}
    for name in names:
        for depth in depths(of_arm(evidence, name)):
            by_depth.setdefault(depth, []).append(name)
    shared = {depth: own for depth, own in sorted(by_depth.items()) if len(own) > 1}
    if not shared:
        return None
    places = tuple((depth, _places(evidence, own, depth)) for depth, own in shared.items())
    notes = [note for name in names if (note := _trend(evidence, name))]
    return Comparison(pair, places, (*_first(places), *notes), _only_validation(evidence, shared))


def _places(evidence: Evidence, names: Sequence[str], depth: int) -> tuple[Place, ...]:
    runs = {name: of_arm(evidence, name, depth) for name in names}
    found = {name: losses(runs[name]) for name in names}
    order = sorted(names, key=lambda name: found[name].median)
    after = {name: runs[other] for name, other in pairwise(order)}
    return tuple(
        Place(
            arm=name,
            tied=tuple(o for o in order if o != name and tied(found[o], found[name])),
            loss=found[name].median,
            error=errors(runs[name]).median,
            ahead=_ahead(runs[name], after[name]) if name in after else "",
        )
        for name in order
    )


def _ahead(own: Sequence[Outcome], other: Sequence[Outcome]) -> str:
    """In how many of the seeds that both have the first is lower."""
    first, second = (by_seed((run, loss(run)) for run in runs) for runs in (own, other))
    differences = paired(first, second).values()
    return f"{sum(one < 0 for one in differences)} of {len(differences)}"


def _first(places: Sequence[tuple[int, Sequence[Place]]]) -> list[str]:
    """Who leads where, when no arm does at every depth."""
    first = [(depth, {own[0].arm, *own[0].tied}) for depth, own in places]
    if set.intersection(*(arms for _, arms in first)):
        return []  # one that leads everywhere, alone or in a tie
    # By name: the order within a tie says nothing.
    leaders = [(depth, " = ".join(sorted(arms))) for depth, arms in first]
    told = []
    for name, group in groupby(leaders, key=lambda one: one[1]):
        along = [depth for depth, _ in group]
        told.append(f"{name} at {' to '.join(map(str, sorted({along[0], along[-1]})))}")
    return [f"which arm is best depends on depth: {', '.join(told)}"]


def _trend(evidence: Evidence, name: str) -> str:
    """What depth does to one arm."""
    runs = of_arm(evidence, name)
    found = depths(runs)
    if len(found) < 2:
        return ""
    each = [losses(of_arm(evidence, name, depth)) for depth in found]
    change = ratio(each[-1].median, each[0].median)
    rising = rank_correlation(found, each)
    first = onset(found, each)
    words = [f"loss {times(change)} from depth {found[0]} to {found[-1]}"]
    if rising == rising:  # not NaN: something rises or falls
        words.append(f"rank correlation {rising:+.2f}")
    words.append(f"onset at depth {first}" if first else "no onset")
    lost = sum(one.diverged for one in each)
    return f"{name}: {', '.join(words)}" + (f", {lost} of {len(runs)} diverged" if lost else "")


def generalisation(
    depth: int, arms: tuple[str, str], first: Sequence[Outcome], second: Sequence[Outcome]
) -> Generalisation:
    """Two arms at one depth, training beside validation."""
    train = (errors(first).median, errors(second).median)
    held_out = (
        median([validation_error(run) for run in first]),
        median([validation_error(run) for run in second]),
    )
    equal = keeps(abs(train[0] - train[1]), EQUAL)
    apart = not keeps(abs(held_out[0] - held_out[1]), APART)
    return Generalisation(depth, arms, train, held_out, equal and apart)


def _only_validation(
    evidence: Evidence, shared: dict[int, list[str]]
) -> tuple[Generalisation, ...]:
    """Arms that fit alike and generalise differently, depth by depth."""
    found = (
        generalisation(depth, two, *(of_arm(evidence, name, depth) for name in two))
        for depth, names in shared.items()
        for two in combinations(names, 2)
    )
    return tuple(one for one in found if one.only_validation)
