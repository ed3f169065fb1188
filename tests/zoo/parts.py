"""Building stones that several models of the zoo share. None of them adds anything residual."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv_bn(
    c_in: int, c_out: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Sequential:
    """Convolution and BatchNorm, with an in-place ReLU behind unless told otherwise."""
    modules: list[nn.Module] = [
        nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(c_out),
    ]
    if act:
        modules.append(nn.ReLU(inplace=True))
    return nn.Sequential(*modules)


class Classifier(nn.Module):
    """A body, global average pooling and a linear head."""

    def __init__(self, body: nn.Module, width: int, classes: int = 10) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


class SqueezeExcite(nn.Module):
    """Channel gate: a product, not an addition."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.expand(F.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(gate)


class LayerNorm2d(nn.LayerNorm):
    """LayerNorm over the channels of (N, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class LayerScale(nn.Module):
    """One learned factor a channel, on the last axis."""

    def __init__(self, width: int, value: float = 1e-4) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth for single samples: a whole branch is 0 or scaled up."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(x.shape[0], *[1] * (x.dim() - 1), device=x.device) >= self.rate
        return x * keep / (1 - self.rate)


class Mlp(nn.Module):
    """Two linear maps with a GELU between them."""

    def __init__(self, width: int, ratio: int = 2, out: int | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, ratio * width)
        self.fc2 = nn.Linear(ratio * width, out or width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Attention(nn.Module):
    """Multi-head attention with the scores written out; optional context, bias and mask."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def forward(
        self, x: Tensor, context: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        k, v = self.kv(x if context is None else context).chunk(2, -1)
        q, k, v = self.split(self.q(x)), self.split(k), self.split(v)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if bias is not None:
            scores = scores + bias
        return self.out((scores.softmax(-1) @ v).transpose(-3, -2).flatten(-2))
