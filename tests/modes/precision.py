"""Rows: floating-point formats, gradient scaling, skipped steps, optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pytorch_lightning.plugins import MixedPrecision
from torch import Tensor

from tests.lightning.parts import loader
from tests.modes.mode import Mode
from tests.modes.nets import Net, with_optimizer

GROUP = "Precision and optimizers"
_row = partial(Mode, group=GROUP)


def scaled(init_scale: float, **settings: Any) -> Callable[[], dict[str, Any]]:
    """16-mixed with a GradScaler on the CPU: `Trainer(precision="16-mixed")` would take bf16."""

    def made() -> dict[str, Any]:
        scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
        return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)], **settings}

    return made


def adamw(**options: Any) -> Callable[[str], Net]:
    return with_optimizer(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, **options))


def sgd(**options: Any) -> Callable[[str], Net]:
    return with_optimizer(
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, **options)
    )


class Overflowing(Net):
    """Infinite gradients in the second and the fourth batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch) * (math.inf if batch_idx in (1, 3) else 1.0)


def overflowing(**options: Any) -> Callable[[str], Net]:
    return lambda kind: Overflowing(
        kind, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, **options)
    )


def two_groups(module: Any) -> torch.optim.Optimizer:
    blocks = list(module.body.blocks.parameters())
    others = [p for p in module.parameters() if not any(p is b for b in blocks)]
    groups = [{"params": blocks, "weight_decay": 0.1}, {"params": others, "lr": 1e-2}]
    return torch.optim.AdamW(groups, lr=1e-3)


def scheduled(module: Any) -> dict[str, Any]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=10)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


SKIPPED = "update sizes of a skipped step: it is a skipped step, not an update of 0"
MODES = [
    _row("32-true", slow_checks=()),
    _row("64-true", slow=True, trainer=lambda: {"precision": "64-true"}),
    _row("bf16-mixed", trainer=lambda: {"precision": "bf16-mixed"}, module=adamw()),
    _row("bf16-true", trainer=lambda: {"precision": "bf16-true"}),
    _row("16-mixed, GradScaler", trainer=scaled(2.0**10)),
    _row("16-mixed, fused AdamW", trainer=scaled(2.0**10), module=adamw(fused=True)),
    _row(
        "16-mixed, skipped steps",
        slow=True,
        trainer=scaled(2.0**10),
        module=overflowing(),
        skipped=(1, 3),
        note=SKIPPED,
    ),
    _row(
        "16-mixed, skipped steps, fused AdamW",
        trainer=scaled(2.0**10),
        module=overflowing(fused=True),
        skipped=(1, 3),
        note=SKIPPED,
    ),
    _row(
        "16-mixed, overflow at the start",
        trainer=scaled(2.0**20),
        skipped=None,
        note=SKIPPED,
    ),
    _row(
        "16-mixed, fused AdamW, accumulation",
        trainer=scaled(2.0**10, accumulate_grad_batches=2),
        module=adamw(fused=True),
        data=lambda body: loader(body, 12),
    ),
    _row(
        "16-mixed, accumulation, clipping",
        trainer=scaled(2.0**10, accumulate_grad_batches=2, gradient_clip_val=0.05),
        module=adamw(),
        data=lambda body: loader(body, 12),
    ),
    _row("fused AdamW", module=adamw(fused=True)),
    _row("foreach AdamW", slow=True, module=adamw(foreach=True)),
    _row("fused SGD", slow=True, module=sgd(fused=True)),
    _row("foreach SGD", slow=True, module=sgd(foreach=True)),
    _row(
        "LBFGS",
        module=with_optimizer(lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3)),
        note="of several backwards in a step the last one is measured",
    ),
    _row("several parameter groups", module=with_optimizer(two_groups)),
    _row("learning-rate scheduler", module=with_optimizer(scheduled)),
]
