"""What one rank of a Trainer does; each function runs in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as lp
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from skipscope import ResidualMonitor
from skipscope.capture import Capture
from tests.ranks import nets


class Module(lp.LightningModule):
    def __init__(self, *, shards: bool = False) -> None:
        super().__init__()
        self.net = nets.make()
        self.shards = shards

    def configure_model(self) -> None:
        if self.shards:
            for block in self.net.blocks:
                fully_shard(block, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

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
    watch: bool = True,
    strategy: str = "ddp",
    culprit: int | None = None,
    epochs: int = 1,
) -> dict[str, Any]:
    """`culprit` is the rank whose captures fail."""
    callback = ResidualMonitor(preset="debug", report=["json", "console"])
    keeper = ModelCheckpoint(root, monitor="skipscope/r_max", save_top_k=2)
    shards = strategy == "shards"
    module = Module(shards=shards)
    trainer = lp.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(2, 1) if shards else strategy,
        max_epochs=epochs,
        logger=False,
        use_distributed_sampler=False,
        enable_checkpointing=not shards and watch,
        enable_model_summary=False,
        enable_progress_bar=False,
        default_root_dir=str(root),
        callbacks=[callback, *([] if shards else [keeper])] if watch else [],
    )
    measure = Capture._measure_forward
    if rank == culprit:
        Capture._measure_forward = _fail  # type: ignore[method-assign]
    try:
        trainer.fit(module, loader(rank))
    finally:
        Capture._measure_forward = measure  # type: ignore[method-assign]
    result: dict[str, Any] = {
        "weights": nets.digest(module),
        "step": trainer.global_step,
        "metrics": {k: float(v) for k, v in trainer.callback_metrics.items()},
    }
    if watch:
        assert callback.monitor is not None
        result["broken"] = callback.monitor._guard.broken or callback._guard.broken
        result["captures"] = len(callback.history.capture_steps)
    torch.distributed.destroy_process_group()
    return result


def _fail(*_: Any) -> None:
    raise ValueError("injected")
