"""Vision transformers and what followed them: isotropic, pyramidal, attention-free."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import (
    Attention,
    Classifier,
    DropPath,
    LayerNorm2d,
    LayerScale,
    Mlp,
    SqueezeExcite,
    conv_bn,
)


class ViTBlock(nn.Module):
    """Pre-norm attention and MLP, with LayerScale and stochastic depth where wanted."""

    def __init__(self, width: int, scale: float | None = None, drop: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width)
        self.norm2, self.mlp = nn.LayerNorm(width), Mlp(width)
        self.scale1 = nn.Identity() if scale is None else LayerScale(width, scale)
        self.scale2 = nn.Identity() if scale is None else LayerScale(width, scale)
        self.drop = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.scale1(self.attn(self.norm1(x))))
        return x + self.drop(self.scale2(self.mlp(self.norm2(x))))


class ViT(nn.Module):
    """Patches, a class token, a position embedding (a parameter: its addition is not residual)."""

    def __init__(self, depth: int = 12, width: int = 16, patch: int = 8, **options: float) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 1 + (64 // patch) ** 2, width) * 0.02)
        self.blocks = nn.Sequential(*[ViTBlock(width, **options) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class WindowAttention(nn.Module):
    """Attention within windows, rolled by half a window where shifted, with a position bias."""

    def __init__(self, width: int, side: int, window: int, shifted: bool, heads: int = 2) -> None:
        super().__init__()
        self.window = window
        self.shift = window // 2 if shifted and side > window else 0
        self.attn = Attention(width, heads)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        axis = torch.arange(window)
        y, x = (grid.flatten() for grid in torch.meshgrid(axis, axis, indexing="ij"))
        offset = (y[:, None] - y + window - 1) * (2 * window - 1) + x[:, None] - x + window - 1
        self.register_buffer("offset", offset)
        region = torch.zeros(side, side)
        if self.shift:
            cuts = (slice(0, -window), slice(-window, -self.shift), slice(-self.shift, None))
            for number, (a, b) in enumerate((a, b) for a in cuts for b in cuts):
                region[a, b] = number
        regions = self.cut(region[None, :, :, None]).squeeze(-1)
        self.register_buffer("mask", (regions[:, None] != regions[:, :, None]) * -100.0)

    def cut(self, x: Tensor) -> Tensor:
        """(N, H, W, C) to (N * windows, window^2, C)."""
        w = self.window
        x = x.unflatten(2, (-1, w)).unflatten(1, (-1, w)).transpose(2, 3)
        return x.flatten(0, 2).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, _ = x.shape
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        windows = self.cut(x)
        bias = self.table[self.offset].permute(2, 0, 1)
        bias = bias + self.mask.repeat(n, 1, 1)[:, None]
        out = self.attn(windows, bias=bias)
        side = self.window
        out = out.view(n, h // side, w // side, side, side, -1).transpose(2, 3).reshape(n, h, w, -1)
        return torch.roll(out, (self.shift, self.shift), (1, 2)) if self.shift else out


class SwinBlock(nn.Module):
    def __init__(self, width: int, side: int, shifted: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = WindowAttention(width, side, min(4, side), shifted)
        self.norm2, self.mlp, self.drop = nn.LayerNorm(width), Mlp(width), DropPath(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class PatchMerging(nn.Module):
    """Four neighbours concatenated, normalised and reduced."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, -1)))


class Swin(nn.Module):
    """Swin-T for (2, 2, 6, 2)."""

    def __init__(self, depths: tuple[int, ...] = (2, 2, 6, 2), width: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        body: list[nn.Module] = []
        side = 16
        for stage, depth in enumerate(depths):
            if stage:
                body.append(PatchMerging(width))
                width, side = 2 * width, side // 2
            body += [SwinBlock(width, side, bool(i % 2)) for i in range(depth)]
        self.body = nn.Sequential(*body)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.body(self.patch(images).permute(0, 2, 3, 1))
        return self.head(self.norm(x).mean((1, 2)))


class ResponseNorm(nn.Module):
    """Global response normalisation (ConvNeXt-V2): a small residual addition of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
        return self.gamma * (x * (size / (size.mean(-1, keepdim=True) + 1e-6))) + self.beta + x


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int, second: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, 1, 3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.response = ResponseNorm(4 * width) if second else nn.Identity()
        self.scale = nn.Identity() if second else LayerScale(width, 1e-6)
        self.drop = DropPath(0.1)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.norm(self.conv(x).permute(0, 2, 3, 1))
        x = self.scale(self.fc2(self.response(F.gelu(self.fc1(x)))))
        return shortcut + self.drop(x.permute(0, 3, 1, 2))


def convnext(depths: tuple[int, ...] = (3, 3, 9, 3), second: bool = False) -> nn.Module:
    """ConvNeXt-T; `second` makes it V2."""
    width = 4
    body: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), LayerNorm2d(width)]
    for stage, depth in enumerate(depths):
        if stage:
            body += [LayerNorm2d(width), nn.Conv2d(width, 2 * width, 2, 2)]
            width *= 2
        body += [ConvNeXtBlock(width, second) for _ in range(depth)]
    return Classifier(nn.Sequential(*body), width)


class PartitionAttention(nn.Module):
    """The two halves of a MaxViT block: attention in blocks or along a grid, then an MLP."""

    def __init__(self, width: int, side: int, grid: bool) -> None:
        super().__init__()
        self.side, self.grid = side, grid
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width)
        self.bias = nn.Parameter(torch.zeros(2, side * side, side * side))
        self.norm2, self.mlp, self.drop = nn.LayerNorm(width), Mlp(width), DropPath(0.1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        p = self.side
        if self.grid:
            x = x.view(n, c, p, h // p, p, w // p).permute(0, 3, 5, 2, 4, 1)
        else:
            x = x.view(n, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1)
        x = x.reshape(n, -1, p * p, c)
        x = x + self.drop(self.attn(self.norm1(x), bias=self.bias))
        x = x + self.drop(self.mlp(self.norm2(x)))
        x = x.view(n, h // p, w // p, p, p, c)
        order = (0, 5, 3, 1, 4, 2) if self.grid else (0, 5, 1, 3, 2, 4)
        return x.permute(order).reshape(n, c, h, w)


class MBConv(nn.Module):
    """Pre-norm inverted bottleneck; average pooling and 1x1 convolution where it goes down."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        inner = 2 * width
        self.proj: nn.Module = nn.Identity()
        if stride == 2 or c_in != width:
            self.proj = nn.Sequential(nn.AvgPool2d(3, stride, 1), nn.Conv2d(c_in, width, 1))
        self.body = nn.Sequential(
            nn.BatchNorm2d(c_in),
            conv_bn(c_in, inner),
            conv_bn(inner, inner, 3, stride, inner),
            SqueezeExcite(inner, 4),
            nn.Conv2d(inner, width, 1),
            DropPath(0.1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x) + self.body(x)


def maxvit(depths: tuple[int, ...] = (2, 2, 5, 2), width: int = 4) -> nn.Module:
    """MaxViT-T: each block has an MBConv and two attentions with MLPs, five additions."""
    body: list[nn.Module] = [conv_bn(3, width, 3, 2)]
    c_in, side = width, 32
    for stage, depth in enumerate(depths):
        out, side = width * 2**stage, side // 2
        for position in range(depth):
            body += [
                MBConv(c_in, out, 1 if position else 2),
                PartitionAttention(out, 2, grid=False),
                PartitionAttention(out, 2, grid=True),
            ]
            c_in = out
    return Classifier(nn.Sequential(*body), c_in)
