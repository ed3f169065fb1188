"""The two nets of `tests.lightning.parts`, their forwards once more by hand, and their modules.

A *walk* redoes a net's forward out of place and hands each addition to `Walk.add`, which copies
its operands as float64 (see `tests.capture.reference`). A module with `taps` walks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as lp
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.capture.reference import Walk
from tests.lightning import parts


def walk_cnn_block(block: Any, name: str, taps: Walk, x: Tensor) -> Tensor:
    out = block.relu(block.norm1(block.conv1(x)))
    out = block.drop(block.norm2(block.conv2(out)))
    return F.relu(taps.add(name, x, x, out, rows="sample"))


def walk_cnn(net: Any, taps: Walk, images: Tensor) -> Tensor:
    x = net.stem(images)
    for k, block in enumerate(net.blocks):
        x = walk_cnn_block(block, f"body.blocks.{k}", taps, x)
    return net.head(x.mean((2, 3)))


def walk_gpt_block(block: Any, name: str, taps: Walk, x: Tensor) -> Tensor:
    q, k, v = block.qkv(block.norm1(x)).unsqueeze(1).chunk(3, -1)
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
    x = taps.add(name, x, x, block.drop(block.out(attended)))
    f = block.drop(block.down(F.gelu(block.up(block.norm2(x)))))
    return taps.add(name, x, x, f)


def walk_gpt(net: Any, taps: Walk, tokens: Tensor) -> Tensor:
    x = net.tokens(tokens)
    for k, block in enumerate(net.blocks):
        x = walk_gpt_block(block, f"body.blocks.{k}", taps, x)
    return net.head(net.norm(x))


WALKS: dict[str, Callable[[Any, Walk, Tensor], Tensor]] = {"cnn": walk_cnn, "gpt": walk_gpt}
SITES = {
    "cnn": [f"body.blocks.{k}" for k in range(3)],
    "gpt": [f"body.blocks.{k}" for k in (0, 0, 1, 1)],
}

Optimizing = Callable[[Any], Any]


def loss_of(scores: Tensor, batch: Sequence[Tensor]) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), batch[1].flatten())


def sgd(module: nn.Module) -> Any:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


class Training:
    """Walks where `taps` are set; notes nothing itself, so that it can be compiled whole.

    Args:
        kind: "cnn" or "gpt". optimizing: makes what `configure_optimizers` returns.
    """

    taps: Walk | None = None
    walk: Callable[[Any, Walk, Tensor], Tensor] | None = None  #: another than that of its kind

    def __init__(self, kind: str = "cnn", optimizing: Optimizing = sgd) -> None:
        super().__init__()
        self.kind = kind
        self.body = parts.BODIES[kind]()
        self.optimizing = optimizing

    def scores(self, inputs: Tensor) -> Tensor:
        if self.taps is None:
            return self.body(inputs)
        self.taps.taps.clear()  # of several forwards in a step the last one counts
        return (self.walk or WALKS[self.kind])(self.body, self.taps, inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scores(inputs)

    def loss(self, batch: Sequence[Tensor]) -> Tensor:
        return loss_of(self.scores(batch[0]), batch)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.body(batch[0])

    def configure_optimizers(self) -> Any:
        return self.optimizing(self)


class Net(Training, pl.LightningModule):
    """For `pytorch_lightning`."""


class OtherNet(Training, lp.LightningModule):
    """For `lightning.pytorch`."""


def without_dropout(net: nn.Module) -> nn.Module:
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return net


def with_optimizer(optimizing: Optimizing) -> Callable[[str], Net]:
    """A maker of modules with another optimizer."""
    return lambda kind: Net(kind, optimizing)
