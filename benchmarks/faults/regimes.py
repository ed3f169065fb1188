"""Faults in how a net is trained: RES001, RES302, RES303, RES401 to RES404, RES902."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.faults.faults import OPEN, at_random, everywhere, fault
from benchmarks.faults.nets import FAMILIES, MLPS, Plan
from benchmarks.faults.numbers import _names
from benchmarks.faults.training import Training, cross_entropy

MODEL = ("model",)


def _long_enough(plan: Plan, rng: random.Random) -> Plan:
    return replace(plan, cosine=False, batch=32)  # losses of few samples say little


@fault("RES001", families=(*MLPS, "pre-norm", "post-norm", "layerscale", "rezero"),
       presets=("train",), tweak=_long_enough)  # fmt: skip
def labels_by_chance(training: Training, rng: random.Random) -> tuple[str, ...]:
    generator = torch.Generator().manual_seed(training.seed)
    classes = 10 if training.plan.task in ("image", "rows", "flat") else 48

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.randint(classes, y.shape, generator=generator)

    training.change_batch = change
    return MODEL


def _post_norm(plan: Plan, rng: random.Random) -> Plan:
    return replace(
        plan, sites=rng.choice((32, 40)), lr=rng.choice((6e-3, 1e-2)), warmup=0, cosine=False,
        optimizer="adamw", width=32, steps=70, bf16=False, embedding=1.0, preset="debug",
    )  # fmt: skip


@fault("RES302", families=("post-norm",), tweak=_post_norm, presets=("debug",), spreading=True)
def no_warmup(training: Training, rng: random.Random) -> tuple[str, ...]:
    return MODEL


@fault("RES303", presets=("debug",), tweak=lambda plan, rng: replace(
    plan, steps=max(plan.steps, 100), sites=min(plan.sites, 10)))  # fmt: skip
def loss_spikes(training: Training, rng: random.Random) -> tuple[str, ...]:
    first = training.plan.warmup + 40
    chosen = set(rng.sample(range(first, training.plan.steps), 4))
    factor = rng.choice((50.0, 300.0))

    def change(step: int, loss: Tensor) -> Tensor:
        return loss * factor if step in chosen else loss

    training.before_backward = change
    return MODEL


def _hot(plan: Plan, rng: random.Random) -> Plan:
    # Clipped to norm 1, SGD's steps are spread over all weights: 2 is still no heat in a CNN.
    lr = rng.choice((10.0, 30.0)) if plan.optimizer == "sgd" else rng.choice((0.2, 0.5))
    return replace(plan, lr=lr, warmup=0)


#: In ReZero the heat goes into scalars, which blow the stream up: RES201 tells of that.
NOT_REZERO = tuple(family for family in FAMILIES if "rezero" not in family)


@fault("RES401", families=NOT_REZERO, tweak=_hot)
def rate_too_high(training: Training, rng: random.Random) -> tuple[str, ...]:
    return MODEL


def _cold(plan: Plan, rng: random.Random) -> Plan:
    return replace(plan, lr=plan.lr * 1e-5, steps=max(plan.steps, 100), sites=min(plan.sites, 10))


@fault("RES402", tweak=_cold)
def rate_too_low(training: Training, rng: random.Random) -> tuple[str, ...]:
    return MODEL


def _sixteen_bits(plan: Plan, rng: random.Random) -> Plan:
    return replace(plan, bf16=False, optimizer="adamw", lr=rng.choice((1e-5, 3e-5, 1e-4)))


@fault("RES403", families=("pre-norm", "sandwich", "batch-norm-mlp", "norm-free-mlp"),
       tweak=_sixteen_bits)  # fmt: skip
def weights_in_bfloat16(training: Training, rng: random.Random) -> tuple[str, ...]:
    training.model.to(torch.bfloat16)
    if training.plan.task in ("rows", "flat"):
        training.change_batch = lambda step, x, y: (x.bfloat16(), y)
    training.loss = cross_entropy
    return MODEL


@fault("RES404", families=(*OPEN, "post-norm", "post-activation-cnn"),
       tweak=lambda plan, rng: replace(plan, optimizer="adamw", lr=min(plan.lr, 1e-3),
                                       weight_decay=rng.choice((0.01, 0.1))))  # fmt: skip
def frozen_and_decayed(training: Training, rng: random.Random) -> tuple[str, ...]:
    some = everywhere(training)
    chosen = some[0].block if rng.random() < 0.5 else rng.choice(some).block
    path = next(place.path for place in some if place.block is chosen)
    chosen.requires_grad_(False)
    parameters = list(chosen.parameters())
    training.kept_in |= _names(training, *parameters)

    def zeros(step: int) -> None:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)

    training.after_backward = zeros
    return (path,)


# ------------------------------------------------------------------------------ not finite
class Breaking(nn.Module):
    """A branch that is not finite from one call on."""

    def __init__(self, branch: nn.Module, first: int, value: float) -> None:
        super().__init__()
        self.inner = branch
        self.first, self.value, self.calls = first, value, 0

    def forward(self, x: Tensor, context: Any = None) -> Tensor:
        out: Tensor = self.inner(x, context)
        self.calls += 1
        if self.calls > self.first:
            broken = torch.zeros_like(out)
            broken.view(-1)[0] = self.value
            out = out + broken
        return out


# Between two captures the update spreads it to every weight: only the debug preset can tell where.
@fault("RES902", families=(*OPEN, "layerscale"), presets=("debug",))
def branch_not_finite(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng)
    first = rng.randint(5, training.plan.steps - 5)
    value = rng.choice((float("nan"), float("inf")))
    chosen.wrap(lambda branch: Breaking(branch, first, value))
    return (chosen.path,)
