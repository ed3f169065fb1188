"""Scales that weight decay has shrunk: norm weights, LayerScale, the scalars of ReZero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from skipscope.history import Table
from skipscope.records import Group, Parameter
from skipscope.rule import listed

#: A scale that is left with less of its first size than this has shrunk.
_LEFT = 0.5


def decayed_scales(
    branch: Iterable[Parameter], groups: Sequence[Group], weights: Table | None
) -> tuple[str, ...]:
    """Names of a branch's scales in groups with weight decay that lost half of their size or more.

    A scale has one axis at most and is no bias. What weight decay alone does to a scale that no
    gradient holds up is exponential; a scale that only gets smaller while it learns looks alike.
    """
    decay = {group.index for group in groups if float(group.options.get("weight_decay") or 0) > 0}
    return tuple(
        p.name
        for p in branch
        if p.trainable
        and p.group in decay
        and len(p.shape) < 2
        and not p.name.endswith("bias")
        and _shrunk(p.name, weights)
    )


def _shrunk(name: str, weights: Table | None) -> bool:
    if weights is None or name not in weights.columns:
        return False
    column = weights.columns.index(name)
    values = weights.values[~weights.missing[:, column], column]
    started = np.flatnonzero(values > 0)
    return bool(len(started)) and bool(values[-1] < _LEFT * values[started[0]])


def decay_cause(names: Sequence[str]) -> str:
    """What a finding says of them; nothing where there are none."""
    if not names:
        return ""
    return f"weight decay on {listed(names)}: less than half of the first size is left"
