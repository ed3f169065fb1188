"""How well a net does on a whole set, trained on or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from skipscope.restore import unchanged
from skipscope.study.data import CHUNK
from skipscope.study.plan import Plan


@dataclass(frozen=True)
class Score:
    """Mean loss, and share of targets that were missed."""

    loss: float
    error: float


def score(plan: Plan, model: nn.Module, x: Tensor, y: Tensor, *, by_batch: bool = False) -> Score:
    """The net's loss and error in evaluation mode; the model stays as it was.

    Args:
        plan: loss, error and batch size.
        model: the net.
        x: inputs.
        y: targets.
        by_batch: BatchNorm takes the statistics of its batch, of the size trained with, and not
            the running ones, which a short training has not reached.
    """
    size = min(plan.batch_size, len(x)) if by_batch else CHUNK
    parts = max(1, len(x) // size) if by_batch else -(-len(x) // size)
    loss, wrong, targets = 0.0, 0.0, 0
    with unchanged(model), torch.no_grad():
        model.eval()
        if by_batch:
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.train()
        pairs: Sequence[tuple[Tensor, Tensor]] = list(
            zip(x.tensor_split(parts), y.tensor_split(parts), strict=True)
        )
        for inputs, wanted in pairs:
            outputs = model(inputs)
            missed = plan.wrong(outputs, wanted)
            loss += float(plan.loss_fn(outputs, wanted)) * len(inputs)
            wrong += float(missed.float().sum())
            targets += missed.numel()
    mean = loss / len(x)
    return Score(mean if math.isfinite(mean) else math.inf, wrong / targets)
