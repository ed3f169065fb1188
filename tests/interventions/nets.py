"""Nets with every way to add; `arm` writes each one's changed forward out by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Add = Callable[[Tensor, Tensor], Tensor]  #: (s, F) -> y
WIDTH = 6


def residual(s: Tensor, f: Tensor) -> Tensor:
    return s + f


def plain(s: Tensor, f: Tensor) -> Tensor:
    return f


def scaled(factor: float) -> Add:
    return lambda s, f: s + factor * f


class Block(nn.Module):
    """`style` is how its sum is written; by hand it is `arm`'s."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def branch(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))

    def forward(self, x: Tensor) -> Tensor:  # noqa: C901 - a table of forms
        f = self.branch(x)
        match self.style:
            case "add":
                return x + f
            case "reversed":
                return f + x
            case "function":
                return torch.add(x, f)
            case "alpha":
                return torch.add(x, f, alpha=0.5)
            case "minus":
                return x - f
            case "rsub":
                return torch.rsub(f, x)
            case "into branch":
                f += x
                return torch.relu_(f)
            case "into shortcut":
                x = x * 1.0
                x += self.branch(x * 1.0)  # which autograd needs x itself for no more
                return x
            case "relu_":
                return (x + f).relu_()
            case "saved branch":  # tanh saves what it returns; relu_ writes to the sum
                return (x + torch.tanh(f)).relu_()
        raise AssertionError(self.style)

    def by_hand(self, x: Tensor, arm: Add) -> Tensor:
        f = self.branch(x)
        match self.style:
            case "alpha":
                return arm(x, 0.5 * f)
            case "minus" | "rsub":
                return arm(x, -f)
            case "into branch" | "relu_":
                return torch.relu(arm(x, f))
            case "saved branch":
                return torch.relu(arm(x, torch.tanh(f)))
        return arm(x, f)


STYLES = (
    "add", "reversed", "function", "alpha", "minus", "rsub", "into branch", "into shortcut",
    "relu_", "saved branch",
)  # fmt: skip


class Net(nn.Module):
    """A stem, blocks, a head."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Linear(3, WIDTH)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.float())

    def by_hand(self, x: Tensor, arm: Add) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block.by_hand(x, arm)
        return self.head(x.float())


class Parallel(nn.Module):
    """`x + a(x) + m(x)`: one site."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.a = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.m = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return x + self.a(normed) + self.m(normed)

    def by_hand(self, x: Tensor, arm: Add) -> Tensor:
        normed = self.norm(x)
        return arm(x, self.a(normed)) + (
            arm(0 * x, self.m(normed)) if arm is not plain else self.m(normed)
        )


class Nested(nn.Module):
    """A block whose branch holds a block."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.inner = Block("add")
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.inner(torch.tanh(self.first(x))))

    def by_hand(self, x: Tensor, arm: Add) -> Tensor:
        return arm(x, self.last(self.inner(torch.tanh(self.first(x)))))


class Projecting(nn.Module):
    """A block with a projection, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.block = Block("add")

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x) + self.block.branch(self.norm(x))


class Drawn(nn.Module):
    """A norm, then a block that is left out at random, with dropout inside."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate
        self.block = Block("add")
        self.drop, self.norm = nn.Dropout(0.3), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.training and torch.rand(()) < self.rate:
            return x
        return x + self.drop(self.block.branch(x))

    def by_hand(self, x: Tensor, arm: Add) -> Tensor:
        x = self.norm(x)
        if self.training and torch.rand(()) < self.rate:
            return x
        return arm(x, self.drop(self.block.branch(x)))


def batch(seed: int = 0, rows: int = 8) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, generator=made), torch.randint(0, 2, (rows,), generator=made)


def trained(net: nn.Module, forward: Callable[[Tensor], Tensor], steps: int = 5) -> list[Tensor]:
    """The losses and, last, all weights and buffers after some steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    weights = [*net.parameters(), *net.buffers()]
    return [*losses, *(p.detach().clone() for p in weights)]


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
