"""The monitor: what a user makes, and asks. It knows no trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from skipscope.ablation import Ablation, ablate
from skipscope.names import a_kind
from skipscope.options import Options
from skipscope.publish import say
from skipscope.records import Diagnosis
from skipscope.stepping import SUMMARY, Steps
from skipscope.transfer import Transfer

logger = logging.getLogger("skipscope")


class Monitor(Steps):
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
        TypeError: the model is no `nn.Module`, the optimizer no optimizer, or `loggers` no list.
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
        super().__init__(model, _as_list(optimizer), Options(**options), scaler, _checked(loggers))
        self.show: Callable[[str], None] = say

    @classmethod
    def from_options(cls, model: nn.Module, options: Options) -> Monitor:
        """A monitor with settings that are made already."""
        return cls(model, **{field.name: getattr(options, field.name) for field in fields(options)})

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

    # ------------------------------------------------------------------ judging
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
        words = self._attendance.words
        if not words:
            return self._judged()
        named = zip(SUMMARY, words, strict=True)
        return {f"{self.options.name}/{key}": value for key, value in named}

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
        if not self._attendance.first:
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
        if self._recorder is not None and self._attendance.first:
            transfer = Transfer()
            arrived = self._recorder.collect(transfer)
            transfer.move()
            arrived()
            self._recorder.flush(keep=int(self.in_step))

    def close(self) -> None:
        """Takes everything off and closes the file; the history in memory stays."""
        self.abandon_step()
        self.flush()
        self._guard.finish("closing", self._attendance.leave)
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
    several = isinstance(optimizer, Iterable) and not isinstance(optimizer, Optimizer)
    given = list(optimizer) if several else [optimizer]  # type: ignore[arg-type]
    for one in given:
        if not hasattr(one, "param_groups"):
            raise TypeError(
                f"Monitor: optimizer must be an optimizer, or a list of them, got {a_kind(one)}"
            )
    return given  # type: ignore[return-value]


def _checked(loggers: Any) -> Any:
    if not isinstance(loggers, Iterable):
        raise TypeError(
            f"Monitor: loggers must be a list of loggers, got {a_kind(loggers)}; write it in [ ]"
        )
    return loggers
