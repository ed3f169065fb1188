"""More ways to an addition: what the branch reads, where the shortcut starts, in which axes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.capture.image_nets import images
from tests.capture.nets import (
    D,
    Encoder,
    Heads,
    Mlp,
    Stack,
    bf16,
    bf16_tokens,
    ids,
    tokens,
    walk_encoder,
    walk_stack,
)
from tests.capture.odd_nets import stacked
from tests.capture.reference import Walk
from tests.capture.steps import Case


class PreActivation(nn.Module):
    """ResNet v2: norm and ReLU first; a projection starts behind them."""

    def __init__(self, c_in: int, c_out: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(c_in), nn.BatchNorm2d(c_out)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1)
        self.down = nn.Conv2d(c_in, c_out, 1, stride) if c_in != c_out else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(x), inplace=True)
        s = x if self.down is None else self.down(h)
        out = self.conv2(F.relu(self.bn2(self.conv1(h))))
        out += s
        return out


class ImageStack(nn.Module):
    def __init__(self, *blocks: nn.Module, width: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 6, 3, 1, 1), nn.Linear(width, 5)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def pre_activation() -> nn.Module:
    return ImageStack(PreActivation(6, 6), PreActivation(6, 9, 2), PreActivation(9, 9), width=9)


def walk_pre_activation(model: ImageStack, taps: Walk, x: Tensor) -> Tensor:
    x = model.stem(x)
    for k, block in enumerate(model.blocks):
        h = F.relu(block.bn1(x))
        f = block.conv2(F.relu(block.bn2(block.conv1(h))))
        if block.down is None:
            x = taps.add(f"blocks.{k}", x, x, f, rows="sample")
        else:
            s = block.down(h)
            x = taps.add(f"blocks.{k}", h, s, f, rows="sample", kind="projection")
    return model.head(x.mean((2, 3)))


class ConvNeXt(nn.Module):
    """Linear layers on channels that are moved last and back again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, 1, 1, groups=6)
        self.norm, self.mlp = nn.LayerNorm(6), Mlp(6)

    def branch(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def walk_convnext(model: ImageStack, taps: Walk, x: Tensor) -> Tensor:
    x = model.stem(x)
    for k, block in enumerate(model.blocks):
        x = taps.add(f"blocks.{k}", x, x, block.branch(x), rows="sample")
    return model.head(x.mean((2, 3)))


class Transposed(nn.Module):
    """The stream is kept with time first, the block adds with the batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(D), Heads()

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        return (x + self.attention(self.norm(x))).transpose(0, 1)


def step_transposed(block: Transposed, name: str, taps: Walk, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return taps.add(name, x, x, block.attention(block.norm(x))).transpose(0, 1)


class FromTheNorm(nn.Module):
    """The shortcut starts behind the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(D), Mlp(D)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return h + self.mlp(h)


def step_from_the_norm(block: FromTheNorm, name: str, taps: Walk, x: Tensor) -> Tensor:
    h = block.norm(x)
    return taps.add(name, h, h, block.mlp(h))


class Reading(nn.Module):
    """Branches that read x in odd ways: twice in one operation, or in a concatenation."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.twice = twice
        self.pair, self.first = nn.Bilinear(D, D, D), nn.Linear(D, D)
        self.last = nn.Linear(2 * D, D)

    def branch(self, x: Tensor) -> Tensor:
        if self.twice:
            return torch.tanh(self.pair(x, x))
        return self.last(torch.cat([x, torch.tanh(self.first(x))], -1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def step_reading(block: Reading, name: str, taps: Walk, x: Tensor) -> Tensor:
    return taps.add(name, x, x, block.branch(x))


class LearnedScale(nn.Module):
    """A trained factor on the shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.alpha = Mlp(D), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.alpha * x + self.mlp(x)


def step_learned_scale(block: LearnedScale, name: str, taps: Walk, x: Tensor) -> Tensor:
    return taps.add(name, x, block.alpha * x, block.mlp(x), kind="scaled", scale=0.5)


def bf16_images() -> tuple[Tensor, ...]:
    return tuple(t.bfloat16() for t in images())


READING = partial(Stack, lambda k: Reading(k == 1))
CONVNEXT = Case(
    "ConvNeXt", lambda: ImageStack(ConvNeXt(), ConvNeXt(), width=6), images, walk_convnext
)
CASES = [
    Case("pre-activation", pre_activation, images, walk_pre_activation),
    Case("pre-activation in bf16", bf16(pre_activation), bf16_images, walk_pre_activation),
    Case(
        "pre-activation, autocast",
        pre_activation,
        images,
        walk_pre_activation,
        autocast=torch.bfloat16,
    ),
    Case("transposed", stacked(Transposed), tokens(), walk_stack(step_transposed)),
    Case("shortcut from the norm", stacked(FromTheNorm), tokens(), walk_stack(step_from_the_norm)),
    Case("odd readers", READING, tokens(), walk_stack(step_reading)),
    Case("odd readers in bf16", bf16(READING), bf16_tokens, walk_stack(step_reading)),
    Case("learned scale", stacked(LearnedScale), tokens(), walk_stack(step_learned_scale)),
    Case("post-norm in bf16", bf16(partial(Encoder, False)), ids, walk_encoder),
    Case("pre-norm, autocast", partial(Encoder, True), ids, walk_encoder, autocast=torch.bfloat16),
]
