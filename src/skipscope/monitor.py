"""The monitor: decides when to look, looks, records, judges. It knows no trainer."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skipscope.capture import Capture, Captured
from skipscope.diagnose import diagnose
from skipscope.find import SiteRegistry
from skipscope.find.places import canonical
from skipscope.guard import Guard
from skipscope.history import History
from skipscope.loggers import Loggers
from skipscope.options import Options
from skipscope.parameters import parameter_table
from skipscope.publish import publish
from skipscope.records import SUMS, Diagnosis, Run
from skipscope.recorder import Recorder
from skipscope.schedule import Schedule
from skipscope.transfer import Transfer
from skipscope.updates import Rotation, Updates

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
        self.check(self.options)
        self.model = model
        self.scaler = scaler
        self.loggers = Loggers(loggers, name=self.options.name)
        self.step_count = 0
        self.epoch = 0
        self.in_step = False
        self.show: Callable[[str], None] = print
        self.optimizers = _as_list(optimizer)
        self._guard = Guard(self.options.on_error)
        self._schedule = Schedule(self.options.every_n_steps, self.options.preset == "debug")
        self._registry = SiteRegistry()
        self._recorder: Recorder | None = None
        self._resume: dict[str, Any] | None = None
        self._rotation: Rotation | None = None
        self._capture: Capture | None = None
        self._updates: Updates | None = None
        self._started: float | None = None
        self._host = 0.0
        self._known: tuple[Any, ...] = ()
        self._announced: set[tuple[str, tuple[str, ...]]] = set()
        self._reported: Diagnosis | None = None
        #: the latest diagnosis, made at each capture
        self.diagnosis: Diagnosis | None = None

    @classmethod
    def from_options(cls, model: nn.Module, options: Options) -> Monitor:
        """A monitor with settings that are made already."""
        return cls(model, **{field.name: getattr(options, field.name) for field in fields(options)})

    @staticmethod
    def check(options: Options) -> None:
        """Tells an unknown rule or threshold now, not in mid-run.

        Raises:
            ValueError: naming it, with what comes near.
        """
        diagnose(
            History(),
            select=options.select,
            ignore=options.ignore,
            thresholds=options.thresholds,
        )

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
        self.in_step = True
        self._guard.call("the start of a step", self._begin, global_step)

    def end_step(self, loss: Tensor | float | None = None) -> bool:
        """Detaches and records; True when this step was captured.

        Args:
            loss: the step's loss, where the caller has it; else that of a captured backward.
        """
        captured = bool(self._guard.call("the end of a step", self._end, loss))
        self._detach()
        self.in_step = False
        self.step_count += 1
        return captured

    def abandon_step(self) -> None:
        """Takes off what a step that never ended left attached."""
        if self.in_step:
            self._detach()
            self.in_step = False
            if self._recorder is not None:
                self._recorder.drop_step()

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
            recorder.set_fact("seconds", now - self._started)
        self._started = now
        rates = [_number(g["lr"]) for o in self.optimizers for g in o.param_groups]
        recorder.begin_step(
            rates,
            step=self.step_count,
            epoch=self.epoch,
            global_step=self.step_count if global_step is None else global_step,
            loss_scale=1.0,
            skipped=0.0,
            captured=0.0,
            host_ms=0.0,
        )
        if self._captures_now():
            capture = Capture(self.model, self._guard, self._watches, self.loss_scale)
            self._capture = capture
            capture.open()
        if self.options.updates != "off" and self._schedule.updates(self.step_count):
            self._open_updates()
        self._host = time.perf_counter() - now

    def _captures_now(self) -> bool:
        skip = self.options.on_compile == "skip" and is_compiled(self.model)
        return not skip and self._schedule.captures(self.step_count)

    def _open_updates(self) -> None:
        if not self.optimizers:
            return
        parameters = list(self.model.parameters())
        if self._rotation is None or len(self._rotation.sizes) != len(parameters):
            self._rotation = self._new_rotation(parameters)
        self._updates = Updates(parameters, self.optimizers, self._rotation.take(), self._guard)
        self._updates.open()

    def _new_rotation(self, parameters: Sequence[nn.Parameter]) -> Rotation:
        table = self._ready_recorder().history.parameters
        blocks: dict[str, list[int]] = {}
        for index in range(len(parameters)):
            block = table[index].block if index < len(table) else ""
            blocks.setdefault(block or f"parameter {index}", []).append(index)
        sizes = [p.numel() * p.element_size() for p in parameters]
        return Rotation(list(blocks.values()), sizes, self.options.update_bytes)

    def _end(self, loss: Tensor | float | None) -> bool:
        start = time.perf_counter()
        recorder = self._ready_recorder()
        capture, updates = self._capture, self._updates
        if loss is not None:
            recorder.set_loss(loss)
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
            self._record_capture(recorder, captured(), loss is None)
        if updates is not None and updated is not None:
            recorder.set_fact("skipped", 0.0 if updates.stepped else 1.0)
            self._describe_parameters(recorder)
            if updates.stepped:
                recorder.tell("append_updates", self.step_count, *updated())
        recorder.set_fact("captured", float(capture is not None))
        recorder.set_fact("host_ms", 1000 * (self._host + time.perf_counter() - start))
        if capture is not None or recorder.overdue:
            recorder.flush(keep=1)
        if capture is not None:
            self._judge(recorder)
        return capture is not None

    # ------------------------------------------------------------------ recording
    def _record_capture(self, recorder: Recorder, captured: Captured, use_loss: bool) -> None:
        site_map = self._registry.site_map(captured.found, captured.unseen, captured.called)
        if site_map != recorder.history.sites:
            recorder.tell("set_sites", site_map)
        count = len(site_map.sites)
        sums = np.full((count, len(SUMS)), np.nan)
        have, why = np.zeros(count, np.uint8), np.ones(count, np.uint8)
        for row, found in enumerate(captured.found):
            index = self._registry.index(found.key)
            sums[index], have[index] = captured.sums[row], captured.have[row]
            why[index] = captured.why[row]
        self._describe_parameters(recorder)
        recorder.tell("append_capture", self.step_count, sums, have, why)
        recorder.set_fact("loss_scale", captured.scale)
        if use_loss:
            recorder.set_fact("loss", captured.loss)

    def _describe_parameters(self, recorder: Recorder) -> None:
        """The parameter table, again whenever what it depends on has changed."""
        sites = recorder.history.sites
        known = (
            sites.sites,
            tuple(p.requires_grad for p in self.model.parameters()),
            tuple(len(g["params"]) for o in self.optimizers for g in o.param_groups),
        )
        if known != self._known:
            recorder.tell("set_parameters", *parameter_table(self.model, self.optimizers, sites))
            self._known = known
            self._rotation = None

    def _ready_recorder(self) -> Recorder:
        """The recorder, made when the first step begins: everything is known by then."""
        if self._recorder is None:
            resume = self._resume or {}
            run_id = resume.get("run_id") or _new_run_id(self.options.name)
            self._recorder = Recorder(
                self._run_record(run_id, fresh=not resume),
                self.options.dirpath,
                self._resume_at(resume),
            )
        return self._recorder

    def _resume_at(self, resume: dict[str, Any]) -> int | None:
        """The step to go on from, where the old run's file lies in our directory."""
        if not resume or self.options.dirpath is None:
            return None
        path = os.path.join(self.options.dirpath, f"history-{resume['run_id']}.skip")
        return int(resume["step"]) if os.path.exists(path) else None

    def _run_record(self, run_id: str, fresh: bool) -> Run:
        parameter = next(self.model.parameters(), None)
        return Run(
            run_id=run_id,
            skipscope=importlib.metadata.version("skipscope"),
            torch=torch.__version__,
            model=type(self.model).__name__,
            preset=self.options.preset,
            every_n_steps=self.options.every_n_steps,
            device=str(parameter.device) if parameter is not None else "cpu",
            precision=str(parameter.dtype).removeprefix("torch.") if parameter is not None else "",
            compiled=is_compiled(self.model),
            fresh=fresh and not any(o.state for o in self.optimizers),
        )

    def _detach(self) -> None:
        for attached in (self._capture, self._updates):
            if attached is not None:
                attached.close()
        self._capture = self._updates = None

    def loss_scale(self) -> Tensor | None:
        """The GradScaler's factor as a tensor: its public getter would wait for the device."""
        scale = getattr(self.scaler, "_scale", None)
        return scale if isinstance(scale, Tensor) else None

    def _watches(self, module: str) -> bool:
        chosen = self.options.sites is None or self._matches(module, self.options.sites)
        return chosen and not self._matches(module, self.options.exclude or ())

    def _matches(self, module: str, patterns: Sequence[str]) -> bool:
        """Whether a module, or one it lies in, has one of these paths or class names."""
        parts = module.split(".")
        paths = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        names = {canonical(name): type(m).__name__ for name, m in self.model.named_modules()}
        return any(
            fnmatch.fnmatchcase(path, pattern) or names.get(path) == pattern
            for path in paths
            for pattern in patterns
        )

    # ------------------------------------------------------------------ judging
    @property
    def history(self) -> History:
        """What was recorded, as far as memory holds it; the file holds all."""
        return self._ready_recorder().history

    def diagnose(self) -> Diagnosis:
        """Runs the rules on what was recorded; new is what the last report did not have."""
        return self._diagnose(self.history, self._reported)

    def _diagnose(self, history: History, previous: Diagnosis | None = None) -> Diagnosis:
        return diagnose(
            history,
            select=self.options.select,
            ignore=self.options.ignore,
            thresholds=self.options.thresholds,
            previous=previous,
        )

    def _judge(self, recorder: Recorder) -> None:
        self.diagnosis = self.diagnose()
        for finding in self.diagnosis.roots:
            place = finding.code, finding.where
            if finding.severity != "info" and place not in self._announced:
                self._announced.add(place)
                logging.getLogger(f"skipscope.{finding.code}").warning(
                    "step %d: %s %s at %s: %s (skipscope explain %s)",
                    self.step_count,
                    finding.code,
                    finding.name,
                    ", ".join(finding.where),
                    finding.message,
                    finding.code,
                )
        if self.loggers.active:
            self.loggers.scalars(recorder.history, self.step_count)

    def summary(self) -> dict[str, Tensor]:
        """Four numbers for checkpoints and early stopping to watch."""
        diagnosis = self.diagnosis or Diagnosis()
        ratios = self.history.table("branch_ratio")
        last = ratios.values[-1] if len(ratios.steps) else np.empty(0)
        last = last[~np.isnan(last)]
        numbers = {
            "warnings": diagnosis.count("warning"),
            "errors": diagnosis.count("error"),
            "r_median": float(np.median(last)) if last.size else float("nan"),
            "r_max": float(last.max()) if last.size else float("nan"),
        }
        return {f"{self.options.name}/{key}": torch.tensor(v) for key, v in numbers.items()}

    def report(self, form: str = "console", **settings: Any) -> str:
        """The health report as text: "console", "markdown" or "json"."""
        from skipscope.reports import REPORTS  # rich is not loaded until a report is wanted

        return REPORTS[form](self.history, self.diagnose(), **settings)

    def epoch_end(self) -> None:
        """Ends an epoch: reports as the options say, and learns the epoch's length."""
        self.abandon_step()
        self._guard.call("the end of an epoch", self._epoch_end)
        self._schedule.epoch_ended(self.step_count)
        self.epoch += 1

    def _epoch_end(self) -> None:
        self.flush()
        if (self.epoch + 1) % self.options.report_every_n_epochs == 0:
            diagnosis = self.diagnose()
            publish(
                self.history,
                diagnosis,
                self.options,
                loggers=self.loggers,
                show=self.show,
                step=max(0, self.step_count - 1),
            )
            self._reported = diagnosis

    def flush(self) -> None:
        """Hands on every step fact that waits for a capture."""
        if self._recorder is not None:
            transfer = Transfer()
            arrived = self._recorder.collect(transfer)
            transfer.move()
            arrived()
            self._recorder.flush()

    def close(self) -> None:
        """Takes everything off and closes the file; the history in memory stays."""
        self._detach()
        self._guard.call("closing", self.flush)
        if self._recorder is not None:
            self._recorder.close()

    # ------------------------------------------------------------------ resuming
    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and strings: where the run stands and which file it writes."""
        return {
            "version": 1,
            "run_id": self.history.run.run_id,
            "step": self.step_count,
            "epoch": self.epoch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with a run: its step, its epoch and, in the same directory, its file."""
        if state.get("version") != 1:
            logger.warning("skipscope: state of version %r not understood", state.get("version"))
            return
        self._resume = dict(state)
        self.step_count, self.epoch = int(state["step"]), int(state["epoch"])


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` was applied to a model or to a part of it."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _as_list(optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    if optimizer is None:
        return []
    return [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)


def _number(rate: Any) -> float:
    """A learning rate as a float; one that lives on an accelerator is not waited for."""
    if isinstance(rate, Tensor) and rate.device.type != "cpu":
        return float("nan")
    return float(rate)


def _new_run_id(name: str) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{uuid.uuid4().hex[:6]}"
