"""Whether a plain arm has a chance: a start that lives by its shortcuts has no gradient without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from skipscope.evidence.store import StudyError
from skipscope.study.arms import Arm, Start, restarted
from skipscope.study.data import Batches
from skipscope.study.plan import Plan, one_thread, own_random_state
from skipscope.study.readings import Blocks, gradient_norm, norm
from skipscope.study.starts import he

#: What becomes of a plain arm whose start has no gradient: refused, drawn anew, or let be.
PlainStart = Literal["refuse", "he", "keep"] | Start

#: A block whose gradient is less than this share of that at the outputs has none to speak of. In
#: the MLP without norm He's start keeps .004 to .16 at depth 100, 1/sqrt(N) 1e-17 to 6e-16 at 50.
FLOOR = 1e-4


@dataclass(frozen=True)
class Look:
    """What a plain arm shows before it trains, at one depth."""

    depth: int
    weakest: float  #: smallest gradient norm of a block, over that at the outputs
    cut: int  #: shortcuts left out
    sites: int


def look(plan: Plan, arm: Arm, depth: int, seed: int) -> Look:
    """One forward and backward of a plain arm on the first batch.

    Raises:
        StudyError: it has no shortcut to leave out.
    """
    with own_random_state(), one_thread():
        model, _ = plan.build(arm, depth, seed)
        sites = plan.sites(model)
        if plan.projections == "keep" and all(site.kind == "projection" for site in sites):
            raise StudyError(
                f"arm {arm.name!r} would be no plain one: at depth {depth} every shortcut is a "
                "projection, and these are kept; projections='cut' leaves them out too"
            )
        blocks = Blocks(model, sites, plan.example())
        data = plan.data.to(plan.device)
        samples = Batches(len(data.x_train), plan.batch_size, 1, seed).order[0]
        with plan.intervened(arm, model) as plain:
            outputs = model.train()(data.x_train[samples])
            if isinstance(outputs, Tensor):
                outputs.retain_grad()
            plan.loss_fn(outputs, data.y_train[samples]).backward()
        # Where the model returns something else, the size that a mean loss has there will do.
        there = outputs.grad if isinstance(outputs, Tensor) else None
        at_outputs = norm([there]) if there is not None else None
        # A branch that has nothing to train, by its nature or frozen, needs no gradient.
        trained = [own for own in blocks.branches if any(p.requires_grad for p in own)]
        weakest = min((gradient_norm(branch) or 0.0 for branch in trained), default=math.inf)
        cut = sum(not plain.arm.keeps_shortcut(site) for site in plain.sites)
        return Look(depth, weakest / (at_outputs or 1.0), cut, len(sites))


def with_chance(
    plan: Plan, depths: Sequence[int], seed: int, wanted: PlainStart
) -> tuple[Plan, dict[str, str]]:
    """The plan with plain arms that can train, and what there is to say of them.

    Raises:
        StudyError: a plain arm starts without a gradient, and is neither to be drawn anew nor kept.
    """
    notes: dict[str, str] = {}
    arms = list(plan.arms)
    for place, arm in enumerate(plan.arms):
        if arm.facts.role == "plain":
            arms[place] = _examined(plan, arm, arm.at(depths), seed, wanted, notes)
            if arms[place].start is not arm.start:
                arms = [_starting_otherwise(one, arm.facts.pair) for one in arms]
    return replace(plan, arms=tuple(arms)), notes


def _starting_otherwise(arm: Arm, pair: str) -> Arm:
    """An arm whose pair's plain arm was drawn anew: more than the shortcut differs now."""
    facts = arm.facts
    if facts.pair != pair or facts.role == "plain":
        return arm
    return replace(arm, facts=replace(facts, differs=f"{facts.differs}, and start of the branches"))


def _examined(
    plan: Plan,
    arm: Arm,
    depths: Sequence[int],
    seed: int,
    wanted: PlainStart,
    notes: dict[str, str],
) -> Arm:
    said = []
    looks = [look(plan, arm, depth, seed) for depth in depths]
    worst = min(looks, key=lambda one: one.weakest)
    if worst.weakest < FLOOR and wanted == "keep":
        said = [f"start kept, though {_words(worst)}: no fair comparison"]
        arm = replace(arm, facts=replace(arm.facts, straw_man=_words(worst)))
    elif worst.weakest < FLOOR:
        again = _drawn_anew(arm, wanted)
        second = [look(plan, again, depth, seed) for depth in depths] if again else []
        if again is None or min(one.weakest for one in second) < FLOOR:
            raise StudyError(_refusal(arm, worst, again is not None))
        said = [f"start drawn anew: as the factory made it, {_words(worst)}"]
        arm, looks = again, second
    shares = {f"{one.cut} of {one.sites} at depth {one.depth}" for one in looks}
    said.append(f"shortcuts cut: {', '.join(sorted(shares, key=_depth_of))}")
    notes[arm.name] = "; ".join(said)
    return arm


def _depth_of(share: str) -> int:
    return int(share.rpartition(" ")[2])


def _drawn_anew(arm: Arm, wanted: PlainStart) -> Arm | None:
    if wanted == "he":
        return restarted(arm, he, "branches drawn anew after He")
    return restarted(arm, wanted, "branches drawn anew") if callable(wanted) else None


def _words(one: Look) -> str:
    share = f"only {one.weakest:.0e}" if one.weakest else "nothing"
    return f"at depth {one.depth} a block has {share} of the gradient at the outputs as it starts"


def _refusal(arm: Arm, worst: Look, tried: bool) -> str:
    again = " after it was drawn anew," if tried else ""
    return (
        f"arm {arm.name!r} would be a straw man:{again} without shortcuts its start leaves no "
        f"gradient ({_words(worst)}). So it is with a start made for shortcuts (zero-init, "
        "1/sqrt(N), ReZero, LayerScale), and with PyTorch's default one in a deep net without "
        "norm. plain_start='he' draws the branches of the plain arm anew after He, a function "
        "(model, x) does it otherwise, and 'keep' trains it all the same; then no link "
        "compares with it"
    )
