"""A net that remembers what it made and fails on request, and ways to interrupt its step."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from skipscope.monitor import Monitor
from tests.capture.nets import D, Residual, Stack


class Remembering(Stack):
    """Keeps weak references to every tensor of the stream."""

    def __init__(self) -> None:
        super().__init__(lambda k: Residual(torch.add), 3)
        self.seen: list[weakref.ref[Tensor]] = []
        self.fail_at: int | None = None
        self.error: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for k, block in enumerate(self.blocks):
            self.seen.append(weakref.ref(x))
            if k == self.fail_at:
                raise self.error
            x = block(x)
            x.grad_fn.metadata["mark"] = mark = Mark()
            self.seen.append(weakref.ref(mark))
        return self.head(x)


class Mark:
    """Lives as long as the node of the graph that it is put on."""


def setting(**options: Any) -> tuple[Remembering, torch.optim.Optimizer, Monitor]:
    model = Remembering()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, Monitor(model, optimizer, **{"preset": "debug", **options})


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, monitor: Monitor) -> None:
    with monitor.step():
        optimizer.zero_grad()
        model(torch.randn(4, 6, D)).square().mean().backward()
        optimizer.step()


def interrupted(
    model: Remembering, optimizer: torch.optim.Optimizer, error: BaseException, where: str
) -> None:
    if where == "forward":
        model.fail_at, model.error = 1, error
    loss = Failing.apply(model(torch.randn(4, 6, D)), error if where == "backward" else None)
    loss.square().mean().backward()
    if where == "step":
        handle = optimizer.register_step_pre_hook(lambda *_: raise_(error))
        try:
            optimizer.step()
        finally:
            handle.remove()
    raise error


class Failing(torch.autograd.Function):
    """Raises in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, error: BaseException | None) -> Tensor:
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.error is not None:
            raise ctx.error
        return gradient, None


def raise_(error: BaseException) -> None:
    raise error
