"""Link 6: how near to the identity a net starts decides, in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skipscope.evidence.link import Kind, Pair, decided, not_applicable, unmet
from skipscope.evidence.outcome import ArmFacts, Outcome
from skipscope.evidence.runs import EARLY, by_seed, depths_text, ended_well, loss, losses
from skipscope.evidence.statistics import paired
from skipscope.evidence.verdict import Answer, Check
from skipscope.names import counted
from skipscope.reports._text import number

DEEP = 50  #: from which depth on a start decides


def ablation(pair: Pair) -> Answer:
    """Compare near-identity starts with the usual one, and the too small with the right one."""
    starts = [arm for role in ("control", "residual", "start") for arm in pair.others(role)]
    usual = next((arm for arm in starts if not arm.near_identity), None)
    near = [arm for arm in starts if arm.near_identity]
    if usual is None or not near:
        return not_applicable(
            f"{'no' if usual else 'every'} arm is marked as starting near the identity "
            "(near_identity=True in its ArmFacts)"
        )
    found = [_near(pair, arm, usual, d) for arm in near for d in _deep(pair, arm, usual)]
    checks = [one.check for one in found]
    if not checks:
        return not_applicable(f"these starts share no depth of {DEEP} or more")
    failed = [check for check in checks if not check.met]
    if failed:
        return Answer("not shown", unmet(failed), tuple(checks))
    small = [
        _small(pair, arm, depth)
        for arm in pair.others("too-small")
        for depth in _deep(pair, arm, pair.residual)
    ]
    if not small:
        return not_applicable(
            f"{_told(found)}; but no start that is marked as too near the identity (role "
            "'too-small') ran",
            checks,
        )
    shown = f"{_told(found)}; {_told(small)}"
    return decided([*checks, *(one.check for one in small)], shown, _idle(pair))


@dataclass(frozen=True)
class Start:
    """A start against another at one depth."""

    against: str
    depth: int
    check: Check


def _told(found: Sequence[Start]) -> str:
    """Each pair of starts once, with what was seen at its depths."""
    by_pair: dict[str, dict[str, list[str]]] = {}
    for one in found:
        seen = by_pair.setdefault(one.against, {})
        seen.setdefault(one.check.text, []).append(str(one.depth))
    return "; ".join(
        f"{against}: "
        + ", ".join(f"{text} ({depths_text(depths)})" for text, depths in seen.items())
        for against, seen in by_pair.items()
    )


def _deep(pair: Pair, *arms: ArmFacts) -> list[int]:
    return [depth for depth in pair.depths(*arms) if depth >= DEEP]


def _near(pair: Pair, arm: ArmFacts, usual: ArmFacts, depth: int) -> Start:
    """Fewer runs that diverge, or a lower loss in every seed, at step 30 and at the end."""
    own, other = pair.runs(arm, depth), pair.runs(usual, depth)
    lost, others_lost = (sum(not ended_well(run) for run in runs) for runs in (own, other))
    early = _lower(own, other, loss_early)
    end = _lower(own, other, loss)
    fewer = lost < others_lost
    text = (
        f"{lost} of {len(own)} against {others_lost} of {len(other)} diverged"
        if fewer
        else f"lower loss in {early[0]} of {counted(early[1], 'seed')} at step {EARLY}, "
        f"{end[0]} of {end[1]} at the end"
    )
    met = fewer or all(lower == seeds > 0 for lower, seeds in (early, end))
    limit = "fewer that diverge, or a lower loss in every seed at both"
    against = f"{arm.name} against {usual.name}"
    check = Check(f"{against} at depth {depth}", None, text, limit, met)
    return Start(against, depth, check)


def _lower(
    own: tuple[Outcome, ...], other: tuple[Outcome, ...], of: Callable[[Outcome], float]
) -> tuple[int, int]:
    """Seeds in which the first is lower, of how many; one without a number is not counted."""
    first, second = (
        by_seed((run, value) for run in runs if not math.isnan(value := of(run)))
        for runs in (own, other)
    )
    differences = paired(first, second).values()
    return sum(one < 0 for one in differences), len(differences)


def loss_early(run: Outcome) -> float:
    """Loss of the last batch read up to step 30; inf where it overflowed, NaN where none was."""
    read = [one for one in run.readings if 0 < one.step <= EARLY and one.loss is not None]
    if not read:
        return math.nan
    value = max(read, key=lambda one: one.step).loss
    return value if value is not None and math.isfinite(value) else math.inf


def _small(pair: Pair, arm: ArmFacts, depth: int) -> Start:
    """The too small start ends above the residual arm, in every seed."""
    own, right = pair.runs(arm, depth), pair.runs(pair.residual, depth)
    lower, seeds = _lower(right, own, loss)
    text = (
        f"loss {number(losses(own).median)} against {number(losses(right).median)}, worse in "
        f"{lower} of {counted(seeds, 'seed')}"
    )
    against = f"{arm.name} against {pair.residual.name}"
    what, met = f"{against} at depth {depth}", lower == seeds > 0
    return Start(against, depth, Check(what, None, text, "worse in every seed", met))


def _idle(pair: Pair) -> list[str]:
    """Where the same net with no branches at all ends: what a too small start comes to."""
    return [
        f"alpha = 0 ends at loss {number(losses(pair.runs(arm, depth)).median)} at depth {depth}"
        for arm in pair.others("idle")
        for depth in _deep(pair, arm)
    ]


ABLATION = Kind(
    name="initialisation ablation agrees",
    claim="starting near the identity helps deep nets, and starting too near starves them",
    criterion=(
        "at every depth of 50 or more, each near-identity start has fewer runs that are not finite "
        "than the He start, or in every seed a lower loss at step 30 and at the end; the too-small "
        "start ends with a higher loss than the residual arm in every seed"
    ),
    ask=ablation,
)
