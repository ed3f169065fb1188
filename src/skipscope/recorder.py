"""What the monitor measured, on its way into the history: in memory, and on disk while it lasts."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.optim import Optimizer

from skipscope.capture import Captured
from skipscope.find import SiteRegistry
from skipscope.history import History, HistoryError, HistoryWriter
from skipscope.merge import SiteRows, merge_sites
from skipscope.parameters import parameter_table
from skipscope.records import FACTS, REASONS, SUMS, Run, SiteMap, essence
from skipscope.transfer import Transfer

logger = logging.getLogger("skipscope")

#: A running monitor judges by the first and the last so many captures; the file keeps all.
WINDOW = (64, 256)
#: Step facts wait for the next capture at most so many steps.
MAX_PENDING = 1000
_NOT_CALLED = REASONS.index("not called in this step")
_AT = {fact.name: position for position, fact in enumerate(FACTS)}


@dataclass(slots=True)
class _Step:
    """Facts of one step; the loss may still be on its device."""

    values: list[float]
    loss: Tensor | None = None
    factor: float = 1.0  #: of the loss


class Recorder:
    """Passes records to a `History` in memory and, while the disk takes them, to a file.

    Args:
        run: facts about the run; its id names the file.
        directory: where the file lies, None for memory only.
        resume_at: first step of a run that goes on in its old file, where that lies there.
    """

    def __init__(self, run: Run, directory: str | None, resume_at: int | None = None) -> None:
        self.history = History(run, window=WINDOW)
        self.directory = directory
        self._writer: HistoryWriter | None = None
        self._pending: list[_Step] = []
        self._registry = SiteRegistry()
        self._described: tuple[object, ...] = ()
        self._behind = False  #: the file lacks what was refused
        self._told = False
        if directory is not None:
            self._writing(self._open, directory, resume_at)
        try:
            self.tell("set_run", self.history.run)
        except BaseException:
            self.close()
            raise

    def tell(self, method: str, *args: Any) -> None:
        """Calls the same method of the history in memory and of the file."""
        getattr(self.history, method)(*args)
        # Once refused, the file is tried again with each capture: a disk may get room.
        if self._writer is not None and (not self._behind or method == "append_capture"):
            self._writing(self._append, method, *args)

    def write_text(self, name: str, text: str) -> None:
        """Writes a file beside the history's, whole or not at all; the old one stays till then."""
        if self.directory is None:
            return
        path = Path(self.directory, name)
        part = path.with_name(f".{name}.{self.history.run.run_id}")
        try:
            part.write_text(text, encoding="utf-8", errors="replace")
            part.replace(path)
        except OSError as error:
            self._refused(error)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    # ------------------------------------------------------------------ the directory
    def _writing(self, write: Callable[..., None], *args: Any) -> None:
        """Does something to the file; what the disk has against it is told."""
        try:
            write(*args)
        except OSError as error:
            self._behind = True
            self._refused(error)

    def _open(self, directory: str, resume_at: int | None) -> None:
        try:
            self._writer = HistoryWriter(directory, self.history.run.run_id, resume=resume_at)
        except HistoryError as error:
            self._part_ways(directory, error)

    def _append(self, method: str, *args: Any) -> None:
        try:
            if self._behind:
                self._describe()
                logger.info("skipscope writes to %s again", self.directory)
            getattr(self._writer, method)(*args)
        except HistoryError as error:
            self._part_ways(str(self.directory), error)
            getattr(self._writer, method)(*args)

    def _describe(self) -> None:
        """Tells a file that lacks it what memory holds of the run, but for its numbers.

        The largest goes first: a disk that is nearly full is not filled up with the small ones.
        """
        assert self._writer is not None
        self._writer.set_parameters(self.history.parameters, self.history.groups)
        self._writer.set_sites(self.history.sites)
        self._writer.set_run(self.history.run)
        self._behind = False

    def _part_ways(self, directory: str, reason: HistoryError) -> None:
        """Goes on in a file of its own, under an id of its own.

        The other file belongs to another process or to a newer release, or it is damaged.
        """
        other, self._writer = self._writer, None
        if other is not None:
            with suppress(OSError):  # its blocks are with the system
                other.close()
        own = f"{self.history.run.run_id}-{uuid.uuid4().hex[:6]}"
        self.history.set_run(replace(self.history.run, run_id=own))
        self._writer = HistoryWriter(directory, own)
        self._describe()
        logger.warning(
            "skipscope goes on in a file of its own, %s: %s", self._writer.path.name, reason
        )

    def _refused(self, error: OSError) -> None:
        """One message for all that the directory does not take; memory goes on."""
        if not self._told:
            self._told = True
            logger.warning(
                "skipscope cannot write to %s (%s): what lies there can be read, what does not get "
                "there stays in memory only. Give dirpath= a directory with room.",
                self.directory,
                error,
            )

    # ------------------------------------------------------------------ captures and parameters
    def learn(self, captured: Captured) -> SiteMap:
        """The sites as known after one more captured step."""
        return self._registry.site_map(captured.found, captured.unseen, captured.called)

    def record_capture(
        self, step: int, captured: Captured, others: Sequence[tuple[SiteRows, SiteMap | None]] = ()
    ) -> None:
        """Names the sites of a captured step, and records their sums.

        Args:
            step: the optimizer step.
            captured: what this process measured.
            others: of other ranks, what they measured, and their site map where it is new.
        """
        site_map = self.learn(captured)
        if new := [theirs for _, theirs in others if theirs is not None]:
            for theirs in new:
                self._registry.adopt(theirs)
            site_map = self.learn(captured)
        if essence(site_map) != essence(self.history.sites):
            self.tell("set_sites", site_map)
        count = len(site_map.sites)
        sums = np.full((count, len(SUMS)), np.nan)
        have, why = np.zeros(count, np.uint8), np.full(count, _NOT_CALLED, np.uint8)
        rows = merge_sites([captured.rows, *(theirs for theirs, _ in others)])
        index = [self._registry.index(key) for key in rows.keys]
        sums[index], have[index], why[index] = rows.sums, rows.have, rows.why
        self.tell("append_capture", step, sums, have, why)
        self.set_fact("loss_scale", captured.scale)

    def describe_parameters(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> bool:
        """Records the parameter table whenever what it depends on has changed; whether it has."""
        sites = self.history.sites
        depends = (
            id(sites),
            tuple(p.requires_grad for p in model.parameters()),
            tuple(len(g["params"]) for o in optimizers for g in o.param_groups),
        )
        if depends == self._described:
            return False
        self.tell("set_parameters", *parameter_table(model, optimizers, sites))
        self._described = depends
        return True

    # ------------------------------------------------------------------ step facts
    def begin_step(self, rates: Iterable[float], **facts: float) -> None:
        """A new row of step facts; what is not given is unknown."""
        values = [facts.get(fact.name, float("nan")) for fact in FACTS]
        self._pending.append(_Step([*values, *rates]))

    def set_fact(self, name: str, value: float, back: int = 1) -> None:
        """Completes the latest row, or the one `back - 1` before it."""
        if len(self._pending) >= back:
            self._pending[-back].values[_AT[name]] = value

    def set_loss(self, loss: Tensor | float, factor: float = 1.0) -> None:
        """The loss of the latest step; a tensor is moved with the next capture."""
        if not self._pending:
            return
        if isinstance(loss, Tensor):  # kept as it is: most steps are to cost no tensor operation
            self._pending[-1].loss = loss.detach() if loss.requires_grad else loss
            self._pending[-1].factor = factor
        else:
            self.set_fact("loss", float(loss) * factor)

    @property
    def losses(self) -> dict[int, float]:
        """The losses that have arrived and wait to be recorded, by step."""
        return {int(step.values[_AT["step"]]): step.values[_AT["loss"]] for step in self._pending}

    def set_losses(self, losses: Mapping[int, float]) -> None:
        """Puts others in their place."""
        for step in self._pending:
            now = step.values[_AT["loss"]]
            step.values[_AT["loss"]] = losses.get(int(step.values[_AT["step"]]), now)

    def forget(self) -> None:
        """Drops the step facts: another process records them."""
        self._pending.clear()

    def latest(self) -> dict[str, float]:
        """Loss and first learning rate of the latest step, whose row waits for the next one."""
        values = self._pending[-1].values if self._pending else []
        named = {"loss": values[_AT["loss"]]} if values else {}
        return {**named, **({"lr": values[len(FACTS)]} if len(values) > len(FACTS) else {})}

    def drop_step(self) -> None:
        """Forgets the latest row: its step did not happen."""
        if self._pending:
            self._pending.pop()

    @property
    def overdue(self) -> bool:
        """Whether step facts have waited too long for a capture."""
        return len(self._pending) > MAX_PENDING

    def collect(self, transfer: Transfer) -> Callable[[], None]:
        """Puts the losses that wait into a transfer; after its move, call what is returned."""
        waiting = [
            (step, transfer.add(step.loss.reshape(-1)[:1]))
            for step in self._pending
            if step.loss is not None
        ]

        def arrived() -> None:
            for step, numbers in waiting:
                step.values[_AT["loss"]] = float(numbers()[0]) * step.factor
                step.loss = None

        return arrived

    def flush(self, keep: int = 0) -> None:
        """Hands the step facts on, all but the latest `keep` rows, whose losses have arrived."""
        ready = self._pending[: len(self._pending) - keep]
        if ready:
            width = max(len(step.values) for step in ready)
            rows: npt.NDArray[np.float64] = np.full((len(ready), width), np.nan)
            for row, step in zip(rows, ready, strict=True):
                row[: len(step.values)] = step.values
            self.tell("append_facts", rows)
            del self._pending[: len(ready)]

    def close(self) -> None:
        """Closes the file; memory stays."""
        if self._writer is not None:
            self._writing(self._writer.close)
            self._writer = None
