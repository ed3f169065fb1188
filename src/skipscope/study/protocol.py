"""What was held equal, in words; and what a study's results depend on, to tell one from another."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from skipscope.evidence.outcome import Cell
from skipscope.names import counted
from skipscope.study.arms import Arm
from skipscope.study.differing import arm_words
from skipscope.study.made_of import words
from skipscope.study.plan import Plan, own_random_state
from skipscope.study.training import describe_optimizer


def protocol(
    plan: Plan, depth: int, seeds: Sequence[int], settings: Mapping[str, str]
) -> dict[str, str]:
    """What was held equal, to be printed above the results.

    Args:
        plan: what every training is given.
        depth: at which the sites are looked at.
        seeds: those of the comparison.
        settings: the study's `configuration`.
    """
    data = plan.data
    said = {
        "seeds": ", ".join(map(str, seeds)),
        "data": f"{counted(len(data.x_train), 'sample')} to train on and {len(data.x_validation)} "
        "to validate, not augmented by the study",
        "steps": f"{plan.steps} of {_batch(plan)}",
        "batches": "the same order for a seed in all arms; an epoch's last, if not full, left out",
        "weights": _weights(plan),
        "optimizer": settings["optimizer"],
        "torch": torch.__version__,
    }
    if _projects(plan, depth, seeds[0]):
        said["P(x)"] = "kept in the plain arms" if plan.projections == "keep" else "cut too"
    return said


def _batch(plan: Plan) -> str:
    """The size of a batch; that it is not the one asked for, where there are fewer samples."""
    samples = len(plan.data.x_train)
    if plan.batch_size <= samples:
        return counted(plan.batch_size, "sample")
    return f"all {counted(samples, 'sample')}, fewer than the batch size of {plan.batch_size}"


def _weights(plan: Plan) -> str:
    """Where the initial weights come from, and whether they stay so in all arms."""
    made_by = {(arm.facts.pair, id(arm.factory or plan.factory)) for arm in plan.arms}
    if len(made_by) > len({pair for pair, _ in made_by}):
        drawn = "as each arm's factory draws them, from the same seed in all arms of a pair"
    elif isinstance(plan.factory, nn.Module):
        drawn = "at the start those of the given model"
    else:
        drawn = "as the factory draws them: the same for a seed in all arms of a pair"
    started = any(arm.start is not None for arm in plan.arms)
    return f"{drawn}; an arm's own start then changes them" if started else drawn


def _projects(plan: Plan, depth: int, seed: int) -> bool:
    """Whether a plain arm has a projection that could be kept or cut."""
    with own_random_state():
        models = [plan.build(a, depth, seed)[0] for a in plan.arms if a.facts.role == "plain"]
        return any(site.kind == "projection" for model in models for site in plan.sites(model))


def configuration(plan: Plan, cells: Sequence[Cell], seed: int, lr: float) -> dict[str, str]:
    """All that a result depends on, each as a short text; equal texts mean an equal study."""
    settings = {
        "cells": _hash("\n".join(cell.key for cell in cells)),
        "depths": _listed(cell.depth for cell in cells),
        "seeds": _listed(cell.seed for cell in cells),
        "learning rates": ", ".join(f"{lr:g}" for lr in sorted({cell.lr for cell in cells})),
        "data": plan.data.fingerprint,
        "steps": str(plan.steps),
        "batch size": str(plan.batch_size),
        "loss": words(plan.loss_fn),
        "error": words(plan.wrong),
        "optimizer": _optimizer(plan, cells[0], lr),
        "optimizer made by": words(plan.optimizer),
        "projections": plan.projections,
        "device": plan.device,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
    }
    for arm in plan.arms:
        settings[f"arm {arm.name}"] = _arm(plan, arm, min(c.depth for c in cells), seed)
    return settings


def _listed(numbers: Any) -> str:
    return ", ".join(map(str, sorted(set(numbers))))


def _arm(plan: Plan, arm: Arm, depth: int, seed: int) -> str:
    """How an arm adds, starts and trains; with the model's wiring and weights at one depth."""
    with own_random_state():
        model, weights = plan.build(arm, depth, seed)
    return arm_words(arm, _hash(repr(model)), weights)


def _optimizer(plan: Plan, cell: Cell, lr: float) -> str:
    """As it is made for a model of the study: it may look at what it is given."""
    with own_random_state():
        model, _ = plan.build(plan.arm(cell.arm), cell.depth, cell.seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    return describe_optimizer(plan.optimizer(trained, lr))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
