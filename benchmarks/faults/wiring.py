"""Faults in how blocks are wired: RES304, RES501 to RES507, RES901, RES204, RES206."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.faults import OPEN, PRE_NORM, TRANSFORMERS, at_random, everywhere, fault
from benchmarks.faults.nets import CNNS, Net, Plan
from benchmarks.faults.parts import Map
from benchmarks.faults.training import Place, Training

MODEL = ("model",)


def detached(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
    return shortcut(x).detach() + branch(x)


def copied(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
    with torch.no_grad():
        kept = shortcut(x).clone()
    return kept + branch(x)


@fault("RES304", families=(*OPEN, "post-norm"), at_once=True)
def detached_shortcut(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = everywhere(training)[1:] if rng.random() < 0.3 else [at_random(training, rng, True)]
    wire = rng.choice((detached, copied))
    for place in chosen:
        place.rewire(wire)
    return tuple(place.path for place in chosen)


# ------------------------------------------------------------------------------ the shortcut
def _deep(plan: Plan, rng: random.Random) -> Plan:
    return replace(plan, sites=rng.choice((48, 56)), width=16, steps=32, preset="debug")


@fault(
    "RES501",
    families=("batch-norm-mlp", "norm-free-mlp", "pre-activation-cnn"),
    tweak=_deep,
    at_once=True,
)
def projected_everywhere(training: Training, rng: random.Random) -> tuple[str, ...]:
    for place in everywhere(training):
        width = place.width
        linear = "mlp" in training.plan.family
        module = nn.Linear(width, width) if linear else nn.Conv2d(width, width, 1)
        start = nn.init.orthogonal_ if linear else nn.init.dirac_
        start(module.weight)
        place.block.shortcut = module
    return MODEL


@fault("RES501", families=(*OPEN, "rezero", "layerscale"), at_once=True)
def shortcut_scaled(training: Training, rng: random.Random) -> tuple[str, ...]:
    constant = rng.choice((0.1, 0.2, 0.3))

    def scaled(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
        return constant * shortcut(x) + branch(x)

    for place in everywhere(training):
        place.rewire(scaled)
    return MODEL


def pooled(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
    axes = (2, 3) if x.dim() == 4 else (1,)
    return shortcut(x) + branch(x).mean(axes, keepdim=True)


@fault("RES502", families=(*TRANSFORMERS, "pre-activation-cnn", "norm-free-cnn"), at_once=True)
def branch_broadcast(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng)
    chosen.rewire(pooled)
    return (chosen.path,)


def replaced(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
    return branch(x)


def doubled(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
    kept = shortcut(x)
    return kept + (kept + branch(x))


@fault("RES503", at_once=True, tweak=lambda plan, rng: replace(
    plan, sites=max(plan.sites, 12 if plan.family in CNNS else 8)))  # fmt: skip
def shortcut_missing(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng, True)
    chosen.rewire(replaced)
    return (chosen.path,)


@fault("RES503", families=OPEN, at_once=True)
def shortcut_doubled(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = everywhere(training) if rng.random() < 0.5 else [at_random(training, rng, True)]
    for place in chosen:
        place.rewire(doubled)
    return tuple(place.path for place in chosen)


@fault("RES504", families=("pre-norm",), info=True,
       tweak=lambda plan, rng: replace(plan, sites=rng.choice((12, 16, 24)), lr=2e-4, warmup=30,
                                       optimizer="adamw"), at_once=True)  # fmt: skip
def norm_on_stream(training: Training, rng: random.Random) -> tuple[str, ...]:
    for place in everywhere(training):
        width = training.plan.width
        place.block.add_module(f"{place.name}_after", nn.LayerNorm(width))
    return MODEL


@fault(
    "RES505",
    families=("pre-norm", "layerscale", "norm-free-mlp", "batch-norm-mlp"),
    info=True,
    at_once=True,
)
def one_block_repeated(training: Training, rng: random.Random) -> tuple[str, ...]:
    assert isinstance(training.model, Net)
    training.model.blocks = nn.ModuleList([training.model.blocks[0]] * len(training.model.blocks))
    return ("blocks.0",)


@fault("RES506", families=OPEN, at_once=True)
def shortcut_dropped(training: Training, rng: random.Random) -> tuple[str, ...]:
    rate = rng.choice((0.1, 0.2, 0.3))

    def dropped(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
        keep = torch.rand(x.shape[0], *[1] * (x.dim() - 1)) >= rate
        return shortcut(x) * keep / (1 - rate) + branch(x)

    alone = rng.random() < 0.5
    chosen = [at_random(training, rng, True)] if alone else everywhere(training)
    for place in chosen:
        place.rewire(dropped)
    return tuple(place.path for place in chosen)


class InPlace(nn.Module):
    """A branch whose first operation overwrites its input."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.inner = branch

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        out: Tensor = self.inner(F.relu_(x), context)
        return out


@fault(
    "RES507",
    families=("norm-free-mlp", "norm-free-cnn", "batch-norm-mlp", "rezero-mlp"),
    at_once=True,
)
def rewritten_in_place(training: Training, rng: random.Random) -> tuple[str, ...]:
    places = everywhere(training)[1:]
    chosen = places if rng.random() < 0.5 else [rng.choice(places)]
    for place in chosen:
        place.wrap(InPlace)
    return tuple(place.path for place in chosen)


def activated(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
    return F.relu(shortcut(x)) + branch(x)


@fault("RES507", families=OPEN, at_once=True)
def activated_on_the_way(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng, True)
    chosen.rewire(activated)
    return (chosen.path,)


@fault("RES507", families=("norm-free-mlp", "batch-norm-mlp", *PRE_NORM), at_once=True)
def normalised_on_the_way(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng, True)

    def normalised(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
        return F.layer_norm(shortcut(x), x.shape[-1:]) + branch(x)

    chosen.rewire(normalised)
    return (chosen.path,)


# ------------------------------------------------------------------------------ the branch
class Rectified(nn.Module):
    """A branch that can only add."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.inner = branch

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        out: Tensor = F.relu(self.inner(x, context))
        return out


@fault(
    "RES204",
    families=(*PRE_NORM, "pre-activation-cnn", "batch-norm-mlp", "norm-free-mlp"),
    at_once=True,
)
def branch_of_one_sign(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = everywhere(training) if rng.random() < 0.5 else [at_random(training, rng, True)]
    for place in chosen:
        place.wrap(Rectified)
    return tuple(place.path for place in chosen)


class Erasing(nn.Module):
    """A matrix that takes away most of what it reads."""

    def __init__(self, width: int, share: float) -> None:
        super().__init__()
        self.matrix = nn.Linear(width, width)
        with torch.no_grad():
            noise = 0.05 * torch.randn(width, width) / width**0.5
            self.matrix.weight.copy_(noise - share * torch.eye(width))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        out: Tensor = self.matrix(x)
        return out


@fault("RES206", families=(*PRE_NORM, "batch-norm-mlp", "norm-free-mlp"),
       tweak=lambda plan, rng: replace(plan, lr=min(plan.lr, 1e-3)), at_once=True)  # fmt: skip
def branch_erases(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng, True)
    share = rng.uniform(0.7, 1.0)
    chosen.wrap(lambda branch: Erasing(training.plan.width, share))
    return (chosen.path,)


# ------------------------------------------------------------------------------ out of sight
def _without_graph(place: Place) -> None:
    def wire(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
        with torch.no_grad():
            return shortcut(x) + branch(x)

    place.rewire(wire)


@fault("RES901", families=OPEN, at_once=True)
def block_without_graph(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng, True)
    _without_graph(chosen)
    return (chosen.path,)


@fault("RES901", families=OPEN, at_once=True)
def reentrant_checkpoint(training: Training, rng: random.Random) -> tuple[str, ...]:
    chosen = at_random(training, rng, True)

    def wire(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
        def inside(h: Tensor) -> Tensor:
            return shortcut(h) + branch(h)

        out: Tensor = checkpoint(inside, x, use_reentrant=True)
        return out

    chosen.rewire(wire)
    return (chosen.path,)
