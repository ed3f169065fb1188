"""More convolutional nets with additions of their own: Res2Net, RegNet, DPN, RepVGG, GhostNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import Classifier, DropPath, SqueezeExcite, conv_bn


class Res2Block(nn.Module):
    """The 3x3 convolution is split in four; each slice is added to its neighbour's output."""

    def __init__(self, c_in: int, width: int, stride: int, scale: int = 4) -> None:
        super().__init__()
        self.stride, self.scale = stride, scale
        self.conv1 = conv_bn(c_in, width * scale)
        self.convs = nn.ModuleList(conv_bn(width, width, 3, stride) for _ in range(scale - 1))
        self.conv3 = conv_bn(width * scale, width * scale, act=False)
        self.pool = nn.AvgPool2d(3, stride, 1)
        self.downsample = None
        if stride != 1 or c_in != width * scale:
            self.downsample = conv_bn(c_in, width * scale, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        slices = self.conv1(x).chunk(self.scale, 1)
        outs: list[Tensor] = []
        for index, conv in enumerate(self.convs):
            first = not outs or self.downsample is not None
            piece = slices[index] if first else outs[-1] + slices[index]
            outs.append(conv(piece))
        outs.append(slices[-1] if self.downsample is None else self.pool(slices[-1]))
        out = self.conv3(torch.cat(outs, 1))
        out += x if self.downsample is None else self.downsample(x)
        return F.relu(out, inplace=True)


def res2net(depths: tuple[int, ...] = (3, 4, 6, 3)) -> nn.Module:
    body: list[nn.Module] = [conv_bn(3, 8, 3, 2)]
    c_in = 8
    for stage, depth in enumerate(depths):
        for position in range(depth):
            width = 4 * 2**stage
            body.append(Res2Block(c_in, width, 2 if stage and not position else 1))
            c_in = width * 4
    return Classifier(nn.Sequential(*body), c_in)


class RegNetBlock(nn.Module):
    """The Y block of RegNet: grouped bottleneck of ratio 1 with a squeeze-and-excite gate."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.f = nn.Sequential(
            conv_bn(c_in, width),
            conv_bn(width, width, 3, stride, width // 4),
            SqueezeExcite(width, 4),
            conv_bn(width, width, act=False),
        )
        self.proj = None
        if stride != 1 or c_in != width:
            self.proj = conv_bn(c_in, width, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.proj is None else self.proj(x)
        return F.relu(shortcut + self.f(x), inplace=True)


def regnet_y(depths: tuple[int, ...] = (1, 3, 6, 6)) -> nn.Module:
    """RegNetY-400MF for (1, 3, 6, 6)."""
    body: list[nn.Module] = [conv_bn(3, 8, 3, 2)]
    c_in = 8
    for stage, depth in enumerate(depths):
        for position in range(depth):
            body.append(RegNetBlock(c_in, 8 * (stage + 1), 1 if position else 2))
            c_in = 8 * (stage + 1)
    return Classifier(nn.Sequential(*body), c_in)


class DualPathBlock(nn.Module):
    """The first channels are added, the rest is concatenated: the shortcut is a slice of x."""

    def __init__(
        self, c_in: int, inner: int, width: int, grow: int, stride: int, first: bool
    ) -> None:
        super().__init__()
        self.width = width
        self.conv1 = conv_bn(c_in, inner)
        self.conv2 = conv_bn(inner, inner, 3, stride, 2)
        self.conv3 = conv_bn(inner, width + grow, act=False)
        self.shortcut = conv_bn(c_in, width + grow, 1, stride, act=False) if first else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv3(self.conv2(self.conv1(x)))
        x = x if self.shortcut is None else self.shortcut(x)
        w = self.width
        return F.relu(torch.cat([x[:, :w] + out[:, :w], x[:, w:], out[:, w:]], 1))


def dpn(depths: tuple[int, ...] = (3, 4, 12, 3), grow: int = 2) -> nn.Module:
    """DPN-68 for (3, 4, 12, 3)."""
    body: list[nn.Module] = [conv_bn(3, 8, 3, 2)]
    c_in = 8
    for stage, depth in enumerate(depths):
        width = 8 * 2**stage
        for position in range(depth):
            stride = 2 if stage and not position else 1
            body.append(DualPathBlock(c_in, 8, width, grow, stride, first=not position))
            c_in = width + grow * (position + 2)
    return Classifier(nn.Sequential(*body), c_in)


class RepBlock(nn.Module):
    """Three parallel linear paths, summed before the ReLU, foldable into one convolution."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.dense = conv_bn(c_in, width, 3, stride, act=False)
        self.point = conv_bn(c_in, width, 1, stride, act=False)
        self.identity = nn.BatchNorm2d(width) if c_in == width and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.dense(x) + self.point(x)
        if self.identity is not None:
            out = out + self.identity(x)
        return F.relu(out)


def repvgg(depths: tuple[int, ...] = (2, 4, 14, 1)) -> nn.Module:
    """RepVGG-A, before folding."""
    body: list[nn.Module] = [RepBlock(3, 4, 2)]
    c_in = 4
    for stage, depth in enumerate(depths):
        for position in range(depth):
            body.append(RepBlock(c_in, 4 * (stage + 1), 1 if position else 2))
            c_in = 4 * (stage + 1)
    return Classifier(nn.Sequential(*body), c_in)


class GhostModule(nn.Module):
    """Half of the channels come from a cheap depthwise convolution; returns a slice (a view)."""

    def __init__(self, c_in: int, width: int, act: bool = True) -> None:
        super().__init__()
        self.width = width
        half = (width + 1) // 2
        self.primary = conv_bn(c_in, half, act=act)
        self.cheap = conv_bn(half, half, 3, groups=half, act=act)

    def forward(self, x: Tensor) -> Tensor:
        first = self.primary(x)
        return torch.cat([first, self.cheap(first)], 1)[:, : self.width, :, :]


class GhostBlock(nn.Module):
    """Ghost bottleneck; the addition is in place, on a view."""

    def __init__(
        self, c_in: int, inner: int, width: int, kernel: int, gate: bool, stride: int
    ) -> None:
        super().__init__()
        self.ghost1 = GhostModule(c_in, inner)
        self.down = nn.Identity()
        if stride == 2:
            self.down = conv_bn(inner, inner, kernel, 2, inner, act=False)
        self.gate = SqueezeExcite(inner, 4) if gate else nn.Identity()
        self.ghost2 = GhostModule(inner, width, act=False)
        self.shortcut: nn.Module = nn.Sequential()
        if c_in != width or stride != 1:
            self.shortcut = nn.Sequential(
                conv_bn(c_in, c_in, kernel, stride, c_in, act=False),
                conv_bn(c_in, width, act=False),
            )

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = self.ghost2(self.gate(self.down(self.ghost1(x))))
        x += self.shortcut(residual)
        return x


#: kernel, expanded width / 8, width / 8, gate, stride
GHOST = (
    (3, 2, 2, False, 1), (3, 6, 3, False, 2), (3, 9, 3, False, 1), (5, 9, 5, True, 2),
    (5, 15, 5, True, 1), (3, 30, 10, False, 2), (3, 25, 10, False, 1), (3, 23, 10, False, 1),
    (3, 23, 10, False, 1), (3, 60, 14, True, 1), (3, 84, 14, True, 1), (5, 84, 20, True, 2),
    (5, 120, 20, False, 1), (5, 120, 20, True, 1), (5, 120, 20, False, 1), (5, 120, 20, True, 1),
)  # fmt: skip


def ghostnet() -> nn.Module:
    body: list[nn.Module] = [conv_bn(3, 2, 3, 2)]
    c_in = 2
    for kernel, inner, width, gate, stride in GHOST:
        body.append(GhostBlock(c_in, inner, width, kernel, gate, stride))
        c_in = width
    return Classifier(nn.Sequential(*body, conv_bn(c_in, 32)), 32)


class InvertedResidual(nn.Module):
    """Expand, depthwise, (gate,) project; the shortcut exists only where shapes agree."""

    def __init__(
        self, c_in: int, width: int, kernel: int, stride: int, ratio: int, gate: bool, drop: float
    ) -> None:
        super().__init__()
        inner = c_in * ratio
        self.body = nn.Sequential(
            *([conv_bn(c_in, inner)] if ratio != 1 else []),
            conv_bn(inner, inner, kernel, stride, inner),
            SqueezeExcite(inner, max(1, c_in // 4)) if gate else nn.Identity(),
            conv_bn(inner, width, act=False),
            DropPath(drop),
        )
        self.residual = stride == 1 and c_in == width

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


#: ratio, width, repeats, stride, kernel
MOBILENET_V2 = (
    (1, 4, 1, 1, 3), (6, 6, 2, 2, 3), (6, 8, 3, 2, 3), (6, 16, 4, 2, 3),
    (6, 24, 3, 1, 3), (6, 40, 3, 2, 3), (6, 80, 1, 1, 3),
)  # fmt: skip
EFFICIENTNET_B0 = (
    (1, 4, 1, 1, 3), (6, 6, 2, 2, 3), (6, 10, 2, 2, 5), (6, 20, 3, 2, 3),
    (6, 28, 3, 1, 5), (6, 48, 4, 2, 5), (6, 80, 1, 1, 3),
)  # fmt: skip


def inverted_residuals(table: tuple[tuple[int, ...], ...], gate: bool, drop: float) -> nn.Module:
    body: list[nn.Module] = [conv_bn(3, 8, 3, 2)]
    c_in = 8
    for ratio, width, repeats, stride, kernel in table:
        for position in range(repeats):
            step = 1 if position else stride
            body.append(InvertedResidual(c_in, width, kernel, step, ratio, gate, drop))
            c_in = width
    return Classifier(nn.Sequential(*body, conv_bn(c_in, 32)), 32)
