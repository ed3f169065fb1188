"""Vision transformers and hybrids beyond the plain ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import Attention, LayerScale, Mlp, conv_bn
from tests.zoo.sequence import PreNorm
from tests.zoo.variants import InvertedResidual
from tests.zoo.vision import SwinBlock, ViTBlock


class SwinIR(nn.Module):
    """Denoising: residual Swin groups with a convolution, a long skip, and x + net(x)."""

    def __init__(self, groups: int = 2, depth: int = 2, width: int = 8, side: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.groups = nn.ModuleList(
            nn.Sequential(*[SwinBlock(width, side, bool(i % 2)) for i in range(depth)])
            for _ in range(groups)
        )
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(groups))
        self.norm, self.after = nn.LayerNorm(width), nn.Conv2d(width, width, 3, 1, 1)
        self.last = nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        shallow = self.first(images)
        x = shallow.permute(0, 2, 3, 1)
        for group, conv in zip(self.groups, self.convs, strict=True):
            x = conv(group(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1) + x
        deep = self.after(self.norm(x).permute(0, 3, 1, 2)) + shallow
        return images + self.last(deep)


class CaiT(nn.Module):
    """LayerScale blocks, then two blocks in which a class token alone attends."""

    def __init__(self, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.Sequential(*[ViTBlock(width, scale=1e-4) for _ in range(depth)])
        self.readers = nn.ModuleList(ViTBlock(width, scale=1e-4) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.patch(images).flatten(2).transpose(1, 2))
        cls = self.token.expand(len(x), -1, -1)
        for block in self.readers:
            both = block.norm1(torch.cat([cls, x], 1))
            cls = cls + block.scale1(block.attn(both[:, :1], both))
            cls = cls + block.scale2(block.mlp(block.norm2(cls)))
        return cls[:, 0]


class XCiTBlock(nn.Module):
    """Cross-covariance attention, local patch interaction, MLP."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.scales = nn.ModuleList(LayerScale(width, 1.0) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.temperature = nn.Parameter(torch.ones(2, 1, 1))
        self.local = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, groups=width),
            nn.GELU(),
            nn.BatchNorm2d(width),
            nn.Conv2d(width, width, 3, 1, 1, groups=width),
        )
        self.mlp = Mlp(width)

    def xca(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 4, 1)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        scores = (q @ k.transpose(-2, -1) * self.temperature).softmax(-1)
        return self.out((scores @ v).permute(0, 3, 1, 2).flatten(-2))

    def lpi(self, x: Tensor) -> Tensor:
        grid = x.transpose(1, 2).unflatten(-1, (self.side, self.side))
        return self.local(grid).flatten(2).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scales[0](self.xca(self.norms[0](x)))
        x = x + self.scales[1](self.lpi(self.norms[1](x)))
        return x + self.scales[2](self.mlp(self.norms[2](x)))


class Patches(nn.Module):
    """Patches, a body over tokens, mean pooling, a head."""

    def __init__(self, *body: nn.Module, width: int = 16, patch: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.body, self.head = nn.Sequential(*body), nn.Linear(width, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(self.patch(images).flatten(2).transpose(1, 2)).mean(1))


class MobileViTBlock(nn.Module):
    """Local convolutions, a transformer over unfolded patches, fusion by concatenation."""

    def __init__(self, width: int, depth: int = 2) -> None:
        super().__init__()
        self.local = nn.Sequential(conv_bn(width, width, 3), nn.Conv2d(width, 16, 1))
        self.body = nn.Sequential(*[PreNorm(16) for _ in range(depth)])
        self.back, self.fuse = conv_bn(16, width), conv_bn(2 * width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.local(x)
        n, c, height, width = h.shape
        h = h.reshape(n, c, height // 2, 2, width // 2, 2).permute(0, 3, 5, 2, 4, 1)
        h = self.body(h.reshape(n * 4, -1, c)).reshape(n, 2, 2, height // 2, width // 2, c)
        h = h.permute(0, 5, 3, 1, 4, 2).reshape(n, c, height, width)
        return self.fuse(torch.cat([x, self.back(h)], 1))


def mobilevit() -> nn.Module:
    """Inverted residuals (three of them keep the shape) and two MobileViT blocks."""
    return nn.Sequential(
        conv_bn(3, 8, 3, 2),
        InvertedResidual(8, 8, 3, 1, 2, False, 0.0),
        InvertedResidual(8, 16, 3, 2, 2, False, 0.0),
        InvertedResidual(16, 16, 3, 1, 2, False, 0.0),
        InvertedResidual(16, 16, 3, 1, 2, False, 0.0),
        MobileViTBlock(16),
        InvertedResidual(16, 24, 3, 2, 2, False, 0.0),
        MobileViTBlock(24),
    )


class ReducedAttention(nn.Module):
    """PVT: keys and values from a strided convolution of the tokens."""

    def __init__(self, width: int, side: int, ratio: int = 2) -> None:
        super().__init__()
        self.side, self.attn = side, Attention(width)
        self.reduce, self.norm = nn.Conv2d(width, width, ratio, ratio), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        grid = x.transpose(1, 2).unflatten(-1, (self.side, self.side))
        return self.attn(x, self.norm(self.reduce(grid).flatten(2).transpose(1, 2)))


class PVTBlock(PreNorm):
    def __init__(self, width: int, side: int) -> None:
        super().__init__(width)
        self.attn = ReducedAttention(width, side)


class PositionConv(nn.Module):
    """Twins / CPVT: a depthwise convolution of the grid, added to it."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side, self.conv = side, nn.Conv2d(width, width, 3, 1, 1, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        grid = x.transpose(1, 2).view(len(x), -1, self.side, self.side)
        return (self.conv(grid) + grid).flatten(2).transpose(1, 2)


class FocalModulation(nn.Module):
    """Contexts of growing reach are summed by data-dependent gates and multiply the query."""

    def __init__(self, width: int, levels: int = 3) -> None:
        super().__init__()
        self.levels, self.width = levels, width
        self.inner = nn.Linear(width, 2 * width + levels + 1)
        self.context = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, groups=width), nn.GELU())
            for _ in range(levels)
        )
        self.h, self.out = nn.Conv2d(width, width, 1), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, ctx, gates = self.inner(x).split([self.width, self.width, self.levels + 1], -1)
        ctx, gates = ctx.permute(0, 3, 1, 2), gates.permute(0, 3, 1, 2)
        total: Tensor | float = 0
        for level, context in enumerate(self.context):
            ctx = context(ctx)
            total = total + ctx * gates[:, level : level + 1]
        total = total + F.gelu(ctx.mean((2, 3), keepdim=True)) * gates[:, self.levels :]
        return self.out(q * self.h(total).permute(0, 2, 3, 1))


class FocalNet(nn.Module):
    def __init__(self, depth: int = 2, width: int = 8) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.blocks = nn.ModuleList(PreNorm(width) for _ in range(depth))
        for block in self.blocks:
            block.attn = FocalModulation(width)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x)
        return x.mean((1, 2))


class CrossViT(nn.Module):
    """Two scales; each one's class token reads the patches of the other, with one addition."""

    def __init__(self, depth: int = 2, small: int = 8, large: int = 16) -> None:
        super().__init__()
        widths = (small, large)
        self.patch = nn.ModuleList(
            nn.Conv2d(3, w, p, p) for w, p in zip(widths, (8, 16), strict=True)
        )
        self.token = nn.ParameterList(nn.Parameter(torch.zeros(1, 1, w)) for w in widths)
        self.body = nn.ModuleList(
            nn.Sequential(*[PreNorm(w) for _ in range(depth)]) for w in widths
        )
        self.into = nn.ModuleList(nn.Linear(a, b) for a, b in (widths, widths[::-1]))
        self.back = nn.ModuleList(nn.Linear(b, a) for a, b in (widths, widths[::-1]))
        self.norm = nn.ModuleList(nn.LayerNorm(w) for w in widths[::-1])
        self.cross = nn.ModuleList(Attention(w) for w in widths[::-1])

    def forward(self, images: Tensor) -> Tensor:
        xs = []
        for patch, token, body in zip(self.patch, self.token, self.body, strict=True):
            x = patch(images).flatten(2).transpose(1, 2)
            xs.append(body(torch.cat([token.expand(len(x), -1, -1), x], 1)))
        outs = []
        for k, x in enumerate(xs):
            cls, other = self.into[k](x[:, :1]), xs[1 - k][:, 1:]
            h = self.norm[k](torch.cat([cls, other], 1))
            cls = cls + self.cross[k](h[:, :1], h)
            outs.append(torch.cat([self.back[k](cls), x[:, 1:]], 1)[:, 0])
        return torch.cat(outs, -1)


class GMLPBlock(nn.Module):
    """A spatial gating unit: one half multiplies the other, mixed over tokens."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.spatial = nn.Linear(tokens, tokens)

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.fc1(self.norm(x))).chunk(2, -1)
        v = self.spatial(self.inner(v).transpose(1, 2)).transpose(1, 2)
        return self.fc2(u * v) + x


class EfficientFormer(nn.Module):
    """Pooling blocks on the grid, then attention blocks on tokens."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = conv_bn(3, width, 8, 8)
        self.convs = nn.ModuleList(
            nn.Sequential(conv_bn(width, 16), conv_bn(16, width, act=False)) for _ in range(2)
        )
        self.tokens = nn.Sequential(*[ViTBlock(width, scale=1e-5) for _ in range(2)])

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for conv in self.convs:
            x = x + (F.avg_pool2d(x, 3, 1, 1) - x)
            x = x + conv(x)
        return self.tokens(x.flatten(2).transpose(1, 2))
