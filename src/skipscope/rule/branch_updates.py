"""What the optimizer did to the parameters of a branch, read off the parameter tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Parameter
from skipscope.rule.siblings import parameter_role

Floats = npt.NDArray[np.float64]
What = Literal["gradient", "update", "weight"]


def running(lr: Table, skipped: Table | None) -> npt.NDArray[np.bool_]:
    """Where a step was taken with a learning rate above 0. Shape: (steps, groups)."""
    taken = np.nan_to_num(lr.values) > 0
    if skipped is not None and len(skipped.steps) == len(lr.steps):
        taken = taken & ~(np.nan_to_num(skipped.values[:, :1]) > 0)
    return taken


def real_steps(
    steps: npt.NDArray[np.int64],
    taken: npt.NDArray[np.bool_],
    groups: set[int],
    first: int,
    last: int,
) -> int:
    """Steps in [first, last) that were real in one of the groups; in any, where none is named.

    A capture of step t is taken before the update of step t.
    """
    between = (steps >= first) & (steps < last)
    chosen = sorted(group for group in groups if group < taken.shape[1])
    columns = taken[:, chosen] if chosen else taken
    return int((between & columns.any(axis=1)).sum())


@dataclass(frozen=True)
class BranchUpdates:
    """Gradient, update and weight norms of parameters; a table that was not recorded is None."""

    parameters: tuple[Parameter, ...]
    gradient: Table | None
    update: Table | None
    weight: Table | None

    @property
    def known(self) -> bool:
        """Whether gradients and updates were recorded at all."""
        return self.gradient is not None and self.update is not None

    def of(self, what: What, parameter: Parameter, first: int, last: int | None = None) -> Floats:
        """The measured values of one parameter at the steps from `first` to `last`."""
        table: Table | None = getattr(self, what)
        if table is None or parameter.name not in table.columns:
            return np.zeros(0)
        column = table.columns.index(parameter.name)
        rows = (table.steps >= first) & ~table.missing[:, column]
        if last is not None:
            rows &= table.steps <= last
        values: Floats = table.values[rows, column]
        return values

    def largest(self, what: What, parameter: Parameter, first: int, last: int) -> float | None:
        """The largest of these, None where nothing was measured."""
        values = self.of(what, parameter, first, last)
        return float(values.max()) if len(values) else None

    def recorded(self, branch: Sequence[Parameter], first: int, last: int) -> bool:
        """Whether anything of the branch's parameters was recorded between two steps."""
        return any(len(self.of("gradient", p, first, last)) for p in branch)

    def flowing(self, branch: Sequence[Parameter], first: int, last: int) -> bool:
        """Whether in some step most of the branch's parameters had a gradient and moved.

        Then the branch is at work between the captures: it was dropped in those, by chance.
        """
        own = [p for p in branch if p.trainable]
        if not own or self.gradient is None or self.update is None:
            return False
        at = {name: column for column, name in enumerate(self.gradient.columns)}
        columns = [at[p.name] for p in own if p.name in at]
        rows = (self.gradient.steps >= first) & (self.gradient.steps <= last)
        moved = np.nan_to_num(self.gradient.values[rows][:, columns]) > 0
        moved &= np.nan_to_num(self.update.values[rows][:, columns]) > 0
        return bool((2 * moved.sum(axis=1) > len(own)).any())

    def small(
        self, parameter: Parameter, branch: Sequence[Parameter], since: int, share: float
    ) -> bool:
        """Whether gradient and update are far below the siblings', or their own at `since`."""
        return all(self._small(what, parameter, branch, since, share) for what in _MOVES)

    def _small(
        self,
        what: What,
        parameter: Parameter,
        branch: Sequence[Parameter],
        since: int,
        share: float,
    ) -> bool:
        own = self.of(what, parameter, since)
        if not len(own):
            return False
        names = {p.name for p in branch}
        theirs = [
            float(np.median(values[-5:]))
            for other in self.parameters
            if other.trainable
            and other.name not in names
            and parameter_role(other) == parameter_role(parameter)
            and len(values := self.of(what, other, since))
        ]
        now = float(np.median(own[-5:]))
        return now < share * own[0] or (bool(theirs) and now < share * float(np.median(theirs)))


_MOVES: tuple[What, What] = ("gradient", "update")
