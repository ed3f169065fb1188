"""The monitor of one training of a study: it captures the steps that the study reads, no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from skipscope.history import History
from skipscope.judge import Judge
from skipscope.loggers import Loggers
from skipscope.monitor import Monitor
from skipscope.schedule import Schedule

#: Steps that are read, besides the last one.
READ = (0, 1, 10, 30, 100)


def read_steps(steps: int) -> frozenset[int]:
    """The steps that are read in a training of so many.

    >>> sorted(read_steps(330))
    [0, 1, 10, 30, 100, 329]
    """
    return frozenset(step for step in (*READ, steps - 1) if 0 <= step < steps)


@dataclass
class _Chosen(Schedule):
    """These steps, whatever the monitor's own habits."""

    steps: frozenset[int] = field(default_factory=frozenset)

    def captures(self, step: int) -> bool:
        return step in self.steps

    def updates(self, step: int) -> bool:
        return step in self.steps


class _Silent(Judge):
    """Judges when asked: nobody watches a cell of a study while it trains."""

    def at_capture(
        self, history: History, loggers: Loggers, step: int, facts: Mapping[str, float]
    ) -> None:
        return


class CellMonitor(Monitor):
    """Writes a normal history of one cell."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, folder: Path, steps: frozenset[int]
    ) -> None:
        super().__init__(model, optimizer, dirpath=str(folder), report=[])
        self._schedule = _Chosen(self.options.every_n_steps, steps=steps)
        self._judge = _Silent(self.options)
