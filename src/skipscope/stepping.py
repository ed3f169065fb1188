"""One optimizer step: attaches, measures, meets the other ranks, records, judges."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from skipscope.attendance import Attendance
from skipscope.example import check_module
from skipscope.guard import Guard
from skipscope.history import History
from skipscope.judge import Judge
from skipscope.loggers import Loggers
from skipscope.merge import merge_losses
from skipscope.options import Options
from skipscope.recorder import Recorder
from skipscope.runs import describe_run, unwrapped
from skipscope.sampling import Measured, Sampling
from skipscope.schedule import Schedule
from skipscope.together import Parcel
from skipscope.transfer import Transfer

#: What `summary` holds, in the order in which the first rank passes it on.
SUMMARY = ("warnings", "errors", "r_median", "r_max")


class Steps:
    """Follows a training step by step; every entry point holds the guard.

    Args:
        model: the model, wrapped as it is trained.
        optimizers: those that train it.
        options: the user's.
        scaler: the GradScaler of mixed-precision training.
        loggers: TensorBoard SummaryWriters or Lightning loggers.

    Raises:
        TypeError: the model is no `nn.Module`.
        ValueError: a rule code or threshold is unknown.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: list[Optimizer],
        options: Options,
        scaler: Any,
        loggers: Sequence[object],
    ) -> None:
        check_module("Monitor", model)
        self.options = options
        self._judge = Judge(options)
        self.model = unwrapped(model)
        self.optimizers = optimizers
        self.scaler = scaler
        self.loggers = Loggers(
            loggers, name=options.name, parameters=options.updates == "parameters"
        )
        self.step_count = 0
        self.epoch = 0
        self.in_step = False
        self._guard = Guard(options.on_error)
        self._schedule = Schedule(options.every_n_steps, options.preset == "debug")
        self._sampling = Sampling(self.model, options, self._guard)
        self._attendance = Attendance(self.model, model, self._guard, options.name)
        self._recorder: Recorder | None = None
        self._resume: dict[str, Any] = {}
        self._started: float | None = None
        self._host = 0.0
        self._begun = False  #: whether a scheduled capture has ended
        self._due = False  #: whether this step's capture is scheduled: the same on every rank

    # ------------------------------------------------------------------ one optimizer step
    def begin_step(self, *, step: int | None = None, global_step: int | None = None) -> None:
        """Attaches what the schedules want for this step; nothing on most steps."""
        self.abandon_step()
        if step is not None:
            self.step_count = step
        # Also when this monitor is off already: the others ask it to their meetings.
        if not self._guard.finish("the start of a step", self._attendance.takes_part):
            return
        self.in_step, self._due = True, False
        try:
            self._guard.finish("the start of a step", self._announce)
            self._guard.call("the start of a step", self._begin, global_step)
        except BaseException:  # Ctrl-C, or an error that is to be raised: the step never began
            self.abandon_step()
            raise

    def end_step(self, loss: Tensor | float | None = None, factor: float = 1.0) -> bool:
        """Detaches and records; True when this step was captured.

        Args:
            loss: the step's loss, where the caller has it; else that of a captured backward. A
                tensor is read with the next capture and must not be written to before that.
            factor: what the loss is multiplied with, on the host.
        """
        where = "the end of a step"
        start = time.perf_counter()
        try:
            if not self.in_step:
                return False
            measured = self._guard.call(where, self._measure, loss, factor)
            parcels = self._guard.finish(where, self._meet, measured)
            if parcels is None:  # it failed on the way there
                self._guard.finish(where, self._withdraw)
            return bool(self._guard.call(where, self._record, measured, parcels or [], start))
        except BaseException:  # Ctrl-C, or an error that is to be raised
            self._guard.finish(where, self._withdraw)
            raise
        finally:
            self._begun = self._begun or (self.in_step and self._due)
            self.in_step = False
            self.step_count += 1
            self._sampling.close()

    def abandon_step(self) -> None:
        """Takes off what a step that never ended left attached."""
        where = "the end of a step"
        if self.in_step:
            self.in_step = False
            self._started = None
            with ExitStack() as stack:  # what comes first here is done last
                if self._recorder is not None:
                    stack.callback(self._guard.finish, where, self._recorder.drop_step)
                stack.callback(self._guard.finish, where, self._withdraw)
                stack.callback(self._sampling.close)

    def pause(self) -> None:
        """What follows until the next step (a validation) is no part of a step's time."""
        self.abandon_step()
        self._started = None

    def gradients_ready(
        self, optimizer: Optimizer | None = None, scale: Tensor | float | None = None
    ) -> None:
        """Reads the gradients now. In a plain loop that clips, call it before clipping.

        Without this call they are read when the optimizer steps, clipped or not.
        """
        some = [optimizer] if optimizer is not None else self.optimizers
        self._guard.call("reading gradients", self._sampling.gradients_ready, some, scale)

    def _begin(self, global_step: int | None) -> None:
        now = time.perf_counter()
        recorder = self._ready_recorder()
        if self._started is not None:
            recorder.set_fact("seconds", _elapsed(self._started, now))
        self._started = now
        rates = [_number(g["lr"]) for o in self.optimizers for g in o.param_groups]
        recorder.begin_step(
            rates,
            step=self.step_count,
            epoch=self.epoch,
            global_step=self.step_count if global_step is None else global_step,
            loss_scale=1.0 if self.scaler is None else float("nan"),  # a capture reads it
            captured=0.0,
            host_ms=0.0,
        )
        if self._due:
            self._sampling.open_capture(
                recorder.history.run.uncaptured,
                self.loss_scale,
                survey=not self._begun,
                speaks=self._attendance.first,
            )
        if self.options.updates != "off" and self._schedule.updates(self.step_count):
            shards = self._attendance.shards
            if self._attendance.first or shards.any:
                # Over shards all ranks must choose alike, also while one knows less of the blocks.
                table = () if shards.any else self.history.parameters
                self._sampling.open_updates(self.optimizers, table)
        self._host = _elapsed(now, time.perf_counter())

    def _measure(self, loss: Tensor | float | None, factor: float) -> Measured | None:
        """What was seen of this step, moved to the host; None where nothing was attached."""
        recorder = self._ready_recorder()
        if loss is not None:
            recorder.set_loss(loss, factor)
        if not (self._sampling.attached or self._due or recorder.overdue):
            return None
        transfer = Transfer()
        arrived = recorder.collect(transfer)
        collected = self._sampling.collect(transfer)
        transfer.move()
        arrived()
        measured = collected()
        if measured.captured is not None and loss is None:
            recorder.set_fact("loss", measured.captured.loss)
        self._attendance.keep(self.step_count, measured.updated)
        return measured

    # ------------------------------------------------------------------ several ranks
    def trained_as(self, wrapped: nn.Module) -> None:
        """Tells what the model is wrapped in, where that was not known at the start."""
        self._attendance = Attendance(self.model, wrapped, self._guard, self.options.name)

    def _announce(self) -> None:
        """Tells the other ranks where this step's capture is scheduled."""
        self._due = not self._begun or self._schedule.captures(self.step_count)
        if self._due:
            self._attendance.announce(self.step_count)

    def _withdraw(self) -> None:
        if self._due:
            self._attendance.withdraw(self.step_count)

    def _meet(self, measured: Measured | None) -> list[Parcel]:
        """Goes to the meeting of a scheduled capture; what all have brought."""
        if not self._due:
            return []
        captured = measured.captured if measured is not None else None
        judged = self._judged() if self._attendance.first else {}
        words = [judged.get(f"{self.options.name}/{key}", float("nan")) for key in SUMMARY]
        recorder = self._guard.call("making the history", self._ready_recorder)
        parcels = self._attendance.meet(self.step_count, captured, recorder, words)
        if parcels and self._attendance.met_once:
            run = replace(self.history.run, ranks_measured=len(parcels))
            self._guard.call("recording", self._ready_recorder().tell, "set_run", run)
        return parcels

    # ------------------------------------------------------------------ recording
    def _record(self, measured: Measured | None, parcels: list[Parcel], start: float) -> bool:
        """Records a step on the first rank, and judges a captured one."""
        if measured is None:
            return False
        recorder, captured = self._ready_recorder(), measured.captured
        if not self._attendance.first:
            if self._due or recorder.overdue:
                recorder.forget()
            return captured is not None
        if parcels:
            recorder.set_losses(merge_losses([parcel.losses for parcel in parcels]))
        if captured is not None:
            others = [(p.rows, p.site_map) for p in parcels[1:] if p.rows is not None]
            recorder.record_capture(self.step_count, captured, others)
        changed = recorder.describe_parameters(self.model, self.optimizers)
        if changed and not self._attendance.shards.any:
            self._sampling.blocks_changed()
        self._record_updates(measured, parcels)
        recorder.set_fact("captured", float(captured is not None))
        if captured is not None or recorder.overdue:
            recorder.flush(keep=1)
        if captured is not None:
            self._judge.at_capture(
                recorder.history, self.loggers, self.step_count, recorder.latest()
            )
        host = self._host + _elapsed(start, time.perf_counter())
        recorder.set_fact("host_ms", 1000 * host)
        return captured is not None

    def _record_updates(self, measured: Measured, parcels: list[Parcel]) -> None:
        recorder = self._ready_recorder()
        if measured.watched:
            recorder.set_fact("skipped", float(measured.updated is None))
        for step, *rows in self._attendance.updates(self.step_count, measured.updated, parcels):
            recorder.tell("append_updates", step, *rows)

    def _ready_recorder(self) -> Recorder:
        """The recorder, made when the first step begins: everything is known by then."""
        if self._recorder is None:
            company = self._attendance.company
            options = self.options if company.first else replace(self.options, dirpath=None)
            run = describe_run(
                self.model,
                self.optimizers,
                options,
                self._resume,
                wrapped=self._attendance.wrapped,
                ranks=company.world,
            )
            step = int(self._resume["step"]) if self._resume else None
            self._recorder = Recorder(run, options.dirpath, step)
        return self._recorder

    def loss_scale(self) -> Tensor | None:
        """The GradScaler's factor as a tensor: its public getter would wait for the device."""
        scale = getattr(self.scaler, "_scale", None)
        return scale if isinstance(scale, Tensor) else None

    @property
    def history(self) -> History:
        """What was recorded, as far as memory holds it; the file holds all."""
        recorder = self._guard.finish("making the history", self._ready_recorder)
        return recorder.history if recorder is not None else History()

    def _judged(self) -> dict[str, float]:
        """What this process would say by itself; nothing after an error."""
        return self._guard.call("the summary", self._judge.summary, self.history) or {}


def _elapsed(start: float, now: float) -> float:
    """Seconds from one reading of the clock to the next; unknown where it went back."""
    return now - start if now >= start else float("nan")


def _number(rate: Any) -> float:
    """A learning rate as a float; one that lives on an accelerator is not waited for."""
    if isinstance(rate, Tensor) and rate.device.type != "cpu":
        return float("nan")
    return float(rate)
