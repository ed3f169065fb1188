"""The ResNet family, and convolutional nets that differ from it in one idea each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import Classifier, SqueezeExcite, conv_bn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; in-place addition and in-place ReLU."""

    expansion = 1

    def __init__(self, c_in: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = conv_bn(c_in, width, 3, stride)
        self.conv2 = conv_bn(width, width, 3, act=False)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or c_in != width:
            self.downsample = conv_bn(c_in, width, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.conv2(self.conv1(x))
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1; groups make it ResNeXt, a wider middle a wide ResNet, a gate SE-ResNet."""

    def __init__(
        self,
        c_in: int,
        width: int,
        stride: int = 1,
        *,
        expansion: int = 4,
        groups: int = 1,
        middle: int = 1,
        gate: bool = False,
    ) -> None:
        super().__init__()
        out = width * expansion
        self.conv1 = conv_bn(c_in, width * middle)
        self.conv2 = conv_bn(width * middle, width * middle, 3, stride, groups)
        self.conv3 = conv_bn(width * middle, out, act=False)
        self.gate = SqueezeExcite(out, 4) if gate else nn.Identity()
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or c_in != out:
            self.downsample = conv_bn(c_in, out, 1, stride, act=False)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.gate(self.conv3(self.conv2(self.conv1(x))))
        out += identity
        return self.relu(out)


def resnet(
    depths: tuple[int, ...], bottleneck: bool = False, width: int = 4, **options
) -> nn.Module:
    """ResNet of any depth: (2, 2, 2, 2) of basic blocks is ResNet-18."""
    stem = nn.Sequential(conv_bn(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
    body, c_in = [stem], width
    for stage, depth in enumerate(depths):
        for position in range(depth):
            stride = 2 if stage and not position else 1
            inner = width * 2**stage
            if bottleneck:
                body.append(Bottleneck(c_in, inner, stride, **options))
                c_in = inner * options.get("expansion", 4)
            else:
                body.append(BasicBlock(c_in, inner, stride))
                c_in = inner
    return Classifier(nn.Sequential(*body), c_in)


class PreActBlock(nn.Module):
    """Norm and ReLU before each convolution; the projection reads the activated input."""

    def __init__(self, c_in: int, width: int, stride: int, expansion: int = 4) -> None:
        super().__init__()
        out = width * expansion
        self.norm1, self.conv1 = nn.BatchNorm2d(c_in), nn.Conv2d(c_in, width, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm3, self.conv3 = nn.BatchNorm2d(width), nn.Conv2d(width, out, 1, bias=False)
        self.shortcut = None
        if stride != 1 or c_in != out:
            self.shortcut = nn.Conv2d(c_in, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(h)
        h = self.conv1(h)
        h = self.conv2(F.relu(self.norm2(h)))
        h = self.conv3(F.relu(self.norm3(h)))
        return h + shortcut


def preact_resnet(depths: tuple[int, ...], width: int = 4) -> nn.Module:
    body: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
    c_in = width
    for stage, depth in enumerate(depths):
        for position in range(depth):
            inner = width * 2**stage
            body.append(PreActBlock(c_in, inner, 2 if stage and not position else 1))
            c_in = inner * 4
    body += [nn.BatchNorm2d(c_in), nn.ReLU()]
    return Classifier(nn.Sequential(*body), c_in)


class WideBlock(nn.Module):
    """The block of a wide ResNet: pre-activation, dropout between two 3x3 convolutions."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(c_in), nn.Conv2d(c_in, width, 3, stride, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, 1, 1)
        self.drop = nn.Dropout(0.3)
        self.equal = c_in == width and stride == 1
        self.shortcut = None if self.equal else nn.Conv2d(c_in, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        out = self.conv2(self.drop(F.relu(self.norm2(self.conv1(h)))))
        return torch.add(x if self.shortcut is None else self.shortcut(h), out)


def wide_resnet(blocks: int = 4, widen: int = 2) -> nn.Module:
    """WRN-28-k for 4 blocks a group."""
    body: list[nn.Module] = [nn.Conv2d(3, 4, 3, 1, 1)]
    c_in = 4
    for group in range(3):
        for position in range(blocks):
            width = 4 * widen * 2**group
            body.append(WideBlock(c_in, width, 2 if group and not position else 1))
            c_in = width
    return Classifier(nn.Sequential(*body), c_in)


class OptionABlock(nn.Module):
    """CIFAR block whose shortcut drops every second pixel and pads channels with zeros."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv_bn(c_in, width, 3, stride)
        self.conv2 = conv_bn(width, width, 3, act=False)
        self.pad = (width - c_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.conv1(x))
        if self.pad:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(out + x)


def cifar_resnet(blocks: int = 9) -> nn.Module:
    """ResNet-56 for 9 blocks a stage."""
    body: list[nn.Module] = [conv_bn(3, 4, 3)]
    c_in = 4
    for stage in range(3):
        for position in range(blocks):
            body.append(OptionABlock(c_in, 4 * 2**stage, 2 if stage and not position else 1))
            c_in = 4 * 2**stage
    return Classifier(nn.Sequential(*body), c_in)


class StandardisedConv(nn.Conv2d):
    """Convolution whose weight is standardised on the fly: its weight is computed, not data."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.scale = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
        fan_in = self.weight[0].numel()
        weight = (self.weight - mean) * torch.rsqrt(var * fan_in + 1e-4) * self.scale
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, 1, self.groups)


class NFBlock(nn.Module):
    """Norm-free block: beta before the branch, alpha and a learned gain behind it."""

    def __init__(self, c_in: int, width: int, stride: int, beta: float, project: bool) -> None:
        super().__init__()
        self.beta, self.alpha = beta, 0.2
        self.conv1 = StandardisedConv(c_in, width, 1)
        self.conv2 = StandardisedConv(width, width, 3, stride, 1)
        self.conv3 = StandardisedConv(width, width * 4, 1)
        self.pool = nn.AvgPool2d(2) if stride == 2 else nn.Identity()
        self.shortcut = StandardisedConv(c_in, width * 4, 1) if project else None
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(x) * 1.7139588594436646 * self.beta
        shortcut = x if self.shortcut is None else self.shortcut(self.pool(h))
        out = F.relu(self.conv1(h)) * 1.7139588594436646
        out = self.conv3(F.relu(self.conv2(out)) * 1.7139588594436646)
        return out * self.gain * self.alpha + shortcut


def nf_resnet(depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 4) -> nn.Module:
    body: list[nn.Module] = [StandardisedConv(3, width, 3, 2, 1)]
    c_in, variance = width, 1.0
    for stage, depth in enumerate(depths):
        for position in range(depth):
            inner, stride = width * 2**stage, 2 if stage and not position else 1
            body.append(NFBlock(c_in, inner, stride, variance**-0.5, project=not position))
            c_in = inner * 4
            variance = 1.0 + 0.04 if not position else variance + 0.04
    return Classifier(nn.Sequential(*body), c_in)
