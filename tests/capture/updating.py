"""A step whose weights, gradients and updates are held against the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skipscope.monitor import Monitor
from tests.capture.nets import D, Residual, Stack
from tests.capture.reference import BAR, norm


def net(depth: int = 2) -> Stack:
    return Stack(lambda k: Residual(torch.add), depth)


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.randn(4, 6, D)).square().mean()


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().double().clone() for p in model.parameters()]


def monitored(model: nn.Module, *optimizers: Optimizer, **options: object) -> Monitor:
    return Monitor(model, optimizers, preset="debug", on_error="raise", **options)


@contextmanager
def step_that_agrees(
    model: nn.Module, monitor: Monitor, gradients: Callable[[], list[float | None]] | None = None
) -> Iterator[list[list[float | None]]]:
    """One step; afterwards weight, update and gradient norms must be the real ones."""
    before = weights(model)
    given: list[list[float | None]] = []
    with monitor.step():
        yield given
        wanted = given[0] if given else now(model)
    after = weights(model)
    values = {
        "weight_norm": [norm(w) for w in before],
        "update_norm": [norm(b - a) for a, b in zip(before, after, strict=True)],
        "gradient_norm": wanted,
    }
    for name, numbers in values.items():
        table = monitor.history.table(name)
        for column, number in enumerate(numbers):
            got = table.values[-1, column]
            if number is None:
                assert table.missing[-1, column], (name, table.columns[column])
            else:
                assert abs(got - number) <= BAR * number, (name, table.columns[column], got, number)


def now(model: nn.Module) -> list[float | None]:
    """Norms of the gradients as they are."""
    return [None if p.grad is None else norm(p.grad) for p in model.parameters()]
