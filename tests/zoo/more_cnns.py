"""Convolutional nets from the literature: split attention, dense residuals, pyramids, recursion."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from tests.zoo.parts import Classifier, SqueezeExcite, conv_bn
from tests.zoo.resnets import BasicBlock


class InceptionResBlock(nn.Module):
    """Three concatenated columns, a linear 1x1 convolution, scaled by 0.17."""

    def __init__(self, width: int, scale: float = 0.17, act: bool = True) -> None:
        super().__init__()
        self.scale, self.act = scale, act
        self.columns = nn.ModuleList(
            [
                conv_bn(width, 4),
                nn.Sequential(conv_bn(width, 4), conv_bn(4, 4, 3)),
                nn.Sequential(conv_bn(width, 4), conv_bn(4, 4, 3), conv_bn(4, 4, 3)),
            ]
        )
        self.up = nn.Conv2d(12, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.cat([column(x) for column in self.columns], 1)
        out = x + self.scale * self.up(mixed)
        return F.relu(out) if self.act else out


class Reduction(nn.Module):
    """Pooling and two strided columns, concatenated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = conv_bn(width, 4, 3, 2)
        self.two = nn.Sequential(conv_bn(width, 4), conv_bn(4, 4, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([F.max_pool2d(x, 3, 2, 1), self.one(x), self.two(x)], 1)


def inception_resnet() -> nn.Module:
    """Inception-ResNet-v2 with 2, 2 and 2 blocks."""
    body: list[nn.Module] = [conv_bn(3, 8, 3, 2)]
    for width in (8, 16):
        body += [InceptionResBlock(width) for _ in range(2)] + [Reduction(width)]
    body += [InceptionResBlock(24), InceptionResBlock(24, act=False)]
    return Classifier(nn.Sequential(*body), 24)


class SplitAttention(nn.Module):
    """ResNeSt: the radix groups of one convolution are summed, weighted and summed again."""

    def __init__(self, width: int, radix: int = 2) -> None:
        super().__init__()
        self.radix = radix
        self.conv = conv_bn(width, width * radix, 3, groups=radix)
        self.fc1, self.fc2 = conv_bn(width, 4), nn.Conv2d(4, width * radix, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(self.conv(x), x.shape[1], 1)
        gap = sum(parts).mean((2, 3), keepdim=True)
        weight = self.fc2(self.fc1(gap)).unflatten(1, (self.radix, -1)).softmax(1)
        return sum(w * p for w, p in zip(weight.unbind(1), parts, strict=True)).contiguous()


class ResNeStBlock(nn.Module):
    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv_bn(c_in, width), SplitAttention(width)
        self.pool = nn.AvgPool2d(3, stride, 1) if stride > 1 else nn.Identity()
        self.conv3 = conv_bn(width, 2 * width, act=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or c_in != 2 * width:
            self.shortcut = nn.Sequential(
                nn.AvgPool2d(stride, stride, ceil_mode=True), conv_bn(c_in, 2 * width, act=False)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv3(self.pool(self.conv2(self.conv1(x))))
        out += self.shortcut(x)
        return F.relu(out, inplace=True)


def resnest() -> nn.Module:
    body: list[nn.Module] = [conv_bn(3, 8, 3, 2)]
    body += [ResNeStBlock(8, 8, 1), ResNeStBlock(16, 8, 1)]
    body += [ResNeStBlock(16, 16, 2), ResNeStBlock(32, 16, 1)]
    return Classifier(nn.Sequential(*body), 32)


class HRNet(nn.Module):
    """Two resolutions side by side, exchanged twice."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem, self.down = conv_bn(3, width, 3, 2), conv_bn(width, 2 * width, 3, 2)
        self.high = nn.ModuleList(BasicBlock(width, width) for _ in range(4))
        self.low = nn.ModuleList(BasicBlock(2 * width, 2 * width) for _ in range(4))
        self.to_high = nn.ModuleList(conv_bn(2 * width, width, act=False) for _ in range(2))
        self.to_low = nn.ModuleList(conv_bn(width, 2 * width, 3, 2, act=False) for _ in range(2))
        self.head = nn.Conv2d(3 * width, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.stem(x)
        low = self.down(high)
        for k in range(2):
            high = self.high[2 * k + 1](self.high[2 * k](high))
            low = self.low[2 * k + 1](self.low[2 * k](low))
            up = F.interpolate(self.to_high[k](low), scale_factor=2, mode="bilinear")
            high, low = F.relu(high + up), F.relu(self.to_low[k](high) + low)
        return self.head(torch.cat([high, F.interpolate(low, scale_factor=2)], 1))


class Hourglass(nn.Module):
    """Recursive: one block at this resolution beside three around the next lower one."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.side, self.first, self.last = (BasicBlock(width, width) for _ in range(3))
        self.inner = Hourglass(depth - 1, width) if depth > 1 else BasicBlock(width, width)

    def forward(self, x: Tensor) -> Tensor:
        low = self.last(self.inner(self.first(F.max_pool2d(x, 2))))
        return self.side(x) + F.interpolate(low, scale_factor=2)


class StackedHourglass(nn.Module):
    """Two hourglasses; features and predictions are added back to the input of the first."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = conv_bn(3, width, 3, 2)
        self.glasses = nn.ModuleList(Hourglass(2, width) for _ in range(2))
        self.features = nn.ModuleList(conv_bn(width, width) for _ in range(2))
        self.heads = nn.ModuleList(nn.Conv2d(width, 5, 1) for _ in range(2))
        self.merge_features = nn.Conv2d(width, width, 1)
        self.merge_heads = nn.Conv2d(5, width, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        outs = []
        for index, (glass, feature, head) in enumerate(
            zip(self.glasses, self.features, self.heads, strict=True)
        ):
            h = feature(glass(x))
            outs.append(head(h))
            if index == 0:
                x = x + self.merge_heads(outs[-1]) + self.merge_features(h)
        return outs


class FPN(nn.Module):
    """A ResNet of two blocks a level and a top-down path of lateral 1x1 convolutions."""

    def __init__(self, widths: tuple[int, ...] = (4, 8, 16), out: int = 8) -> None:
        super().__init__()
        self.stem = conv_bn(3, widths[0], 3, 2)
        self.levels = nn.ModuleList(
            nn.Sequential(
                BasicBlock(widths[max(0, i - 1)], w, 2 if i else 1),
                BasicBlock(w, w),
                BasicBlock(w, w),
            )
            for i, w in enumerate(widths)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(w, out, 1) for w in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(out, out, 3, 1, 1) for _ in widths)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        maps = []
        for level in self.levels:
            x = level(x)
            maps.append(x)
        outs = [self.lateral[-1](maps[-1])]
        for lateral, level_map in zip(list(self.lateral)[-2::-1], reversed(maps[:-1]), strict=True):
            outs.append(lateral(level_map) + F.interpolate(outs[-1], scale_factor=2))
        return [smooth(out) for smooth, out in zip(self.smooth, outs, strict=True)]


class C2f(nn.Module):
    """YOLOv8: split in two, bottlenecks on the last part, everything concatenated."""

    def __init__(self, c_in: int, out: int, n: int, shortcut: bool = True) -> None:
        super().__init__()
        self.c, self.shortcut = out // 2, shortcut
        self.cv1, self.cv2 = conv_bn(c_in, out), conv_bn((2 + n) * self.c, out)
        self.m = nn.ModuleList(
            nn.Sequential(conv_bn(self.c, self.c, 3), conv_bn(self.c, self.c, 3)) for _ in range(n)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).chunk(2, 1))
        for m in self.m:
            y.append(y[-1] + m(y[-1]) if self.shortcut else m(y[-1]))
        return self.cv2(torch.cat(y, 1))


class ChannelAttentionBlock(nn.Module):
    """RCAN: two convolutions and a channel gate, residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1),
            nn.ReLU(True),
            nn.Conv2d(width, width, 3, 1, 1),
            SqueezeExcite(width, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        res = self.body(x)
        res += x
        return res


class SkipOver(nn.Module):
    """x + scale * body(x)."""

    def __init__(self, *body: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.body, self.scale = nn.Sequential(*body), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.scale + x


def rcan(groups: int = 2, blocks: int = 3, width: int = 8) -> nn.Module:
    """Residual groups of residual blocks under one long skip."""
    body = [
        SkipOver(
            *[ChannelAttentionBlock(width) for _ in range(blocks)],
            nn.Conv2d(width, width, 3, 1, 1),
        )
        for _ in range(groups)
    ]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1),
        SkipOver(*body, nn.Conv2d(width, width, 3, 1, 1)),
        nn.Conv2d(width, 12, 3, 1, 1),
        nn.PixelShuffle(2),
    )


class ResidualDense(nn.Module):
    """Five densely connected convolutions, the last scaled by 0.2 and added."""

    def __init__(self, width: int = 8, grow: int = 4) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(width + i * grow, width if i == 4 else grow, 3, 1, 1) for i in range(5)
        )

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for conv in self.convs[:-1]:
            maps.append(F.leaky_relu(conv(torch.cat(maps, 1)), 0.2))
        return self.convs[-1](torch.cat(maps, 1)) * 0.2 + x


def rrdb(blocks: int = 2, width: int = 8) -> nn.Module:
    """ESRGAN's generator: residual in residual dense blocks."""
    body = [SkipOver(*[ResidualDense(width) for _ in range(3)], scale=0.2) for _ in range(blocks)]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1),
        SkipOver(*body, nn.Conv2d(width, width, 3, 1, 1)),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(width, 3, 3, 1, 1),
    )


class TemporalBlock(nn.Module):
    """TCN: two causal weight-normed convolutions; a 1x1 convolution where the width changes."""

    def __init__(self, c_in: int, out: int, dilation: int) -> None:
        super().__init__()
        self.pad = dilation
        self.conv1 = weight_norm(nn.Conv1d(c_in, out, 2, padding=dilation, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(out, out, 2, padding=dilation, dilation=dilation))
        self.downsample = nn.Conv1d(c_in, out, 1) if c_in != out else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(F.relu(self.conv1(x)[..., : -self.pad].contiguous()), 0.1, self.training)
        h = F.dropout(F.relu(self.conv2(h)[..., : -self.pad].contiguous()), 0.1, self.training)
        return F.relu(h + (x if self.downsample is None else self.downsample(x)))


def tcn() -> nn.Module:
    return nn.Sequential(*[TemporalBlock(3 if i == 0 else 8, 8, 2**i) for i in range(4)])


class InvertibleBlock(nn.Module):
    """i-ResNet: a branch of spectrally normalised convolutions."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.conv1 = spectral_norm(nn.Conv2d(width, 8, 3, 1, 1))
        self.conv2 = spectral_norm(nn.Conv2d(8, width, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.elu(self.conv1(F.elu(x))))
