"""Faults in sizes: RES101 to RES105, RES201 to RES203, RES205, RES301."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.faults.faults import OPEN, PRE_NORM, at_random, everywhere, fault
from benchmarks.faults.nets import Plan
from benchmarks.faults.parts import Branch, ModulatedBranch
from benchmarks.faults.training import Training

MODEL = ("model",)


@fault("RES101", families=(*OPEN, "post-norm", "post-activation-cnn"),
       tweak=lambda plan, rng: replace(plan, lr=plan.lr / 3,
                                       sites=max(plan.sites, 12)))  # fmt: skip
def one_branch_too_large(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng, True)
    with torch.no_grad():
        chosen.last_weight().mul_(rng.choice((20.0, 40.0, 80.0)))
    return (chosen.path,)


@fault("RES102", families=PRE_NORM, info=True,
       tweak=lambda plan, rng: replace(plan, task="text", embedding=rng.choice((5e-4, 2e-3)),
                                       steps=max(plan.steps, 70)))  # fmt: skip
def embedding_too_small(training: Training, rng: random.Random) -> tuple[str, ...]:
    return ("blocks.0",)


# ------------------------------------------------------------------------------ dead branches
@fault("RES103", families=("rezero", "rezero-mlp", "adaln-zero", "layerscale", "zero-gamma-cnn"))
def both_factors_zero(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng)
    branch = chosen.branch
    with torch.no_grad():
        if isinstance(branch, Branch) and branch.scale is not None:
            branch.scale.zero_()
        if isinstance(branch, Branch) and branch.scale is None:
            for parameter in branch.body.get_submodule("conv2").parameters():
                parameter.zero_()
        else:
            last = [m for m in branch.get_submodule("body").modules() if isinstance(m, nn.Linear)]
            last[-1].weight.zero_()
            last[-1].bias.zero_()
    if training.plan.family == "zero-gamma-cnn":  # the norm's shift would wake it
        training.left_out |= _names(training, chosen.branch.get_submodule("after").bias)
        chosen.branch.get_submodule("after").bias.requires_grad_(False)
    return (chosen.path,)


@fault("RES103", families=("rezero", "rezero-mlp", "adaln-zero"))
def gate_in_no_group(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = everywhere(training) if rng.random() < 0.5 else [at_random(training, rng)]
    for place in chosen:
        branch = place.branch
        if isinstance(branch, ModulatedBranch):
            training.left_out |= _names(training, *branch.modulation.parameters())
        elif isinstance(branch, Branch) and branch.scale is not None:
            training.left_out |= _names(training, branch.scale)
    return tuple(place.path for place in chosen)


class TimesZero(nn.Module):
    """A coefficient of 0."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.inner = branch

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        out: Tensor = self.inner(x, context) * 0.0
        return out


@fault("RES103")
def coefficient_zero(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng)
    chosen.wrap(TimesZero)
    return (chosen.path,)


@fault("RES104", families=(*OPEN, "post-norm", "layerscale", "post-activation-cnn"))
def weight_in_no_group(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng, True)
    inside = [m for m in chosen.branch.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    one = rng.choice(inside)
    training.left_out |= _names(training, one.weight)
    return tuple(training.left_out)


class NoGradient(nn.Module):
    """A part that runs under no_grad."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Any) -> Tensor:
        with torch.no_grad():
            out: Tensor = self.inner(*inputs)
        return out


@fault("RES104", families=("pre-norm", "norm-free-mlp", "batch-norm-mlp", "sandwich"),
       spreading=True)  # fmt: skip
def first_matrix_without_gradient(training: Training, rng: random.Random) -> tuple[str, ...]:
    places = [place for place in everywhere(training) if place.name in ("mlp", "branch")]
    places = [place for place in places if hasattr(place.branch.get_submodule("body"), "fc1")]
    chosen = rng.choice(places[1:])
    body = chosen.branch.get_submodule("body")
    body.add_module("fc1", NoGradient(body.get_submodule("fc1")))
    return (f"{chosen.branch_path}.body.fc1",)


def _names(training: Training, *parameters: Any) -> set[str]:
    wanted = {id(parameter) for parameter in parameters}
    return {name for name, p in training.model.named_parameters() if id(p) in wanted}


# ------------------------------------------------------------------------------ growth
def _one_stage(plan: Plan, rng: random.Random) -> Plan:
    steps = min(plan.steps, 200)  # it shows at step 0
    return replace(plan, sites=max(plan.sites, 16), lr=1e-4, bf16=False, steps=steps)


@fault("RES105", families=("norm-free-mlp",), tweak=_one_stage, at_once=True)
def first_half_unscaled(training: Training, rng: random.Random) -> tuple[str, ...]:
    places = everywhere(training)
    for place in places[: len(places) // 2]:
        assert isinstance(place.branch, Branch)
        place.branch.factor = rng.uniform(2.0, 3.0)
    return MODEL


@fault("RES201", families=("norm-free-mlp", "norm-free-cnn"), tweak=_one_stage, at_once=True)
def branches_unscaled(training: Training, rng: random.Random) -> tuple[str, ...]:
    deep_enough = training.plan.family == "norm-free-mlp"  # a CNN has stages of half the depth
    factor = rng.uniform(1.0, 1.5) if deep_enough else rng.uniform(1.7, 2.5)
    for place in training.places():
        assert isinstance(place.branch, Branch)
        place.branch.factor = factor
    return MODEL


class Shifted(nn.Module):
    """What is in front of the first block, and the same vector for all."""

    def __init__(self, stem: nn.Module, width: int, size: float) -> None:
        super().__init__()
        self.inner = stem
        vector = torch.randn(width)
        self.offset = nn.Parameter(size * vector / vector.square().mean().sqrt())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + self.offset
        return out


@fault("RES202", families=("pre-norm", "layerscale"), info=True, presets=("train",),
       tweak=lambda plan, rng: replace(plan, task="text", embedding=1.0, steps=600, sites=8,
                                       lr=min(plan.lr, 3e-4)))  # fmt: skip
def stream_shifted(training: Training, rng: random.Random) -> tuple[str, ...]:
    stem = training.model.get_submodule("stem")
    training.model.add_module("stem", Shifted(stem, training.plan.width, rng.uniform(6, 8)))
    return MODEL


@fault("RES203", families=("pre-norm",), info=True, presets=("train",),
       tweak=lambda plan, rng: replace(plan, embedding=1.0, optimizer="adamw",
                                       lr=min(plan.lr, 5e-5)))  # fmt: skip
def late_branches_small(training: Training, rng: random.Random) -> tuple[str, ...]:
    factor = rng.uniform(0.003, 0.006)  # as many times larger after training it is still small
    for place in training.places():
        assert isinstance(place.branch, Branch)
        place.branch.factor = factor
    return MODEL


@fault("RES205", families=(*PRE_NORM, "layerscale", "batch-norm-mlp"),
       tweak=lambda plan, rng: replace(plan, embedding=1.0, lr=min(plan.lr, 5e-4)))  # fmt: skip
def rows_alike(training: Training, rng: random.Random) -> tuple[str, ...]:
    stem = training.model.get_submodule("stem")
    training.model.add_module("stem", Shifted(stem, training.plan.width, rng.uniform(50, 150)))
    return MODEL


class Dimmed(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a constant."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor, None


@fault("RES301", families=("pre-norm", "norm-free-mlp", "batch-norm-mlp", "layerscale"),
       tweak=lambda plan, rng: replace(plan, sites=max(plan.sites, 12)),
       spreading=True)  # fmt: skip
def gradient_dimmed(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng, True)
    factor = rng.choice((1e-5, 1e-4))

    def entry(x: Tensor) -> Tensor:
        out: Tensor = Dimmed.apply(x, factor)  # type: ignore[no-untyped-call]
        return out

    chosen.block.entry = entry
    return MODEL
