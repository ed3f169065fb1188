"""What the monitor measured, on its way into the history: in memory, and on disk while it lasts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from skipscope.history import History, HistoryWriter
from skipscope.records import FACTS, Run
from skipscope.transfer import Transfer

logger = logging.getLogger("skipscope")

#: A running monitor judges by the first and the last so many captures; the file keeps all.
WINDOW = (64, 256)
#: Step facts wait for the next capture at most so many steps.
MAX_PENDING = 1000
_AT = {fact.name: position for position, fact in enumerate(FACTS)}


@dataclass(slots=True)
class _Step:
    """Facts of one step; the loss may still be on its device."""

    values: list[float]
    loss: Tensor | None = None


class Recorder:
    """Passes records to a `History` in memory and, while the disk takes them, to a file.

    Args:
        run: facts about the run; its id names the file.
        directory: where the file lies, None for memory only.
        resume_at: first step of a run that goes on in its old file.
    """

    def __init__(self, run: Run, directory: str | None, resume_at: int | None = None) -> None:
        self.history = History(run, window=WINDOW)
        self.directory = directory
        self._writer: HistoryWriter | None = None
        self._pending: list[_Step] = []
        if directory is not None:
            try:
                self._writer = HistoryWriter(directory, run.run_id, resume=resume_at)
            except OSError as error:
                self._stop_writing(error)
        self.tell("set_run", run)

    def tell(self, method: str, *args: Any) -> None:
        """Calls the same method of the history in memory and of the file."""
        getattr(self.history, method)(*args)
        if self._writer is not None:
            try:
                getattr(self._writer, method)(*args)
            except OSError as error:
                self._stop_writing(error)

    def _stop_writing(self, error: OSError) -> None:
        """One message; what is on the disk stays readable, and memory goes on."""
        logger.warning(
            "skipscope cannot write to %s (%s): what was recorded before can be read, later captures "
            "stay in memory only. Give dirpath= a directory with room.",
            self.directory,
            error,
        )
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    # ------------------------------------------------------------------ step facts
    def begin_step(self, rates: Iterable[float], **facts: float) -> None:
        """A new row of step facts; what is not given is unknown."""
        values = [facts.get(fact.name, float("nan")) for fact in FACTS]
        self._pending.append(_Step([*values, *rates]))

    def set_fact(self, name: str, value: float, back: int = 1) -> None:
        """Completes the latest row, or the one `back - 1` before it."""
        if len(self._pending) >= back:
            self._pending[-back].values[_AT[name]] = value

    def set_loss(self, loss: Tensor | float) -> None:
        """The loss of the latest step; a tensor is moved with the next capture."""
        if not self._pending:
            return
        if isinstance(loss, Tensor):
            self._pending[-1].loss = loss.detach().reshape(-1)[:1].clone()
        else:
            self.set_fact("loss", float(loss))

    def drop_step(self) -> None:
        """Forgets the latest row: its step did not happen."""
        if self._pending:
            self._pending.pop()

    @property
    def overdue(self) -> bool:
        return len(self._pending) > MAX_PENDING

    def collect(self, transfer: Transfer) -> Callable[[], None]:
        """Puts the losses that wait into a transfer; after its move, call what is returned."""
        waiting = [(step, transfer.add(step.loss)) for step in self._pending if step.loss is not None]

        def arrived() -> None:
            for step, numbers in waiting:
                step.values[_AT["loss"]] = float(numbers()[0])
                step.loss = None

        return arrived

    def flush(self, keep: int = 0) -> None:
        """Hands the step facts on, all but the latest `keep` rows, whose losses have arrived."""
        ready = self._pending[: len(self._pending) - keep]
        if ready:
            width = max(len(step.values) for step in ready)
            rows: npt.NDArray[np.float64] = np.full((len(ready), width), np.nan)
            for row, step in zip(rows, ready):
                row[: len(step.values)] = step.values
            self.tell("append_facts", rows)
            del self._pending[: len(ready)]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


