"""Runs of a mode: plain, watched, and apart: with every number of a step computed by hand."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning.pytorch as lp
import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, distributed, nn
from torch._dynamo.utils import counters

from skipscope import ResidualMonitor
from skipscope.history import History
from tests.capture.reference import Numbers, Walk, backward_numbers, norm
from tests.lightning import parts
from tests.modes.mode import Mode


class Attending(lp.Callback, pl.Callback):
    """A callback of the tests, of both packages."""


@dataclass
class Result:
    """What a run left."""

    module: Any
    trainer: Any
    losses: list[Any]
    #: loss of a step's last micro-batch, its factor, and whether that fell afterwards
    of_steps: dict[int, tuple[Any, float, bool]]
    weights: list[Tensor]
    generators: list[Any]
    before: dict[str, Any]
    after: dict[str, Any]
    graphs: list[int]  #: compiled so far, after each batch
    growth: int | None  #: tensors alive after the last step, less those after an early one
    callback: ResidualMonitor | None = None

    @property
    def history(self) -> History:
        assert self.callback is not None
        return self.callback.history


class Notes(Attending):
    """Notes the loss of each batch, and counts live tensors from the batch `first` on."""

    def __init__(self, first: int) -> None:
        self.losses: list[Any] = []
        self.first = first
        self.graphs: list[int] = []
        self.of_steps: dict[int, tuple[Any, float, bool]] = {}
        self._scale = 1.0
        self.alive: list[int] = []

    def on_before_backward(self, trainer: Any, *args: Any) -> None:
        self._scale = scale_of(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs["loss"] if isinstance(outputs, dict) and outputs else outputs
        at = len(self.losses)
        self.graphs.append(counters["stats"]["unique_graphs"])
        self.losses.append(loss.double().item() if isinstance(loss, Tensor) else loss)
        fell = scale_of(trainer) < self._scale
        self.of_steps[step_of(trainer)] = self.losses[-1], self._scale, fell
        if at == self.first:
            gc.collect()
            gc.disable()  # from here on reference counts alone must free what a step made
        if at >= self.first and distributed.is_initialized():
            time.sleep(0.02)  # threads of a connection let go of its tensors a little later
        if at >= self.first:
            self.alive.append(sum(issubclass(type(o), Tensor) for o in gc.get_objects()))

    def on_train_end(self, *args: Any) -> None:
        gc.enable()

    on_exception = on_train_end


class EagerAt(Attending):
    """Runs some steps without the compiled code, as a user could."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = steps
        self.stance: Any = None

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        if step_of(trainer) in self.steps:
            self.stance = torch.compiler.set_stance("force_eager")

    def on_train_batch_end(self, *args: Any) -> None:
        if self.stance is not None:
            self.stance.__exit__(None, None, None)
        self.stance = None


@dataclass
class Apart:
    """Numbers of one step, computed by hand."""

    taps: Walk = field(default_factory=Walk)
    sites: list[Numbers] = field(default_factory=list)
    parameters: dict[str, Numbers] = field(default_factory=dict)


class ByHand(Attending):
    """Walks the steps that are looked at; gradients by `autograd.grad` before the backward."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = steps
        self.apart: dict[int, Apart] = {}
        self._before: dict[str, Tensor] = {}

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        step = step_of(trainer)
        if step in self.steps:
            if step not in self.apart:
                self._before = {n: p.detach().clone() for n, p in _named(pl_module)}
            self.apart[step] = Apart()  # of several micro-batches the last one counts
            pl_module.taps = self.apart[step].taps

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        step = self.apart.get(step_of(trainer))
        if step is None or pl_module.taps is None:
            return
        scale = scale_of(trainer)
        found = backward_numbers(step.taps.taps, loss)
        if any(numbers["grad_sum_norm"] is not None for numbers in found):
            step.sites = [
                {**tap.forward, **_unscaled(numbers, scale)}
                for tap, numbers in zip(step.taps.taps, found, strict=True)
            ]

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Accumulated, unscaled but for a fused optimizer's, not clipped."""
        step = self.apart.get(step_of(trainer))
        if step is None:
            return
        plain = getattr(optimizer, "optimizer", optimizer)
        fused = getattr(plain, "_step_supports_amp_scaling", False)
        mine = {id(p) for group in plain.param_groups for p in group["params"]}
        for name, p in _named(pl_module):
            if id(p) in mine:
                gradient = None if p.grad is None else norm(p.grad)
                if gradient is not None and fused:
                    gradient /= scale_of(trainer)
                step.parameters[name] = {"gradient_norm": gradient}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        pl_module.taps = None
        step = self.apart.get(step_of(trainer))
        for name, p in _named(pl_module) if step is not None else ():
            if name in step.parameters:
                step.parameters[name] |= _update(self._before[name], p.detach())


def _named(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters by the names that they have in the net without its wrappers."""
    wrappers = ("_orig_mod.", "_checkpoint_wrapped_module.")
    found = []
    for name, parameter in module.named_parameters():
        for wrapper in wrappers:
            name = name.replace(wrapper, "")
        found.append((name, parameter))
    return found


def _unscaled(numbers: Numbers, scale: float) -> Numbers:
    sizes = ("grad_sum_norm", "grad_input_norm", "branch_gradient", "identity_gradient")
    return {k: v / scale if k in sizes and v is not None else v for k, v in numbers.items()}


def _update(before: Tensor, after: Tensor) -> Numbers:
    weight, moved = norm(before), norm(after.double() - before.double())
    floor = 0.1 * math.sqrt(before.numel() / math.prod(before.shape[1:]))
    return {"weight_norm": weight, "update_norm": moved, "update_ratio": moved / max(weight, floor)}


def step_of(trainer: Any) -> int:
    """The optimizer step that a batch belongs to, as Lightning's own loggers count."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def scale_of(trainer: Any) -> float:
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return 1.0 if scaler is None else float(scaler.get_scale())


# ------------------------------------------------------------------ running
def monitor(mode: Mode, preset: str, **settings: Any) -> ResidualMonitor:
    """The monitor of a row."""
    given = {"preset": preset, "report": [], "on_error": "raise", **mode.options, **settings}
    return ResidualMonitor(**given)


def run(mode: Mode, body: str, *callbacks: Any, ending: Any = None) -> Result:
    """One run from the same start; `ending` may prepare module and trainer for a bad end."""
    if mode.compiled:
        torch._dynamo.reset()
        counters.clear()
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002  the generator that third parties use
    torch.manual_seed(7)
    module = mode.module(body)
    inner = getattr(module, "_orig_mod", module)
    package = "lightning.pytorch" if isinstance(inner, lp.LightningModule) else "pytorch_lightning"
    notes = Notes(min(3, mode.steps - mode.start - 2))
    with TemporaryDirectory() as root:
        trainer = _trainer(mode, inner, list(callbacks), notes, root, package)
        before = parts.attached(inner)
        if ending is not None:
            ending(trainer, inner)
        trainer = mode.fit(trainer, module, mode.data(body), Path(root)) or trainer
        inner = trainer.lightning_module or inner
    ours = [c for c in trainer.callbacks if isinstance(c, ResidualMonitor)]
    return Result(
        inner,
        trainer,
        notes.losses,
        notes.of_steps,
        [w.detach().clone() for w in parts.weights(inner)],
        [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()],  # noqa: NPY002
        before,
        parts.attached(inner, trainer.optimizers),
        notes.graphs,
        notes.alive[-1] - notes.alive[0] if len(notes.alive) > 1 else None,
        ours[0] if ours else None,
    )


@cache
def plain(mode: Mode, body: str, eager_at: tuple[int, ...] = ()) -> Result:
    """Without the monitor; a compiled mode without its compiled code at some steps."""
    return run(mode, body, *([EagerAt(eager_at)] if eager_at else []))


@cache
def watched(mode: Mode, body: str, preset: str) -> Result:
    """With it."""
    return run(mode, body, monitor(mode, preset))


@cache
def by_hand(mode: Mode, body: str, eager_at: tuple[int, ...] = ()) -> tuple[Result, ByHand]:
    """Without it, the steps that are looked at walked."""
    walking = ByHand(mode.looked)
    return run(mode, body, walking, *([EagerAt(eager_at)] if eager_at else [])), walking


def _trainer(
    mode: Mode, module: Any, callbacks: list[Any], notes: Notes, root: str, package: str
) -> Any:
    """The mode's Trainer, with the monitor first in the list or bare."""
    settings = mode.trainer()
    if callable(settings.get("logger")):
        settings["logger"] = settings["logger"](root)
    watched = any(isinstance(c, ResidualMonitor) for c in callbacks)
    others = [*(mode.beside() if watched else ()), *mode.callbacks(), notes]
    if mode.bare and watched:
        module.configure_callbacks = lambda: others + callbacks[1:]
        settings["callbacks"] = callbacks[0]
    return parts.trainer(root, *callbacks, *others, package=package, **settings)


def skipped(mode: Mode, body: str) -> list[int]:
    """The steps that no optimizer took."""
    if mode.skipped is not None:
        return list(mode.skipped)
    found = [step for step, (*_, fell) in plain(mode, body).of_steps.items() if fell]
    assert found
    return found


def captured(result: Result) -> tuple[int, ...]:
    return tuple(int(step) for step in result.history.capture_steps)


def forget() -> None:
    """Lets go of what is kept of the runs of other modes."""
    for kept in (plain, watched, by_hand):
        kept.cache_clear()
