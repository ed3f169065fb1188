"""Rows: how a step is made up: micro-batches, clipping, several backwards or optimizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.lightning.parts import loader
from tests.modes.mode import Mode
from tests.modes.nets import Net

GROUP = "Optimisation"
_row = partial(Mode, group=GROUP)


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


def epochs(count: int, **settings: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"max_epochs": count, **settings}


def three(kind: str) -> Any:
    return loader(kind, 3)


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
]
