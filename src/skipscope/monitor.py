"""The monitor: decides when to look, looks, records, judges. It knows no trainer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from skipscope.ablation import Ablation, ablate
from skipscope.guard import Guard
from skipscope.history import History
from skipscope.judge import Judge
from skipscope.loggers import Loggers
from skipscope.merge import merge_losses
from skipscope.options import Options
from skipscope.publish import say
from skipscope.recorder import Recorder
from skipscope.records import Diagnosis
from skipscope.runs import describe_run, is_compiled
from skipscope.sampling import Measured, Sampling
from skipscope.schedule import Schedule
from skipscope.together import Parcel, Shards, Together, whole_updates
from skipscope.transfer import Transfer

logger = logging.getLogger("skipscope")
#: What `summary` holds, in the order in which the first rank passes it on.
_SUMMARY = ("warnings", "errors", "r_median", "r_max")


class Monitor:
    """Watches the residual additions of a model while it trains.

    It attaches to sampled optimizer steps only, takes everything off at their end, and never stops
    or changes the training: an error of its own turns it off with one message.

    Args:
        model: the model; no layer needs to be named. Where several processes train it, wrapped as
            it is trained (DDP, FSDP), and a monitor on each.
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
        self.model = _unwrapped(model)
        self.wrapped = model  #: tells which processes train together
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
        self._sampling = Sampling(self.model, self.options, self._guard)
        self._recorder: Recorder | None = None
        self._resume: dict[str, Any] = {}
        self._started: float | None = None
        self._host = 0.0
        self._together: Together | None = None
        self._shards: Shards | None = None
        self._begun = False  #: whether a scheduled capture has ended
        self._due = False  #: whether this step's capture is scheduled: the same on every rank

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
        # Also when this monitor is off already: the others ask it to their meetings.
        if not self._guard.finish("the start of a step", self._takes_part):
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
                self.wrapped, self.loss_scale, survey=not self._begun, speaks=self._first
            )
        if self.options.updates != "off" and self._schedule.updates(self.step_count):
            shards = self._sharding()
            if self._first or shards.any:
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
        if measured.updated is not None and self._company().joins and self._sharding().any:
            self._sharding().keep(self.step_count, *measured.updated)
        return measured

    # ------------------------------------------------------------------ several ranks
    def trained_as(self, wrapped: nn.Module) -> None:
        """Tells what the model is wrapped in, where that was not known at the start."""
        self.wrapped = wrapped
        self._together = self._shards = None

    def _takes_part(self) -> bool:
        """Whether this process measures: one that trains together with the first, or it."""
        return self._company().measures

    def _announce(self) -> None:
        """Tells the other ranks that this one comes to the meeting of a scheduled capture."""
        self._due = not self._begun or self._schedule.captures(self.step_count)
        if self._due:
            self._company().announce(self.step_count)

    def _withdraw(self) -> None:
        """No other rank is to wait for what this step would have brought."""
        if self._due and self._together is not None:
            self._together.withdraw(self.step_count)

    def _company(self) -> Together:
        """This process among the others, found when the first step begins."""
        if self._together is None:
            self._together = Together(self.wrapped, self._guard, self.options.name)
        return self._together

    @property
    def _first(self) -> bool:
        """Whether this process records."""
        return self._company().company.first

    def _sharding(self) -> Shards:
        if self._shards is None:
            self._shards = Shards(self.model, self.wrapped, self._company().company)
        return self._shards

    def _meet(self, measured: Measured | None) -> list[Parcel]:
        """Goes to the meeting of a scheduled capture, whatever was measured here."""
        together = self._company()
        if not (self._due and together.joins):
            return []
        parcel = self._guard.call("packing what was measured", self._parcel, together, measured)
        judged = self._judged() if self._first else {}
        words = [judged.get(f"{self.options.name}/{key}", float("nan")) for key in _SUMMARY]
        parcels = together.meet(self.step_count, parcel or Parcel(), words)
        if parcels and together.held == 1:
            run = replace(self.history.run, ranks_measured=len(parcels))
            self._guard.call("recording", self._ready_recorder().tell, "set_run", run)
        return parcels

    def _parcel(self, together: Together, measured: Measured | None) -> Parcel:
        recorder = self._ready_recorder()
        captured = measured.captured if measured is not None else None
        learnt = None if captured is None or self._first else recorder.learn(captured)
        return Parcel(
            rows=captured.rows if captured is not None else None,
            site_map=None if learnt is None else together.news(learnt),
            losses=recorder.losses,
            updates=self._sharding().take(),
        )

    # ------------------------------------------------------------------ recording
    def _record(self, measured: Measured | None, parcels: list[Parcel], start: float) -> bool:
        """Records a step on the first rank, and judges a captured one."""
        if measured is None:
            return False
        recorder, captured = self._ready_recorder(), measured.captured
        if not self._first:
            if self._due or recorder.overdue:
                recorder.forget()
            return captured is not None
        if parcels:
            recorder.set_losses(merge_losses([parcel.losses for parcel in parcels]))
        if captured is not None:
            others = [(p.rows, p.site_map) for p in parcels[1:] if p.rows is not None]
            recorder.record_capture(self.step_count, captured, others)
        if recorder.describe_parameters(self.model, self.optimizers) and not self._sharding().any:
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
        """Those of this step; of shards those of all steps up to a meeting."""
        recorder = self._ready_recorder()
        if measured.watched:
            recorder.set_fact("skipped", float(measured.updated is None))
        if self._sharding().any and self._company().joins:
            for step, *rows in whole_updates(parcels):
                recorder.tell("append_updates", step, *rows)
        elif measured.updated is not None:
            sums, have = measured.updated
            recorder.tell("append_updates", self.step_count, sums, self._sharding().without(have))

    def _ready_recorder(self) -> Recorder:
        """The recorder, made when the first step begins: everything is known by then."""
        if self._recorder is None:
            company = self._company().company
            options = self.options if company.first else replace(self.options, dirpath=None)
            run = describe_run(self.model, self.optimizers, options, self._resume, company.world)
            run = replace(run, compiled=is_compiled(self.wrapped))
            step = int(self._resume["step"]) if self._resume else None
            self._recorder = Recorder(run, options.dirpath, step)
        return self._recorder

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
        """Four numbers for checkpoints and early stopping to watch.

        Where several ranks measure together they are equal on all of them, and those of the capture
        before the last: what the last one told is known when the ranks meet again.
        """
        return self._guard.finish("the summary", self._summary) or {}

    def _summary(self) -> dict[str, float]:
        words = self._together.words if self._together is not None else ()
        if not words:
            return self._judged()
        named = zip(_SUMMARY, words, strict=True)
        return {f"{self.options.name}/{key}": value for key, value in named}

    def _judged(self) -> dict[str, float]:
        """What this process would say by itself; nothing after an error."""
        return self._guard.call("the summary", self._judge.summary, self.history) or {}

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
        if not self._first:
            return
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
        if self._recorder is not None and self._first:
            transfer = Transfer()
            arrived = self._recorder.collect(transfer)
            transfer.move()
            arrived()
            self._recorder.flush(keep=int(self.in_step))

    def close(self) -> None:
        """Takes everything off and closes the file; the history in memory stays."""
        self.abandon_step()
        self.flush()
        if self._together is not None:
            self._guard.finish("closing", self._together.leave)
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


def _unwrapped(model: nn.Module) -> nn.Module:
    """The user's own model inside of DDP, compiled or not."""
    inner = getattr(model, "_orig_mod", model)
    return inner.module if isinstance(inner, DistributedDataParallel) else model


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
