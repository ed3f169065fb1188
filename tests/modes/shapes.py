"""Rows: what goes through the net in a step, in which shapes, on which device."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.capture.reference import Walk
from tests.lightning import parts
from tests.modes.compiling import of_several_sizes
from tests.modes.mode import Mode
from tests.modes.nets import Net

GROUP = "Data, shapes, devices"
_row = partial(Mode, group=GROUP)


class Contrastive(Net):
    """Two views through one net, under one loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        first = self.scores(batch[0])
        second = self.scores(batch[0].flip(-1))
        return (first - second).square().mean() + F.cross_entropy(
            first.flatten(0, -2), batch[1].flatten()
        )


class StopGradient(Net):
    """The second view only serves as a target."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        first = self.scores(batch[0])
        target = self.body(batch[0].flip(-1)).detach()
        return (first - target).square().mean()


class Distilled(Net):
    """A teacher under no_grad, inside of the training step."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.teacher = copy.deepcopy(self.body).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            target = self.teacher(batch[0])
        return self.loss(batch) + (self.scores(batch[0]) - target).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.body.parameters(), lr=0.1)


class MaskedBlock(parts.GptBlock):
    """Attends under a mask, as padding wants it."""

    mask: Tensor

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unsqueeze(1).chunk(3, -1)
        attended = F.scaled_dot_product_attention(q, k, v, self.mask[:, None, None, :])
        return self.drop(self.out(attended.squeeze(1)))

    def mlp(self, x: Tensor) -> Tensor:
        return self.drop(self.down(F.gelu(self.up(self.norm2(x)))))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        x = x + self.mlp(x)
        return x * self.mask[..., None]


class Padded(Net):
    """Sequences end in padding: masked in the attention, in the stream and in the loss."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        for block in self.body.blocks:
            block.__class__ = MaskedBlock
        self.walk = walk_masked

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        tokens, targets = batch
        length = torch.arange(tokens.shape[1]) < tokens.shape[1] - 1 - torch.arange(4)[:, None]
        for block in self.body.blocks:
            block.mask = length
        scores = self.scores(tokens)
        wanted = targets.masked_fill(~length, -100)
        loss = F.cross_entropy(scores.flatten(0, -2), wanted.flatten(), ignore_index=-100)
        for block in self.body.blocks:
            del block.mask
        return loss


def walk_masked(net: Any, taps: Walk, tokens: Tensor) -> Tensor:
    x = net.tokens(tokens)
    for k, block in enumerate(net.blocks):
        x = taps.add(f"body.blocks.{k}", x, x, block.attention(x))
        x = taps.add(f"body.blocks.{k}", x, x, block.mlp(x))
        x = x * block.mask[..., None]
    return net.head(net.norm(x))


def of_several_batch_sizes(kind: str) -> Any:
    inputs, targets = parts.samples(kind, 21)
    sizes = [6, 5, 4, 3, 2, 1]
    data = [list(pair) for pair in zip(inputs.split(sizes), targets.split(sizes), strict=True)]
    return DataLoader(data, batch_size=None)


def gpu() -> str:
    return "" if torch.cuda.is_available() else "no CUDA device here"


def apple() -> str:
    return "" if torch.backends.mps.is_available() else "no MPS device here"


ON_GPU = {"trainer": lambda: {"accelerator": "gpu"}, "needs": gpu, "bodies": ("gpt",)}
MODES = [
    _row("contrastive, two forwards", module=Contrastive, note="the second forward is measured"),
    _row(
        "a second forward without gradient",
        module=StopGradient,
        note="the forward that a backward reached is measured",
    ),
    _row(
        "teacher under no_grad",
        module=Distilled,
        hidden=("teacher.*",),
        unseen=("no graph",),
    ),
    _row("varying batch size", data=of_several_batch_sizes),
    _row("varying sequence length and image size", data=of_several_sizes),
    _row(
        "padding masks",
        module=Padded,
        bodies=("gpt",),
        checks=("bits", "numbers", "endings", "growth"),
    ),
    _row("batch of 1", data=lambda kind: parts.loader(kind, 6, 1)),
    _row("CUDA", **ON_GPU),
    _row(
        "CUDA, bf16-mixed",
        **{**ON_GPU, "trainer": lambda: {"accelerator": "gpu", "precision": "bf16-mixed"}},
    ),
    _row(
        "CUDA, 16-mixed",
        **{**ON_GPU, "trainer": lambda: {"accelerator": "gpu", "precision": "16-mixed"}},
    ),
    _row(
        "MPS",
        trainer=lambda: {"accelerator": "mps"},
        needs=apple,
        checks=("bits", "endings", "growth", "copies"),
        note="its numbers cannot be computed apart in float64 there",
    ),
]
