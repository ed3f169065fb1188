"""Which optimizer steps were real, and what one parameter got in them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Parameter
from skipscope.rule.branch_updates import running
from skipscope.rule.gates import NotMeasurable
from skipscope.rule.medians import row_medians

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: A gradient of less than this share of the usual one is rounding (a bias before a norm).
_NOISE = 1e-6


@dataclass(frozen=True)
class ParameterRows:
    """Gradients and updates at the recorded optimizer steps that were real."""

    parameters: tuple[Parameter, ...]
    steps: npt.NDArray[np.int64]
    taken: Mask  #: (rows, groups): a learning rate above 0
    rates: Floats  #: (rows, groups)
    gradient: Floats  #: (rows, parameters) as norms, NaN where there was none
    update: Floats  #: the same, NaN where not measured
    noise: Floats  #: (rows,) RMS under which a gradient is as good as 0
    at: Mapping[str, int]  #: name to column

    @classmethod
    def of(
        cls,
        parameters: tuple[Parameter, ...],
        gradient: Table,
        update: Table | None,
        lr: Table,
        skipped: Table | None,
        needed: int,
    ) -> ParameterRows:
        """Read the tables.

        Raises:
            NotMeasurable: fewer than `needed` real steps are recorded.
        """
        real = running(lr, skipped)
        place = np.clip(np.searchsorted(lr.steps, gradient.steps), 0, max(len(lr.steps) - 1, 0))
        known = lr.steps[place] == gradient.steps if len(lr.steps) else np.zeros(0, bool)
        rows = np.flatnonzero(known)
        rows = rows[real[place[rows]].any(axis=1)]
        if len(rows) < needed:
            raise NotMeasurable(f"needs {needed} optimizer steps with lr > 0, has {len(rows)}")
        at = {name: column for column, name in enumerate(gradient.columns)}
        held = [at[p.name] for p in parameters]
        norms = gradient.values[rows][:, held]
        moved = np.full(norms.shape, np.nan) if update is None else update.values[rows][:, held]
        sizes = np.sqrt([max(math.prod(p.shape), 1) for p in parameters])
        return cls(
            parameters, gradient.steps[rows], real[place[rows]], lr.values[place[rows]],
            norms, moved, _NOISE * _usual(norms / sizes),
            {p.name: column for column, p in enumerate(parameters)},
        )  # fmt: skip

    def column(self, values: Floats, parameter: Parameter) -> Floats:
        """One parameter's values. Shape: (rows,)."""
        result: Floats = values[:, self.at[parameter.name]]
        return result

    def ever(self, values: Floats) -> Mask:
        """Whether each parameter ever had a value above 0. Shape: (parameters,)."""
        shown: Mask = np.logical_or.reduce(np.nan_to_num(values) > 0, axis=0)
        return shown

    def with_gradient(self, parameter: Parameter) -> Mask:
        """The rows in which its gradient was more than rounding. Shape: (rows,)."""
        size = max(math.prod(parameter.shape), 1)
        rms = np.nan_to_num(self.column(self.gradient, parameter)) / np.sqrt(size)
        shown: Mask = rms > self.noise
        return shown

    def stepped(self, parameter: Parameter) -> Mask:
        """The rows in which its own optimizer stepped, as far as other parameters tell."""
        if parameter.group is None:
            return np.ones(len(self.steps), dtype=bool)
        same = [at for at, p in enumerate(self.parameters) if p.group == parameter.group]
        seen = ~np.isnan(self.gradient[:, same]) | ~np.isnan(self.update[:, same])
        shown: Mask = np.logical_or.reduce(seen, axis=1)
        if parameter.group < self.taken.shape[1]:
            shown &= self.taken[:, parameter.group]
        return shown


def _usual(rms: Floats) -> Floats:
    """The median over the gradients that are not 0, 0 where all are. Shape: (rows,)."""
    shown = np.isfinite(rms) & (np.nan_to_num(rms) > 0)
    return np.nan_to_num(row_medians(np.where(shown, rms, np.nan)))


def as_places(chosen: Iterable[Parameter], every: Sequence[Parameter]) -> tuple[str, ...]:
    """Names of parameters, those of a whole module put together under its path.

    A module's path stands for them when all its parameters are among them, up to the block that
    holds it.
    """
    named = list(chosen)
    have = Counter(path for p in named for path in _above(p.name))
    need = Counter(path for p in every for path in _above(p.name))
    places: dict[str, None] = {}
    for parameter in named:
        place = parameter.name
        for path in _above(parameter.name):
            if place == parameter.block or have[path] < need[path]:
                break
            place = path
        places[place] = None
    return tuple(places)


def _above(name: str) -> list[str]:
    """The module paths that hold a parameter, the nearest first.

    >>> _above("blocks.0.fc.weight")
    ['blocks.0.fc', 'blocks.0', 'blocks']
    """
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]
