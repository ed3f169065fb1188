"""Leaving branches out through `training_step`: in the loops, after them, where it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from skipscope import ResidualMonitor
from tests.lightning import parts


class Ablating(ResidualMonitor):
    """Leaves branches out at each epoch's end, where `self.log` would be allowed."""

    def __init__(self, batch: Any, *, active: bool) -> None:
        super().__init__(report=[], on_error="raise")
        self.batch, self.active, self.found = batch, active, []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if self.active:
            self.found.append(self.ablate(self.batch, together=True))


@pytest.mark.parametrize("package", parts.NAMESPACES)
def test_through_training_step(package: str, tmp_path: Path) -> None:
    batch = list(parts.samples("cnn", 4))
    ends, found = [], []
    for active in (False, True):
        torch.manual_seed(0)
        module = parts.NETS[package]()
        callback = Ablating(batch, active=active)
        trainer = parts.trainer(tmp_path, callback, package=package, max_epochs=2)
        trainer.fit(module, parts.loader())
        ends.append(parts.weights(module))
        found = callback.found
    assert parts.equal(*ends)
    assert len(found) == 2

    logged = dict(trainer.callback_metrics)
    after = callback.ablate(batch, "body.blocks.1")  # the loops are over: `self.log` would raise
    with torch.random.fork_rng():
        body, loss = module.body, torch.nn.functional.cross_entropy
        x = body.blocks[0](body.stem(batch[0]))
        block = body.blocks[1]
        block.drop(block.norm2(block.conv2(block.relu(block.norm1(block.conv1(x))))))  # its draws
        scores = body.head(body.blocks[2](x.relu()).mean((2, 3)))
    assert after.sites[0].loss == pytest.approx(loss(scores, batch[1]).item(), rel=1e-5)
    assert logged.keys() == trainer.callback_metrics.keys()
    assert "log" not in vars(module)
    assert [row.where[0] for row in found[0].sites] == [f"body.blocks.{k}" for k in range(3)]


def test_manual_optimization_and_an_early_call_are_refused(tmp_path: Path) -> None:
    callback = ResidualMonitor(report=[])
    with pytest.raises(RuntimeError, match=r"call trainer.fit first"):
        callback.ablate(None)
    parts.trainer(tmp_path, callback).fit(parts.TwoOptimizers(), parts.loader())
    with pytest.raises(ValueError, match="optimizes manually"):
        callback.ablate(list(parts.samples("cnn", 4)))
