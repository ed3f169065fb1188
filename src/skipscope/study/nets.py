"""The nets of the named studies. `depth` counts layers with weights, as the literature does."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shortcut = Literal["identity", "boundaries", "all"]


def _he(net: nn.Module) -> None:
    """He's normal start for every matrix, biases 0."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class _Block(nn.Module):
    """Two layers, each behind its activation (pre-activation), and a norm before that or none."""

    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm1d(width) if norm else None
        self.first = nn.Linear(width, width)
        self.norm2 = nn.BatchNorm1d(width) if norm else None
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(x if self.norm1 is None else self.norm1(x))
        hidden = self.first(hidden)
        hidden = torch.relu(hidden if self.norm2 is None else self.norm2(hidden))
        summed: Tensor = x + self.last(hidden)
        return summed


def mlp(depth: int, *, norm: bool = False, width: int = 32) -> nn.Module:
    """A residual MLP of depth 2n + 2 for rows of 64 pixels: a stem, n blocks of two layers, a head.

    Without a norm there is none anywhere; with BatchNorm one stands before the head too. Stem and
    head start as PyTorch makes them.
    """
    count, rest = divmod(depth - 2, 2)
    if rest or count < 1:
        raise ValueError(f"stem, blocks of two layers, head: depth must be 2n + 2, got {depth}")
    blocks = nn.Sequential(*(_Block(width, norm) for _ in range(count)))
    _he(blocks)
    end: list[nn.Module] = [nn.BatchNorm1d(width), nn.ReLU()] if norm else []
    return nn.Sequential(nn.Linear(64, width), *blocks, *end, nn.Linear(width, 10))


class _ConvBlock(nn.Module):
    """Two 3 x 3 convolutions, each behind its BatchNorm and ReLU (pre-activation)."""

    def __init__(self, width: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.stride = stride
        self.projection: nn.Module | None = None
        if shortcut == "all" or (shortcut == "boundaries" and stride > 1):
            self.projection = nn.Conv2d(width, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.conv1(torch.relu(self.norm1(x)))
        branch = self.conv2(torch.relu(self.norm2(branch)))
        thinned = x[:, :, :: self.stride, :: self.stride]
        summed: Tensor = (thinned if self.projection is None else self.projection(x)) + branch
        return summed


class _Image(nn.Module):
    """Rows of 64 pixels as images."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 1, 8, 8)


class _Pool(nn.Module):
    """The mean over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def cnn(depth: int, *, shortcut: Shortcut = "boundaries", width: int = 8) -> nn.Module:
    """A ResNet of depth 6n + 2 for 8 x 8 pixels: three stages of n blocks, of one width.

    Between stages the resolution halves, so the shortcut there takes every second pixel
    ("identity") or is a projection ("boundaries"); "all" projects at every block. Nothing but sums
    stands on the main path, and every matrix starts as PyTorch makes it.
    """
    blocks_per_stage, rest = divmod(depth - 2, 6)
    if rest or blocks_per_stage < 1:
        raise ValueError(f"three stages of blocks of two layers: depth must be 6n + 2, got {depth}")
    blocks = [
        _ConvBlock(width, 2 if stage and not position else 1, shortcut)
        for stage in range(3)
        for position in range(blocks_per_stage)
    ]
    stem = nn.Conv2d(1, width, 3, 1, 1, bias=False)
    end = [nn.BatchNorm2d(width), nn.ReLU(), _Pool(), nn.Linear(width, 10)]
    return nn.Sequential(_Image(), stem, *blocks, *end)


class _Attention(nn.Module):
    """Self-attention over all tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.entry = nn.Linear(width, 3 * width)
        self.exit = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.entry(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        left: Tensor = self.exit(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return left


class _Layer(nn.Module):
    """Attention and an MLP; the norm stands in each branch (pre) or behind each sum (post)."""

    def __init__(self, width: int, post: bool) -> None:
        super().__init__()
        self.post = post
        self.attention = _Attention(width, 4)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attention(x))
            x = self.norm2(x + self.mlp(x))
        else:
            x = x + self.attention(self.norm1(x))
            x = x + self.mlp(self.norm2(x))
        return x


class _Rows(nn.Module):
    """The eight rows of an image as tokens, with their positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.entry = nn.Linear(8, width)
        self.position = nn.Parameter(0.02 * torch.randn(8, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.entry(x.view(-1, 8, 8)) + self.position
        return tokens


class _Mean(nn.Module):
    """The mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def transformer(depth: int, *, post: bool = False, width: int = 32) -> nn.Module:
    """A transformer of `depth` layers (two sites each) over the rows of 8 x 8 pixels."""
    layers = [_Layer(width, post) for _ in range(depth)]
    end = [] if post else [nn.LayerNorm(width)]
    net = nn.Sequential(_Rows(width), *layers, *end, _Mean(), nn.Linear(width, 10))
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return net
