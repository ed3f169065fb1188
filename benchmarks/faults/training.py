"""One training of a net by a plan, with the places where a fault can reach into it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from benchmarks.faults.data import batch
from benchmarks.faults.nets import Plan
from benchmarks.faults.parts import Block, Wire, blocks_of
from skipscope import Monitor
from skipscope.diagnose import diagnose
from skipscope.records import Diagnosis

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(out: Tensor, target: Tensor) -> Tensor:
    """Of classes, or of the next characters."""
    return F.cross_entropy(out.float().flatten(0, -2), target.flatten())


@dataclass
class Place:
    """One residual addition of a net: a branch in a block."""

    path: str  #: of the block
    block: Block
    slot: int
    shape_kept: bool

    @property
    def name(self) -> str:
        return self.block.names[self.slot]

    @property
    def branch(self) -> nn.Module:
        return self.block.get_submodule(self.name)

    @property
    def branch_path(self) -> str:
        return f"{self.path}.{self.name}"

    def rewire(self, wire: Wire) -> None:
        """Adds in another way from now on."""
        self.block.wires[self.slot] = wire

    def wrap(self, make: Callable[[nn.Module], nn.Module]) -> None:
        """Puts another module in the branch's place."""
        setattr(self.block, self.name, make(self.branch))

    def last_weight(self) -> Tensor:
        """The weight that the branch's size is proportional to: of its last norm or matrix."""
        after = getattr(self.branch, "after", None)
        if isinstance(after, nn.LayerNorm | nn.BatchNorm2d):
            scale: Tensor = after.weight
            return scale
        matrices = [m for m in self.branch.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        chosen = [m for m in matrices if m.weight.shape[0] == self.width][-1]
        matrix: Tensor = chosen.weight
        return matrix

    @property
    def width(self) -> int:
        body = self.branch.get_submodule("body")
        last = [m for m in body.modules() if isinstance(m, nn.Linear | nn.Conv2d)][-1]
        return int(last.weight.shape[0])


@dataclass
class Training:
    """What a run needs; a fault changes some of it before the optimizer is made."""

    plan: Plan
    model: nn.Module
    seed: int
    loss: Loss = cross_entropy
    every_n_steps: int = 50  #: between the monitor's captures, for the default preset
    left_out: set[str] = field(default_factory=set)  #: trainable, and in no optimizer group
    kept_in: set[str] = field(default_factory=set)  #: frozen, and in the optimizer all the same
    before_backward: Callable[[int, Tensor], Tensor] | None = None  #: step, loss -> loss
    after_backward: Callable[[int], None] | None = None
    change_batch: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def places(self) -> list[Place]:
        """All residual additions along the depth."""
        return [
            Place(path, block, slot, isinstance(block.shortcut, nn.Identity))
            for path, block in blocks_of(self.model)
            for slot in range(len(block.names))
        ]

    def optimizer(self) -> Optimizer:
        """Over what is trained."""
        plan = self.plan
        chosen = [
            parameter
            for name, parameter in self.model.named_parameters()
            if (parameter.requires_grad or name in self.kept_in) and name not in self.left_out
        ]
        # One kernel for all weights: half of a small net's step is the optimizer's loop otherwise.
        if plan.optimizer == "sgd":
            return SGD(chosen, plan.lr, 0.9, weight_decay=plan.weight_decay, fused=True)
        return AdamW(chosen, plan.lr, weight_decay=plan.weight_decay, fused=True)

    def rate(self, step: int) -> float:
        """The learning rate of a step: warm-up, then constant or half a cosine."""
        plan = self.plan
        if step < plan.warmup:
            return plan.lr * (step + 1) / plan.warmup
        if not plan.cosine:
            return plan.lr
        done = (step - plan.warmup) / max(plan.steps - plan.warmup, 1)
        return plan.lr * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    diagnosis: Diagnosis
    earlier: tuple[Diagnosis, ...]  #: at each quarter of the run
    first_loss: float
    last_loss: float
    monitor: Monitor


def train(training: Training, steps: int | None = None) -> Outcome:
    """Trains as a plain loop with a monitor does.

    The monitor itself does not judge: at each capture of the debug preset that would be most of the
    run's time. The same rules look at its history at each quarter of the run and at its end.
    """
    plan = training.plan
    optimizer = training.optimizer()
    monitor = Monitor(
        training.model,
        optimizer,
        every_n_steps=training.every_n_steps,
        preset=plan.preset,
        on_error="raise",
        report=[],
        select=[],
    )
    last = (steps or plan.steps) - 1
    looks = {last * quarter // 4 for quarter in (1, 2, 3)}
    earlier = []
    generator = torch.Generator().manual_seed(training.seed)
    losses = []
    for step in range(steps or plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = training.rate(step)
        x, y = batch(plan.task, plan.batch, generator)
        if training.change_batch is not None:
            x, y = training.change_batch(step, x, y)
        with monitor.step():
            optimizer.zero_grad()
            cast = torch.autocast("cpu", torch.bfloat16) if plan.bf16 else nullcontext()
            with cast:
                loss = training.loss(training.model(x), y)
            losses.append(loss.detach())
            if training.before_backward is not None:
                loss = training.before_backward(step, loss)
            loss.backward()
            monitor.gradients_ready()
            nn.utils.clip_grad_norm_(training.model.parameters(), 1.0, foreach=True)
            if training.after_backward is not None:
                training.after_backward(step)
            optimizer.step()
        if step in looks:
            monitor.flush()
            earlier.append(diagnose(monitor.history))
    monitor.close()
    found = torch.stack(losses)
    return Outcome(
        diagnose(monitor.history),
        tuple(earlier),
        float(found[:5].median()),
        float(found[-10:].median()),
        monitor,
    )
