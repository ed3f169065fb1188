"""Nets without residual additions: concatenations, gates, parallel sums."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import Classifier, conv_bn


def vgg(depths: tuple[int, ...] = (2, 2, 3, 3, 3)) -> nn.Module:
    """VGG-16 with BatchNorm."""
    body: list[nn.Module] = []
    c_in = 3
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            body.append(conv_bn(c_in, 4 * (stage + 1), 3))
            c_in = 4 * (stage + 1)
        body.append(nn.MaxPool2d(2))
    return Classifier(nn.Sequential(*body), c_in)


class DenseLayer(nn.Module):
    def __init__(self, c_in: int, grow: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(c_in), nn.Conv2d(c_in, 4 * grow, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * grow)
        self.conv2 = nn.Conv2d(4 * grow, grow, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(h)))], 1)


def densenet(depths: tuple[int, ...] = (6, 12, 24, 16), grow: int = 2) -> nn.Module:
    """DenseNet-121."""
    c_in = 4
    body: list[nn.Module] = [conv_bn(3, c_in, 3, 2)]
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            body.append(DenseLayer(c_in, grow))
            c_in += grow
        if stage < len(depths) - 1:
            body += [conv_bn(c_in, c_in // 2), nn.AvgPool2d(2)]
            c_in //= 2
    return Classifier(nn.Sequential(*body), c_in)


class Inception(nn.Module):
    """Four parallel paths, concatenated."""

    def __init__(self, c_in: int, width: int) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            [
                conv_bn(c_in, width),
                nn.Sequential(conv_bn(c_in, width), conv_bn(width, width, 3)),
                nn.Sequential(conv_bn(c_in, width), conv_bn(width, width, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(c_in, width)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([path(x) for path in self.paths], 1)


class GoogLeNet(nn.Module):
    """Nine Inception modules, and two auxiliary heads beside the main one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8, 3, 2)
        self.blocks = nn.ModuleList(Inception(8 if not i else 16, 4) for i in range(9))
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.aux = nn.ModuleList(nn.Linear(16, 10) for _ in range(2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.stem(x)
        aux = []
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index in (1, 6):
                x = self.pool(x)
            if index in (2, 5):
                aux.append(self.aux[len(aux)](x.mean((2, 3))))
        return self.head(x.mean((2, 3))), *aux


class InceptionV3Block(nn.Module):
    """Factorised 1x7 and 7x1 convolutions in parallel paths."""

    def __init__(self, c_in: int, width: int) -> None:
        super().__init__()
        self.one = conv_bn(c_in, width)
        self.reduce = conv_bn(c_in, width)
        self.row = nn.Conv2d(width, width, (1, 7), padding=(0, 3))
        self.column = nn.Conv2d(width, width, (7, 1), padding=(3, 0))
        self.pool = conv_bn(c_in, width)

    def forward(self, x: Tensor) -> Tensor:
        factored = F.relu(self.column(F.relu(self.row(self.reduce(x)))))
        return torch.cat([self.one(x), factored, self.pool(F.avg_pool2d(x, 3, 1, 1))], 1)


def inception_v3() -> nn.Module:
    blocks = [InceptionV3Block(8 if not i else 12, 4) for i in range(11)]
    return Classifier(nn.Sequential(conv_bn(3, 8, 3, 2), *blocks), 12)


class ShuffleUnit(nn.Module):
    """Half of the channels pass by, the other half is computed; concatenated and shuffled."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        half = width // 2
        self.stride = stride
        c_in = half if stride == 1 else width // 2
        self.right = nn.Sequential(
            conv_bn(c_in, half),
            conv_bn(half, half, 3, stride, half, act=False),
            conv_bn(half, half),
        )
        self.left = None
        if stride == 2:
            self.left = nn.Sequential(
                conv_bn(c_in, c_in, 3, 2, c_in, act=False), conv_bn(c_in, half)
            )

    def forward(self, x: Tensor) -> Tensor:
        left, right = (x, x) if self.left is not None else x.chunk(2, 1)
        left = left if self.left is None else self.left(left)
        out = torch.cat([left, self.right(right)], 1)
        return out.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def shufflenet_v2(depths: tuple[int, ...] = (4, 8, 4)) -> nn.Module:
    body: list[nn.Module] = [conv_bn(3, 4, 3, 2)]
    width = 4
    for depth in depths:
        width *= 2
        body += [ShuffleUnit(width, 1 if position else 2) for position in range(depth)]
    return Classifier(nn.Sequential(*body), width)


class UNet(nn.Module):
    """Encoder and decoder whose skips are concatenated, as in the paper."""

    def __init__(self, widths: tuple[int, ...] = (4, 8, 16, 32)) -> None:
        super().__init__()
        ins = (3, *widths[:-1])
        self.down = nn.ModuleList(
            nn.Sequential(conv_bn(a, b, 3), conv_bn(b, b, 3))
            for a, b in zip(ins, widths, strict=True)
        )
        pairs = list(zip(widths[1:], widths[:-1], strict=True))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.merge = nn.ModuleList(
            nn.Sequential(conv_bn(2 * b, b, 3), conv_bn(b, b, 3)) for _, b in pairs
        )
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for index, down in enumerate(self.down):
            x = down(x if not index else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


class Highway(nn.Module):
    """y = T(x) H(x) + (1 - T(x)) x: a gate decides, so no shortcut of fixed scale exists."""

    def __init__(self, width: int = 16, depth: int = 10) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.plain = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for plain, gate in zip(self.plain, self.gates, strict=True):
            t = torch.sigmoid(gate(x))
            x = t * torch.relu(plain(x)) + (1 - t) * x
        return self.head(x)


class HandGRU(nn.Module):
    """Stacked GRU cells written out."""

    def __init__(self, width: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outer = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))

    def forward(self, sequence: Tensor) -> Tensor:
        states = [sequence.new_zeros(sequence.shape[0], sequence.shape[2]) for _ in self.inner]
        for x in sequence.unbind(1):
            for layer, (inner, outer) in enumerate(zip(self.inner, self.outer, strict=True)):
                h = states[layer]
                xr, xz, xn = outer(x).chunk(3, -1)
                hr, hz, hn = inner(h).chunk(3, -1)
                r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
                n = torch.tanh(xn + r * hn)
                x = states[layer] = (1 - z) * n + z * h
        return x


class HandLSTM(nn.Module):
    """An LSTM cell written out: the cell state is scaled by a gate that is computed."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, sequence: Tensor) -> Tensor:
        h = c = sequence.new_zeros(sequence.shape[0], sequence.shape[2])
        for x in sequence.unbind(1):
            i, f, g, o = (self.x(x) + self.h(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


class PlainMlp(nn.Module):
    """The plain arm of a study: no shortcut anywhere, a bias added by hand."""

    def __init__(self, width: int = 16, depth: int = 10) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.bias = nn.Parameter(torch.zeros(depth, width))

    def forward(self, x: Tensor) -> Tensor:
        for layer, bias in zip(self.layers, self.bias, strict=True):
            x = torch.relu(layer(x) + bias)
        return x
