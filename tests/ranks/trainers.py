"""What one rank of a Trainer does; each function runs in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as lp
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from skipscope import ResidualMonitor
from skipscope.capture import Capture
from tests.ranks import nets


class Module(lp.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nets.make()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return nets.optimizer_of(self.net)


def loader(rank: int) -> DataLoader[Any]:
    """A rank's half of each batch."""
    shards = [nets.shard(batch, rank) for batch in nets.batches()]
    inputs, targets = (torch.cat(parts) for parts in zip(*shards, strict=True))
    return DataLoader(TensorDataset(inputs, targets), nets.BATCH // 2)


def fit(
    rank: int,
    root: Path,
    *,
    culprit: int | None = None,
    epochs: int = 1,
) -> dict[str, Any]:
    """`culprit` is the rank whose captures fail."""
    callback = ResidualMonitor(preset="debug", report=["json", "console"])
    keeper = ModelCheckpoint(root, monitor="skipscope/r_max", save_top_k=2)
    module = Module()
    trainer = lp.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=epochs,
        logger=False,
        use_distributed_sampler=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        default_root_dir=str(root),
        callbacks=[callback, keeper],
    )
    measure = Capture._measure_forward
    if rank == culprit:
        Capture._measure_forward = _fail  # type: ignore[method-assign]
    try:
        trainer.fit(module, loader(rank))
    finally:
        Capture._measure_forward = measure  # type: ignore[method-assign]
    torch.distributed.destroy_process_group()
    assert callback.monitor is not None
    return {
        "step": trainer.global_step,
        "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()},
        "broken": callback.monitor._guard.broken or callback._guard.broken,
    }


def _fail(*_: Any) -> None:
    raise ValueError("injected")
