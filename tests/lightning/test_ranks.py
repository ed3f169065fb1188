"""Several processes: the first speaks for all, the others train on undisturbed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from skipscope import History, ResidualMonitor
from tests.lightning import parts


def test_another_rank_only_asks_for_the_directory() -> None:
    """Asking is a collective, so every rank must; nothing else happens."""
    asked = []

    class OtherRank(SimpleNamespace):
        is_global_zero = False

        @property
        def log_dir(self) -> str:
            asked.append("log_dir")
            return "somewhere"

    callback, trainer = ResidualMonitor(on_error="raise"), OtherRank()
    callback.setup(trainer, None, "fit")
    callback.on_fit_start(trainer, None)
    callback.on_train_start(trainer, None)
    callback.on_train_batch_start(trainer, None, None, 0)
    callback.on_before_optimizer_step(trainer, None, None)
    callback.on_train_batch_end(trainer, None, None, None, 0)
    callback.on_validation_start(trainer, None)
    callback.on_train_epoch_end(trainer, None)
    callback.on_exception(trainer, None, RuntimeError())
    callback.on_train_end(trainer, None)
    callback.teardown(trainer, None, "fit")
    assert asked == ["log_dir"]
    assert callback.state_dict() == {}


def _fit(root: Path, *callbacks: Any) -> list[torch.Tensor]:
    torch.manual_seed(7)
    net = parts.Net("gpt", "adamw")
    trainer = parts.trainer(
        root, *callbacks, strategy="ddp_spawn", devices=2, use_distributed_sampler=True
    )
    trainer.fit(net, parts.loader("gpt", batches=20))
    return parts.weights(net)


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    plain = _fit(tmp_path / "plain")
    callback = ResidualMonitor(preset="debug", report=["json"])
    assert parts.equal(plain, _fit(tmp_path / "ours", callback))
    (file,) = (tmp_path / "ours").rglob("history-*.skip")
    history = History.load(file)
    assert history.capture_steps.tolist() == list(range(10))
    assert history.run.ranks == 2
    assert [site.module for site in history.sites.sites] == ["body.blocks.0"] * 2 + [
        "body.blocks.1"
    ] * 2
    assert not history.table("gradient_gain").missing.any()
