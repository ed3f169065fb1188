"""Convolutional nets with in-place additions, and their walks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.capture.reference import Walk
from tests.capture.steps import Case


def images() -> tuple[Tensor, ...]:
    return (torch.randn(4, 3, 8, 8),)


class ConvBlock(nn.Module):
    """Post-activation, everything in place."""

    def __init__(self, c_in: int, c_out: int, stride: int = 1, shortcut: str = "") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut, self.stride, self.grown = shortcut, stride, c_out - c_in
        if shortcut == "projection":
            self.down = nn.Sequential(
                nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out)
            )

    def adapt(self, x: Tensor) -> Tensor:
        if self.shortcut == "projection":
            return self.down(x)
        if self.shortcut == "pad":
            return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.grown))
        return x

    def forward(self, x: Tensor) -> Tensor:
        identity = self.adapt(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class ConvNet(nn.Module):
    def __init__(self, shortcut: str = "") -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        )
        second = ConvBlock(6, 9, 2, shortcut) if shortcut else ConvBlock(6, 6)
        width = 9 if shortcut else 6
        self.blocks = nn.Sequential(ConvBlock(6, 6), second, ConvBlock(width, width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def walk_convnet(model: ConvNet, taps: Walk, x: Tensor) -> Tensor:
    x = F.relu(model.stem[1](model.stem[0](x)))
    for k, block in enumerate(model.blocks):
        s = block.adapt(x)
        f = block.bn2(block.conv2(F.relu(block.bn1(block.conv1(x)))))
        kind = "projection" if block.shortcut else "identity"
        y = taps.add(f"blocks.{k}", x, s, f, rows="sample", kind=kind)
        x = F.relu(y)
    return model.head(x.mean((2, 3)))


CASES = [
    Case("in-place ResNet", ConvNet, images, walk_convnet),
    Case("projection, conv and norm", partial(ConvNet, "projection"), images, walk_convnet),
    Case("option A padding", partial(ConvNet, "pad"), images, walk_convnet),
]
