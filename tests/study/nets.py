"""Nets small enough to be trained in a moment, importable for other processes."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from skipscope import Study

WIDTH = 6


class Block(nn.Module):
    """One layer behind its activation."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH) if norm else None
        self.fc = nn.Linear(WIDTH, WIDTH)
        nn.init.kaiming_normal_(self.fc.weight, nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def branch(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(x if self.norm is None else self.norm(x)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class ByHand(Block):
    """The same without its shortcut, written by hand."""

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x)


class ReZero(Block):
    """Each branch times a trained 0."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * self.branch(x)


def net(depth: int, block: type[nn.Module] = Block) -> nn.Module:
    return nn.Sequential(nn.Linear(4, WIDTH), *(block() for _ in range(depth)), nn.Linear(WIDTH, 3))


def normed(depth: int, by_hand: bool = False) -> nn.Module:
    make = functools.partial(ByHand if by_hand else Block, norm=True)
    return nn.Sequential(nn.Linear(4, WIDTH), *(make() for _ in range(depth)), nn.Linear(WIDTH, 3))


def data(samples: int = 60) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(5)
    x = torch.randn(samples, 4, generator=drawn)
    y = x[:, :3].argmax(1)
    cut = samples * 3 // 4
    return x[:cut], y[:cut], x[cut:], y[cut:]


def study(factory=net, **changed) -> Study:  # type: ignore[no-untyped-def]
    settings = {"depths": (1, 2), "seeds": 2, "steps": 4, "batch_size": 8}
    return Study(factory, data(), **{**settings, **changed})


def slow_net(depth: int) -> nn.Module:
    """One that takes its time, so that a study can be killed on the way."""
    made = net(depth)
    made[0].register_forward_pre_hook(_take_time)
    return made


def _take_time(module: nn.Module, inputs: tuple[Tensor]) -> None:
    torch.zeros(300, 300) @ torch.zeros(300, 300)
