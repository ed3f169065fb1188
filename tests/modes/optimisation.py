"""Rows: how a step is made up, which parameters take part, and callbacks that change both."""

from __future__ import annotations

from collections.abc import Callable
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
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.lightning.parts import loader
from tests.modes.mode import Mode
from tests.modes.nets import Net

GROUP = "Optimisation"
_row = partial(Mode, group=GROUP)
FROZEN = "the whole block is frozen"
NO_INPUT = "x has no gradient: it is a raw input or behind frozen layers"


class NoneAt(Net):
    """`training_step` returns None in the second and the fourth batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        loss = self.loss(batch)
        return None if batch_idx in (1, 3) else loss


class Skipping(Net):
    """Ends each epoch after three of its batches."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 3 else None


class SeveralBackwards(Net):
    """Two losses, a backward each, one step."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        scores = self.scores(batch[0])
        self.manual_backward(scores.square().mean(), retain_graph=True)
        loss = F.cross_entropy(scores.flatten(0, -2), batch[1].flatten())
        self.manual_backward(loss)
        optimizer.step()
        return loss.detach()


class TwoOptimizers(Net):
    """Each has its backward; both hold a part of the net."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        for optimizer in self.optimizers():
            loss = self.loss(batch)
            self.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss.detach()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        blocks = list(self.body.blocks.parameters())
        others = [p for p in self.parameters() if not any(p is b for b in blocks)]
        return [torch.optim.SGD(blocks, lr=0.1), torch.optim.AdamW(others, lr=1e-3)]


class Penalised(Net):
    """The loss's gradient at the first weight is part of the loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the only one with a second derivative
            loss = self.loss(batch)
            first = next(self.body.parameters())
            (gradient,) = torch.autograd.grad(loss, first, create_graph=True)
            return loss + gradient.square().sum()


class Gan(Net):
    """The body generates, a small critic judges; one optimizer and one backward for each."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.automatic_optimization = False
        classes = self.body.head.out_features
        self.critic = nn.Sequential(nn.Linear(classes, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        generating, judging = self.optimizers()
        self.toggle_optimizer(generating)
        loss = F.softplus(-self.critic(self.scores(batch[0]).softmax(-1))).mean()
        generating.zero_grad()
        self.manual_backward(loss)
        generating.step()
        self.untoggle_optimizer(generating)
        self.toggle_optimizer(judging)
        with torch.no_grad():
            fake = self.body(batch[0]).softmax(-1)
        real = F.one_hot(batch[1], fake.shape[-1]).float()
        judged = F.softplus(self.critic(fake)).mean() + F.softplus(-self.critic(real)).mean()
        judging.zero_grad()
        self.manual_backward(judged)
        judging.step()
        self.untoggle_optimizer(judging)
        return loss.detach()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        halves = (self.body, self.critic)
        return [torch.optim.AdamW(half.parameters(), lr=1e-3) for half in halves]


class DetachedGan(Gan):
    """As Lightning's own example: the critic's step generates with grad mode on and detaches."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        generating, judging = self.optimizers()
        self.toggle_optimizer(generating)
        loss = F.softplus(-self.critic(self.scores(batch[0]).softmax(-1))).mean()
        generating.zero_grad()
        self.manual_backward(loss)
        generating.step()
        self.untoggle_optimizer(generating)
        self.toggle_optimizer(judging)
        fake = self.body(batch[0]).softmax(-1).detach()
        judged = F.softplus(self.critic(fake)).mean()
        judging.zero_grad()
        self.manual_backward(judged)
        judging.step()
        self.untoggle_optimizer(judging)
        return loss.detach()


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


def epochs(count: int, **settings: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"max_epochs": count, **settings}


def three(kind: str) -> Any:
    return loader(kind, 3)


def averaging() -> list[Any]:
    return [StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)]


MODES = [
    _row(
        "accumulation",
        trainer=lambda: {"accumulate_grad_batches": 2},
        data=lambda kind: loader(kind, 12),
        note="of the micro-batches the last one is captured",
    ),
    _row(
        "accumulation with a rest",
        slow=True,
        trainer=lambda: {"accumulate_grad_batches": 2},
        data=lambda kind: loader(kind, 11),
    ),
    _row("clipping by norm", trainer=lambda: {"gradient_clip_val": 0.05}),
    _row(
        "clipping by value",
        trainer=lambda: {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ),
    _row("training_step returns None", module=NoneAt, skipped=(1, 3)),
    _row("on_train_batch_start returns -1", module=Skipping, trainer=epochs(2)),
    _row("several backwards in a step", module=SeveralBackwards),
    _row(
        "gradient penalty",
        module=Penalised,
        exact="the run, update sizes; r, growth, cosine and gradient norms of sites",
        measures=("branch_ratio", "growth", "cosine", "grad_sum_norm", "grad_input_norm"),
        note="backwards with create_graph are passed over",
    ),
    _row("manual optimization, two optimizers of one net", module=TwoOptimizers),
    _row("manual optimization, a GAN", module=Gan),
    _row("manual optimization, a GAN that detaches", module=DetachedGan),
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
