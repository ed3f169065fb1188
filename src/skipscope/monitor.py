"""The monitor: decides when to look, looks, records, judges. It knows no trainer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from skipscope.ablation import Ablation, ablate
from skipscope.capture import Capture
from skipscope.guard import Guard
from skipscope.history import History
from skipscope.judge import Judge
from skipscope.loggers import Loggers
from skipscope.options import Options
from skipscope.publish import say
from skipscope.recorder import Recorder
from skipscope.records import Diagnosis
from skipscope.runs import describe_run, world
from skipscope.schedule import Schedule
from skipscope.transfer import Transfer
from skipscope.updates import Rotation, Updates
from skipscope.watch import Watch

logger = logging.getLogger("skipscope")


class Monitor:
    """Watches the residual additions of a model while it trains.

    It attaches to sampled optimizer steps only, takes everything off at their end, and never stops
    or changes the training: an error of its own turns it off with one message.

    Args:
        model: the model; no layer needs to be named.
        optimizer: the optimizer, or several; None when updates are of no interest.
        scaler: the GradScaler of mixed-precision training, for unscaled gradients and loss.
        loggers: TensorBoard SummaryWriters or Lightning loggers.
        **options: see `Options`.

    Raises:
        ValueError: an option is out of range, or a rule code or threshold is unknown.

    Example:
        >>> import torch
        >>> net = torch.nn.Linear(2, 1)
        >>> monitor = Monitor(net, torch.optim.SGD(net.parameters(), lr=0.1), report=[])
        >>> with monitor.step():
        ...     net(torch.ones(3, 2)).sum().backward()
        >>> monitor.history.capture_steps
        array([0])
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        scaler: Any = None,
        loggers: Sequence[object] = (),
        **options: Any,
    ) -> None:
        self.options = Options(**options)
        self._judge = Judge(self.options)
        self.model = model
        self.scaler = scaler
        self.loggers = Loggers(
            loggers, name=self.options.name, parameters=self.options.updates == "parameters"
        )
        self.step_count = 0
        self.epoch = 0
        self.in_step = False
        self.show: Callable[[str], None] = say
        self.optimizers = _as_list(optimizer)
        self._guard = Guard(self.options.on_error)
        self._schedule = Schedule(self.options.every_n_steps, self.options.preset == "debug")
        self._watch = Watch(model, self.options.sites, self.options.exclude)
        self._recorder: Recorder | None = None
        self._resume: dict[str, Any] = {}
        self._rotation: Rotation | None = None
        self._capture: Capture | None = None
        self._updates: Updates | None = None
        self._started: float | None = None
        self._said_skip = False
        self._host = 0.0

    @classmethod
    def from_options(cls, model: nn.Module, options: Options) -> Monitor:
        """A monitor with settings that are made already."""
        return cls(model, **{field.name: getattr(options, field.name) for field in fields(options)})

    # ------------------------------------------------------------------ one optimizer step
    @contextmanager
    def step(self) -> Iterator[Monitor]:
        """Encloses one optimizer step: its forwards, its backwards and `optimizer.step()`."""
        self.begin_step()
        try:
            yield self
        except BaseException:
            self.abandon_step()
            raise
        self.end_step()

    def begin_step(self, *, step: int | None = None, global_step: int | None = None) -> None:
        """Attaches what the schedules want for this step; nothing on most steps."""
        self.abandon_step()
        if step is not None:
            self.step_count = step
        if world()[0] != 0:
            return  # the first process speaks for all
        self.in_step = True
        try:
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
        try:
            return self.in_step and bool(self._guard.call(where, self._end, loss, factor))
        finally:
            self.in_step = False
            self.step_count += 1
            self._detach()

    def abandon_step(self) -> None:
        """Takes off what a step that never ended left attached."""
        if self.in_step:
            self.in_step = False
            self._started = None
            try:
                self._detach()
            finally:
                if self._recorder is not None:
                    self._guard.finish("the end of a step", self._recorder.drop_step)

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
        if self._updates is not None:
            for one in [optimizer] if optimizer is not None else self.optimizers:
                self._guard.call("reading gradients", self._updates.gradients_ready, one, scale)

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
        first = not len(recorder.history.capture_steps)
        if self._captures_now(first):
            capture = Capture(self.model, self._guard, self._watch, self.loss_scale, survey=first)
            self._capture = capture
            capture.open()
        if self.options.updates != "off" and self._schedule.updates(self.step_count):
            self._open_updates()
        self._host = _elapsed(now, time.perf_counter())

    def _captures_now(self, first: bool) -> bool:
        """By the schedule; also in the first step after a resume, so that there is something."""
        if not (first or self._schedule.captures(self.step_count)):
            return False
        why_not = self.history.run.uncaptured
        if why_not and not self._said_skip:
            self._said_skip = True
            logger.warning("skipscope captures nothing: %s.", why_not)
        return not why_not

    def _open_updates(self) -> None:
        if not self.optimizers:
            return
        parameters = list(self.model.parameters())
        if self._rotation is None or len(self._rotation.sizes) != len(parameters):
            table = self.history.parameters
            self._rotation = Rotation.over(parameters, table, self.options.update_bytes)
        self._updates = Updates(parameters, self.optimizers, self._rotation.take(), self._guard)
        self._updates.open()

    def _end(self, loss: Tensor | float | None, factor: float) -> bool:
        start = time.perf_counter()
        recorder = self._ready_recorder()
        capture, updates = self._capture, self._updates
        if loss is not None:
            recorder.set_loss(loss, factor)
        if capture is None and updates is None and not recorder.overdue:
            return False
        transfer = Transfer()
        arrived = recorder.collect(transfer)
        captured = capture.collect(transfer) if capture is not None else None
        updated = updates.collect(transfer) if updates is not None else None
        self._detach()
        transfer.move()
        arrived()
        if captured is not None:
            recorder.record_capture(self.step_count, captured(), with_loss=loss is None)
        if recorder.describe_parameters(self.model, self.optimizers):
            self._rotation = None
        if updated is not None:
            rows = updated()
            recorder.set_fact("skipped", float(rows is None))
            if rows is not None:
                recorder.tell("append_updates", self.step_count, *rows)
        recorder.set_fact("captured", float(capture is not None))
        if capture is not None or recorder.overdue:
            recorder.flush(keep=1)
        if capture is not None:
            self._judge.at_capture(
                recorder.history, self.loggers, self.step_count, recorder.latest()
            )
        host = self._host + _elapsed(start, time.perf_counter())
        recorder.set_fact("host_ms", 1000 * host)
        return capture is not None

    # ------------------------------------------------------------------ recording
    def _ready_recorder(self) -> Recorder:
        """The recorder, made when the first step begins: everything is known by then."""
        if self._recorder is None:
            run = describe_run(self.model, self.optimizers, self.options, self._resume)
            step = int(self._resume["step"]) if self._resume else None
            self._recorder = Recorder(run, self.options.dirpath, step)
        return self._recorder

    def _detach(self) -> None:
        """Takes off what is attached: all of it, whatever happens on the way."""
        attached = [one for one in (self._updates, self._capture) if one is not None]
        self._capture = self._updates = None
        with ExitStack() as stack:
            for one in attached:
                stack.callback(self._guard.finish, "the end of a step", one.close)

    def loss_scale(self) -> Tensor | None:
        """The GradScaler's factor as a tensor: its public getter would wait for the device."""
        scale = getattr(self.scaler, "_scale", None)
        return scale if isinstance(scale, Tensor) else None

    # ------------------------------------------------------------------ judging
    @property
    def history(self) -> History:
        """What was recorded, as far as memory holds it; the file holds all."""
        recorder = self._guard.finish("making the history", self._ready_recorder)
        return recorder.history if recorder is not None else History()

    def diagnose(self) -> Diagnosis:
        """Runs the rules on what was recorded; each finding's status is against the last report."""
        if not self.in_step:
            self.flush()
        diagnosis = self._guard.finish("a diagnosis", self._judge.diagnose, self.history)
        return diagnosis if diagnosis is not None else Diagnosis()

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the last capture; None before the first one."""
        return self._judge.latest

    def summary(self) -> dict[str, float]:
        """Four numbers for checkpoints and early stopping to watch."""
        return self._guard.call("the summary", lambda: self._judge.summary(self.history)) or {}

    def report(self, form: str = "console", **settings: Any) -> str:
        """The health report as text: "console", "markdown" or "json".

        Empty where an error of the monitor's own prevented it, which is logged then.

        Raises:
            ValueError: there is no report of this form.
        """
        from skipscope.reports import REPORTS  # rich is not loaded until a report is wanted

        if form not in REPORTS:
            raise ValueError(f"report: there is no form {form!r}, only {', '.join(REPORTS)}")
        history, diagnosis = self.history, self.diagnose()
        make = partial(REPORTS[form], history, diagnosis, **settings)
        return self._guard.finish("a report", make) or ""

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.report("markdown")

    def ablate(
        self,
        closure: Callable[[], Tensor | float],
        sites: str | int | Sequence[str | int] | None = None,
        *,
        together: bool = False,
    ) -> Ablation:
        """How the loss changes when branches are left out, between two steps; see `ablate`.

        Names and indices of `sites` are those of this run.

        Raises:
            RuntimeError: a step is open, which would record these forwards.
        """
        if self.in_step:
            raise RuntimeError("Monitor.ablate: call it between steps, not inside of one")
        known = self._recorder.history.sites if self._recorder is not None else None
        known = known if known is not None and known.sites else None
        return ablate(self.model, sites, closure, together=together, known=known)

    def epoch_end(self, *, report: bool = True) -> None:
        """Ends an epoch: reports as the options say, and learns the epoch's length."""
        self.pause()
        if report:
            self._guard.call("the end of an epoch", self._epoch_end)
        self._guard.finish("the end of an epoch", self._schedule.epoch_ended, self.step_count)
        self.epoch += 1

    def _epoch_end(self) -> None:
        self._flush()
        if (self.epoch + 1) % self.options.report_every_n_epochs == 0:
            recorder = self._ready_recorder()
            self._judge.at_epoch(
                recorder.history,
                self.loggers,
                self.show,
                recorder.write_text,
                step=max(0, self.step_count - 1),
            )

    def flush(self) -> None:
        """Hands on every step fact that waits for a capture."""
        self._guard.finish("handing on facts", self._flush)

    def _flush(self) -> None:
        if self._recorder is not None:
            transfer = Transfer()
            arrived = self._recorder.collect(transfer)
            transfer.move()
            arrived()
            self._recorder.flush(keep=int(self.in_step))

    def close(self) -> None:
        """Takes everything off and closes the file; the history in memory stays."""
        self.abandon_step()
        self.flush()
        if self._recorder is not None:
            self._guard.finish("closing", self._recorder.close)

    # ------------------------------------------------------------------ resuming
    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and strings: where the run stands and which file it writes.

        Step facts that wait are written: a run that is killed after this goes on without a gap.
        """
        return self._guard.finish("saving the state", self._state) or {}

    def _state(self) -> dict[str, Any]:
        self._guard.call("the waiting step facts", self._flush)
        known = self._recorder.history.run.run_id if self._recorder is not None else ""
        return {
            "version": 1,
            "run_id": known or self._resume.get("run_id", ""),
            "step": self.step_count,
            "epoch": self.epoch,
            **self._schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with a run: its step, its epoch and, in the same directory, its file."""
        self._guard.finish("taking up the state", self._take_up, state)

    def _take_up(self, state: dict[str, Any]) -> None:
        if state.get("version") != 1:
            logger.warning("skipscope: state of version %r not understood", state.get("version"))
            return
        self._resume = dict(state)
        self.step_count, self.epoch = int(state["step"]), int(state["epoch"])
        self._schedule.load_state_dict(state)


def _as_list(optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    if optimizer is None:
        return []
    return [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)


def _elapsed(start: float, now: float) -> float:
    """Seconds from one reading of the clock to the next; unknown where it went back."""
    return now - start if now >= start else float("nan")


def _number(rate: Any) -> float:
    """A learning rate as a float; one that lives on an accelerator is not waited for."""
    if isinstance(rate, Tensor) and rate.device.type != "cpu":
        return float("nan")
    return float(rate)
