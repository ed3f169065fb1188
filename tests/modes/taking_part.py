"""Rows: which parameters take part, and callbacks that change them or the run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    EMAWeightAveraging,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from torch import Tensor, nn

from tests.lightning.parts import loader
from tests.modes.mode import Mode
from tests.modes.nets import Net
from tests.modes.optimisation import GROUP, epochs, three

_row = partial(Mode, group=GROUP)
FROZEN = "the whole block is frozen"
NO_INPUT = "x has no gradient: it is a raw input or behind frozen layers"


def prefix_of(body: Any) -> list[nn.Module]:
    """What stands before the second block."""
    first = body.stem if hasattr(body, "stem") else body.tokens
    return [first, body.blocks[0]]


def frozen(kind: str) -> Net:
    net = Net(kind)
    for module in prefix_of(net.body):
        module.requires_grad_(False)
    net.optimizing = lambda m: torch.optim.SGD(
        [p for p in m.parameters() if p.requires_grad], lr=0.1
    )
    return net


class LowRank(nn.Module):
    """A frozen linear map, and a trained one of low rank beside it."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, 2, bias=False)
        self.up = nn.Linear(2, frozen.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def lora(kind: str) -> Net:
    net = Net(kind).requires_grad_(False)
    for block in net.body.blocks:
        block.qkv, block.down = LowRank(block.qkv), LowRank(block.down)
    net.optimizing = lambda m: torch.optim.AdamW(
        [p for p in m.parameters() if p.requires_grad], lr=1e-2
    )
    return net


def tied(kind: str) -> Net:
    net = Net(kind)
    if kind == "gpt":
        net.body.head.weight = net.body.tokens.weight
    else:
        net.body.blocks[1].conv1.weight = net.body.blocks[0].conv1.weight
    return net


class Unfreezing(BaseFinetuning):
    """The stem and the first block train from the second epoch on."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(prefix_of(pl_module.body), train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(prefix_of(pl_module.body), optimizer, lr=0.01)


def trained_only(kind: str) -> Net:
    return Net(
        kind,
        lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1),
    )


class Tuned(Net):
    lr = 0.1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Growing(pl.LightningDataModule):
    """Its batch size is looked for."""

    batch_size = 2

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def train_dataloader(self) -> Any:
        return loader(self.kind, 6, self.batch_size)

    def val_dataloader(self) -> Any:
        return loader(self.kind, 2, shuffle=False)


def with_datamodule(trainer: Any, module: Any, data: Any, root: Path) -> None:
    trainer.fit(module, datamodule=data)


def averaging() -> list[Any]:
    return [StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)]


MODES = [
    _row(
        "frozen parameters",
        module=frozen,
        missing={"gradients in a frozen block": FROZEN, "gradients behind one": NO_INPUT},
    ),
    _row(
        "LoRA",
        module=lora,
        bodies=("gpt",),
        missing={"gradients at the input of the first block": NO_INPUT},
    ),
    _row("weight tying", module=tied),
    _row("EMAWeightAveraging", callbacks=lambda: [EMAWeightAveraging(decay=0.5)]),
    _row(
        "StochasticWeightAveraging",
        slow=True,
        callbacks=averaging,
        trainer=epochs(2),
        data=three,
        bodies=("gpt",),
    ),
    _row(
        "StochasticWeightAveraging with batch norm",
        callbacks=averaging,
        trainer=epochs(2),
        data=three,
        bodies=("cnn",),
        steps=7,
        note="the pass that renews the norms' statistics counts as a step, as Lightning counts it",
    ),
    _row(
        "LearningRateFinder",
        callbacks=lambda: [LearningRateFinder(num_training_steps=5)],
        module=Tuned,
        trainer=lambda: {"enable_checkpointing": True},
    ),
    _row(
        "BatchSizeFinder",
        callbacks=lambda: [BatchSizeFinder(steps_per_trial=2, max_trials=2)],
        trainer=lambda: {"enable_checkpointing": True},
        data=Growing,
        fit=with_datamodule,
    ),
    _row(
        "BaseFinetuning unfreezes in mid-run",
        callbacks=lambda: [Unfreezing()],
        module=trained_only,
        trainer=epochs(2),
        data=three,
        missing={"gradients in a frozen block": FROZEN, "gradients behind one": NO_INPUT},
    ),
]
