"""Blocks of the bench's nets. How a block adds is a plain function, which a fault can replace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Map = Callable[[Tensor], Tensor]
Wire = Callable[[Tensor, Map, Map], Tensor]


def add(x: Tensor, branch: Map, shortcut: Map) -> Tensor:
    """The healthy residual addition."""
    return shortcut(x) + branch(x)


class DropPath(nn.Module):
    """Stochastic depth for single samples."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.rand(x.shape[0], *[1] * (x.dim() - 1)) >= self.rate
        return x * keep / (1 - self.rate)


class Branch(nn.Module):
    """Norm, body, norm, scale: whichever of them a net has."""

    def __init__(
        self,
        body: nn.Module,
        before: nn.Module | None = None,
        after: nn.Module | None = None,
        factor: float = 1.0,
        scale: Tensor | None = None,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.before = before or nn.Identity()
        self.body = body
        self.after = after or nn.Identity()
        self.factor = factor
        self.scale = nn.Parameter(scale) if scale is not None else None
        self.drop: nn.Module = DropPath(drop) if drop else nn.Identity()

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        h: Tensor = self.after(self.body(self.before(x), context))
        if self.scale is not None:
            h = h * self.scale
        if self.factor != 1:
            h = h * self.factor
        out: Tensor = self.drop(h)
        return out


class ModulatedBranch(nn.Module):
    """adaLN-zero: shift, scale and gate from a condition, by a matrix that starts at 0."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width, elementwise_affine=False)
        self.body = body
        self.modulation = nn.Linear(width, 3 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(context)).unsqueeze(1).chunk(3, -1)
        out: Tensor = gate * self.body(self.before(x) * (1 + scale) + shift, context)
        return out


class Block(nn.Module):
    """One residual addition after the other, one for each named branch."""

    def __init__(
        self,
        branches: Mapping[str, nn.Module],
        shortcut: nn.Module | None = None,
        after: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.names = tuple(branches)
        self.wires: list[Wire] = [add] * len(branches)
        self.entry: Map | None = None
        for name, branch in branches.items():
            self.add_module(name, branch)
        for name, module in (after or {}).items():
            self.add_module(f"{name}_after", module)
        self.shortcut = shortcut or nn.Identity()

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if self.entry is not None:
            x = self.entry(x)
        for wire, name in zip(self.wires, self.names, strict=True):
            x = wire(x, partial(self.get_submodule(name), context=context), self.shortcut)
            if f"{name}_after" in self._modules:
                x = self.get_submodule(f"{name}_after")(x)
        return x


class Pair(nn.Module):
    """Two blocks of one addition each, as one."""

    def __init__(self, **blocks: Block) -> None:
        super().__init__()
        for name, block in blocks.items():
            self.add_module(name, block)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        for block in self.children():
            x = block(x, context)
        return x


class Mlp(nn.Module):
    """Two matrices."""

    def __init__(self, width: int, hidden: int, act: Map = F.gelu) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.act = act

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class Attention(nn.Module):
    """Self-attention, or attention to the context."""

    def __init__(self, width: int, heads: int, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.cross = heads, causal, cross
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = context if self.cross and context is not None else x
        k, v = self.kv(source).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal and not self.cross)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Convolutions(nn.Module):
    """Two 3x3 convolutions, with a norm between them or without."""

    def __init__(self, width_in: int, width: int, stride: int, norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=not norm)
        self.norm = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=not norm)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        out: Tensor = self.conv2(F.relu(self.norm(self.conv1(x))))
        return out


class LowRank(nn.Module):
    """LoRA: a frozen matrix and a trained product of two thin ones."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return out


def blocks_of(model: nn.Module) -> Iterator[tuple[str, Block]]:
    """The blocks of a model with their paths, along the depth."""
    for path, module in model.named_modules():
        if isinstance(module, Block):
            yield path, module
