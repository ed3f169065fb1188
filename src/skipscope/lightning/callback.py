"""The Lightning callback: Trainer hooks, translated into calls of a `Monitor`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from skipscope.guard import Guard
from skipscope.judge import Judge
from skipscope.lightning.base import CallbackBase
from skipscope.lightning.trainer import (
    loss_of,
    plain_optimizer,
    run_directory,
    show,
    step_axis,
    steps_now,
    training_step,
    without_logging,
)
from skipscope.loggers import Loggers
from skipscope.monitor import Monitor
from skipscope.options import OnCompile, OnError, Options, Preset, ReportFormat, UpdateDetail

if TYPE_CHECKING:
    from skipscope.ablation import Ablation
    from skipscope.history import History
    from skipscope.records import Diagnosis

_log = logging.getLogger("skipscope")


_Hook = TypeVar("_Hook", bound=Callable[..., None])


def _guarded(hook: _Hook) -> _Hook:
    """An error in a hook of ours is told once, and turns the callback off."""

    @wraps(hook)
    def safe(self: ResidualMonitor, *args: Any, **kwargs: Any) -> None:
        self.run_guarded(hook, *args, **kwargs)

    return safe  # type: ignore[return-value]


def _ending(hook: _Hook) -> _Hook:
    """The same for a hook that ends something, or saves: it runs after an error too."""

    @wraps(hook)
    def safe(self: ResidualMonitor, *args: Any, **kwargs: Any) -> Any:
        return self.run_last(hook, *args, **kwargs)

    return safe  # type: ignore[return-value]


class ResidualMonitor(CallbackBase):
    """Shows what the residual additions of a model do while a Trainer trains it.

    Add it to the Trainer's callbacks; no layer needs to be named. It writes scalars and pictures to
    the Trainer's loggers, warns while training, and prints a health report after each epoch. Files
    lie in the logger's directory, in a folder of the monitor's name.

    Args:
        every_n_steps: optimizer steps between captures once the first ones (0, 1, 2, 4 ... 32) are
            taken; each epoch gets at least three.
        preset: "train", or "debug" to record every step.
        sites: module paths (with `*` and `?`) or class names; only additions inside these are
            measured.
        exclude: module paths or class names to leave out.
        select: codes of the rules to run; None runs all.
        ignore: codes of rules not to run.
        thresholds: rule code -> threshold name -> value, instead of the rule's default.
        updates: "blocks" or "parameters": detail of update curves in loggers; "off": none.
        update_bytes: memory for copies of parameters around an optimizer step.
        dirpath: where history and reports are written; None: the logger's directory.
        report: forms of the report to make: "console", "markdown", "json".
        report_every_n_epochs: epochs between reports.
        on_compile: run captured steps of a compiled model eagerly ("eager"), or "skip" them; "auto"
            skips them where the model uses flex_attention, which needs far more memory eagerly.
        on_error: "disable" turns the monitor off after an error of its own; "raise" is for tests.
        name: tells monitors of one run apart.

    Raises:
        ValueError: an argument is out of range; the message names it.

    Example:
        >>> callback = ResidualMonitor(every_n_steps=100)
        >>> callback.options.every_n_steps
        100
    """

    def __init__(
        self,
        every_n_steps: int = 50,
        preset: Preset = "train",
        sites: list[str] | None = None,
        exclude: list[str] | None = None,
        select: list[str] | None = None,
        ignore: list[str] | None = None,
        thresholds: dict[str, dict[str, float]] | None = None,
        updates: UpdateDetail = "blocks",
        update_bytes: int = 2**30,
        dirpath: str | None = None,
        report: list[ReportFormat] = ["console", "markdown", "json"],  # noqa: B006 - never changed
        report_every_n_epochs: int = 1,
        on_compile: OnCompile = "auto",
        on_error: OnError = "disable",
        name: str = "skipscope",
    ) -> None:
        super().__init__()
        settings = {key: value for key, value in locals().items() if key in _ARGUMENTS}
        self.options = Options(**settings)
        Judge(self.options)  # an unknown rule or threshold is told now
        self.monitor: Monitor | None = None
        self._state: dict[str, Any] = {}
        self._steps_in_epoch = 0
        self._summary: dict[str, float] = {}
        self._guard = Guard(self.options.on_error)

    @property
    def state_key(self) -> str:
        """What tells this callback's state in a checkpoint from another's."""
        return f"skipscope.ResidualMonitor:{self.options.name}"

    @property
    def history(self) -> History:
        """What was recorded of the present run."""
        return self._present().history

    def diagnose(self) -> Diagnosis:
        """Runs the rules on what was recorded so far."""
        return self._present().diagnose()

    def report(self, form: str = "console") -> str:
        """The health report: "console", "markdown" or "json"."""
        return self._present().report(form)

    def ablate(
        self,
        batch: Any,
        sites: str | int | Sequence[str | int] | None = None,
        *,
        together: bool = False,
    ) -> Ablation:
        """How `training_step`'s loss on a batch changes when branches are left out.

        After fit, or at an epoch's end; the module runs in its present mode. What the step gives to
        `self.log` is dropped. See `skipscope.ablate`.

        Raises:
            RuntimeError: nothing was recorded yet, or a step is open.
            ValueError: the module optimizes manually, so that its `training_step` would train.
        """
        monitor = self._present()
        module: Any = monitor.model
        if not module.automatic_optimization:
            raise ValueError(
                "ResidualMonitor.ablate: training_step optimizes manually and would train; give "
                "skipscope.ablate a closure that only computes the loss"
            )
        with without_logging(module):
            return monitor.ablate(training_step(module, batch), sites, together=together)

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.report("markdown") if self.monitor is not None else repr(self)

    def _present(self) -> Monitor:
        if self.monitor is None:
            raise RuntimeError(
                "ResidualMonitor has recorded nothing in this process: call trainer.fit first. A "
                "Trainer that starts its processes itself (ddp_spawn, ddp_notebook) takes the "
                "record with them; its file stays: skipscope.History.load(directory)"
            )
        return self.monitor

    def run_guarded(self, hook: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Runs a hook of ours; after an error nothing stays attached."""
        where = f"the callback's {hook.__name__}"
        try:
            self._guard.call(where, partial(hook, self, *args, **kwargs))
        finally:
            if self._guard.broken and self.monitor is not None:
                self._guard.finish(where, lambda: self._present().abandon_step())

    def run_last(self, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs a hook of ours that ends something, after an error too."""
        where = f"the callback's {hook.__name__}"
        return self._guard.finish(where, partial(hook, self, *args, **kwargs))

    # ------------------------------------------------------------------ the run
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forgets an earlier fit, before a checkpoint may tell of another."""
        if stage == "fit":
            self.monitor = None
            self._state = {}

    @_guarded
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Learns where files go; on every rank, since asking the Trainer is a collective."""
        directory = trainer.log_dir
        if getattr(trainer, "barebones", False):
            _log.info("skipscope is off: Trainer(barebones=True) asks for no overhead at all")
            return
        options = self.options
        if not trainer.is_global_zero:
            options = replace(options, dirpath=None, report=())
        elif trainer.fast_dev_run:
            options = replace(options, dirpath=None)
        elif options.dirpath is None:
            options = replace(options, dirpath=run_directory(trainer, directory, options.name))
        self._steps_in_epoch, self._summary = 0, {}
        self.monitor = Monitor.from_options(pl_module, options)

    @_guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Everything is known by now: optimizers, loggers, the scaler, the state of a resume."""
        monitor = self.monitor
        if monitor is None:
            return
        monitor.trained_as(trainer.strategy.model)
        monitor.optimizers = [plain_optimizer(optimizer) for optimizer in trainer.optimizers]
        monitor.loggers = Loggers(
            trainer.loggers,
            name=self.options.name,
            parameters=self.options.updates == "parameters",
        )
        monitor.scaler = getattr(trainer.precision_plugin, "scaler", None)
        monitor.show = lambda text: show(trainer, text)
        if self._state:
            monitor.load_state_dict(self._state)
            self._offer(trainer, self._state.get("summary") or {})

    @_guarded
    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Attaches for a step that is captured: the last micro-batch of an accumulation."""
        if self.monitor is not None and steps_now(trainer):
            self.monitor.epoch = trainer.current_epoch
            self.monitor.begin_step(step=step_axis(trainer), global_step=trainer.global_step)

    @_guarded
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Gradients are accumulated and unscaled, and not clipped yet."""
        if self.monitor is not None:
            plain = plain_optimizer(optimizer)
            fused = getattr(plain, "_step_supports_amp_scaling", False)
            scale = self.monitor.loss_scale() if fused else None
            self.monitor.gradients_ready(plain, scale)

    @_guarded
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Detaches and records."""
        monitor = self.monitor
        if monitor is None or not monitor.in_step:
            return
        self._steps_in_epoch += 1
        if monitor.end_step(*loss_of(outputs, trainer, pl_module)):
            self._offer(trainer, monitor.summary())

    def _offer(self, trainer: Any, summary: dict[str, float]) -> None:
        """For checkpoints and early stopping; these want tensors, and a resume may ask at once."""
        self._summary = summary
        trainer.callback_metrics.update({k: torch.tensor(v) for k, v in summary.items()})

    @_guarded
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Reports, unless no step was taken: a resume can end its old epoch once more."""
        if self.monitor is not None:
            self.monitor.epoch_end(report=self._steps_in_epoch > 0)
            self._steps_in_epoch = 0

    # Whatever interrupts an epoch must not leave anything attached.
    @_ending
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Takes off what a skipped batch left, and stops the clock of the steps."""
        if self.monitor is not None:
            self.monitor.pause()

    @_ending
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Takes everything off and closes the file."""
        if self.monitor is not None:
            self.monitor.close()

    @_ending
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Takes everything off and closes the file; what was recorded stays."""
        if self.monitor is not None:
            self.monitor.close()

    @_ending
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Takes off what may be left."""
        if self.monitor is not None:
            self.monitor.abandon_step()

    # ------------------------------------------------------------------ checkpoints and copies
    def state_dict(self) -> dict[str, Any]:
        """Plain and small: the history lives in its files."""
        return self.run_last(ResidualMonitor._state_of_run) or {}

    def _state_of_run(self) -> dict[str, Any]:
        if self.monitor is None:
            return {}
        return {**self.monitor.state_dict(), "summary": dict(self._summary)}

    @_ending
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remembers where a resumed run stood; the run itself begins later."""
        self._state = dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        """Without the running monitor, and without what the Trainer hangs on its callbacks."""
        kept = {key: value for key, value in vars(self).items() if key not in ("log", "log_dict")}
        return {**kept, "monitor": None}


_ARGUMENTS = frozenset(Options.__dataclass_fields__)
