"""The arms of a study: one way to write the sum, to start, and to train."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from torch import Tensor, nn

from skipscope.evidence.outcome import ArmFacts, Role

#: Changes a model that was just made; the second argument is an example of its inputs.
Start = Callable[[nn.Module, Tensor], Any]
Factory = Callable[[int], nn.Module]  #: depth -> model


@dataclass(frozen=True)
class Arm:
    """One arm.

    Args:
        facts: what it is called, and what it is for.
        shortcut: whether s is added; without it y = F, or P(x) + F at kept projections. False of
            an arm with the role "plain".
        branch_scale: a of y = s + a F.
        start: changes the model before it trains; None leaves it as the factory made it.
        factory: depth -> model, where it is not the study's.
        warmup: steps over which the learning rate rises to its value.
        depths: at which it is trained; None: at all of the study's.
        on_grid: whether the grid of learning rates is tried with it.
    """

    facts: ArmFacts
    shortcut: bool = True
    branch_scale: float = 1.0
    start: Start | None = None
    factory: Factory | None = None
    warmup: int = 0
    depths: tuple[int, ...] | None = None
    on_grid: bool = False

    @property
    def name(self) -> str:
        """Short, also in the names of folders."""
        return self.facts.name

    @property
    def intervenes(self) -> bool:
        """Whether its sum is another than the model's own."""
        return not self.shortcut or self.branch_scale != 1.0

    def at(self, depths: Sequence[int]) -> tuple[int, ...]:
        """Those of the study's depths at which it is trained."""
        return tuple(d for d in depths if self.depths is None or d in self.depths)


def scaled(branch_scale: float, name: str = "", pair: str = "model") -> Arm:
    """The residual model with y = s + a F.

    Raises:
        ValueError: a is not finite.

    >>> scaled(0.1).name
    'scaled-0.1'
    """
    if not math.isfinite(branch_scale):
        raise ValueError(f"branch_scale must be a finite number, got {branch_scale!r}")
    facts = ArmFacts(
        name or f"scaled-{branch_scale:g}",
        f"residual, branches times {branch_scale:g}",
        "start",
        pair,
        f"shortcut, and branches times {branch_scale:g}",
        near_identity=abs(branch_scale) < 1,
    )
    return Arm(facts, branch_scale=branch_scale)


_KNOWN = {
    "plain": Arm(
        ArmFacts("plain", "plain: no shortcuts", "plain", "model"), shortcut=False, on_grid=True
    ),
    "residual": Arm(
        ArmFacts("residual", "residual: the model as it is", "residual", "model", "shortcut"),
        on_grid=True,
    ),
    "idle": Arm(
        ArmFacts(
            "idle", "residual, branches times 0", "idle", "model", "shortcut, and branches times 0"
        ),
        branch_scale=0.0,
    ),
}


def choose(arms: Sequence[str | Arm]) -> tuple[Arm, ...]:
    """Arms by name, or as they are.

    Raises:
        ValueError: a name is unknown or stands twice, an arm does not do what its role says, or
            there is no plain or no residual arm.

    >>> [arm.name for arm in choose(["plain", "residual", scaled(0.5)])]
    ['plain', 'residual', 'scaled-0.5']
    """
    if isinstance(arms, str):
        raise ValueError(f"arms must be a list of them, as ('plain', 'residual'), got {arms!r}")
    unknown = [arm for arm in arms if not isinstance(arm, Arm) and arm not in _KNOWN]
    if unknown:
        raise ValueError(f"arms: no arm {unknown[0]!r}, only {', '.join(_KNOWN)}, or an Arm")
    chosen = tuple(_KNOWN[arm] if isinstance(arm, str) else arm for arm in arms)
    names = [arm.name for arm in chosen]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"arms: {name!r} stands twice; give each arm a name of its own")
        if not name or not all(c.isalnum() or c in "_.-" for c in name):
            raise ValueError(f"arms: a name is letters, digits and any of _ . -, got {name!r}")
    for arm in chosen:
        _as_its_role_says(arm)
    for role in ("plain", "residual"):
        if all(arm.facts.role != role for arm in chosen):
            raise ValueError(f"arms: a study compares, and needs an arm with the role {role!r}")
    return chosen


def _as_its_role_says(arm: Arm) -> None:
    """An arm is reported by its role, so its sum must be that of the role.

    Raises:
        ValueError: it is another.
    """
    role, told = arm.facts.role, f"arms: {arm.name!r} has the role {arm.facts.role!r}"
    if role not in get_args(Role):
        raise ValueError(f"{told}, which is none of {', '.join(get_args(Role))}")
    if role == "plain" and arm.shortcut:
        raise ValueError(
            f"{told}, and keeps its shortcuts: give Arm(..., shortcut=False), which leaves out "
            "those of the residual model"
        )
    if role not in ("plain", "other") and not arm.shortcut:
        raise ValueError(
            f"{told}, and leaves out its shortcuts (shortcut=False); without them its role is "
            "'plain' or 'other'"
        )
    made = arm.factory is not None or arm.start is not None  # which may be what idles it
    if role == "idle" and arm.branch_scale != 0 and not made:
        raise ValueError(
            f"{told}, and its branches are added times {arm.branch_scale:g}: give branch_scale=0"
        )


def restarted(arm: Arm, start: Start, words: str) -> Arm:
    """The same arm with another start, which its title says."""
    facts = replace(arm.facts, title=f"{arm.facts.title}, {words}")
    return replace(arm, facts=facts, start=start)
