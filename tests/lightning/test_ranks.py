"""Several processes: the first records for all; more of it in `tests/ranks`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from skipscope import History, ResidualMonitor
from tests.lightning import parts


def test_another_rank_writes_nothing() -> None:
    """It asks for the directory, which is a collective, and has a monitor without any output."""
    asked = []

    class OtherRank(SimpleNamespace):
        is_global_zero, fast_dev_run = False, False

        @property
        def log_dir(self) -> str:
            asked.append("log_dir")
            return "somewhere"

    callback = ResidualMonitor(on_error="raise")
    callback.setup(OtherRank(), None, "fit")
    callback.on_fit_start(OtherRank(), parts.Net("gpt"))
    assert asked == ["log_dir"]
    assert callback.monitor is not None
    assert callback.monitor.options.dirpath is None
    assert callback.monitor.options.report == ()


def test_where_a_record_is_that_this_process_did_not_make() -> None:
    with pytest.raises(RuntimeError, match=r"in this process.*ddp_spawn.*History\.load"):
        _ = ResidualMonitor().history


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
    assert (history.run.ranks, history.run.ranks_measured) == (2, 2)
    assert [site.module for site in history.sites.sites] == ["body.blocks.0"] * 2 + [
        "body.blocks.1"
    ] * 2
    assert not history.table("gradient_gain").missing.any()
