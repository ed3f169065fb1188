"""A resumed run goes on in its old file, without gap or double."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from skipscope import History, ResidualMonitor
from tests.lightning import parts

#: when the checkpoint is written -> settings of ModelCheckpoint, whether there is validation
WHEN: dict[str, tuple[dict[str, Any], bool]] = {
    "epoch end": ({"save_on_train_epoch_end": True}, False),
    "epoch end, with validation": ({"save_on_train_epoch_end": True}, True),
    "validation end": ({"save_on_train_epoch_end": False}, True),
    "mid-epoch": ({"every_n_train_steps": 14}, False),
    "mid-epoch, with validation": ({"every_n_train_steps": 14}, True),
    "last step of an epoch": ({"every_n_train_steps": 10}, False),
}


def _fit(
    root: Path, epochs: int, when: str, resume: Path | None = None, **settings: Any
) -> ResidualMonitor:
    torch.manual_seed(7)
    saving, validates = WHEN[when]
    callback = ResidualMonitor(
        every_n_steps=4, report=["json"], on_error="raise", dirpath=str(root / "run")
    )
    name = f"{epochs}-{{epoch}}-{{step}}"
    checkpoint = ModelCheckpoint(root / "saved", name, save_top_k=-1, **saving)
    stopping = EarlyStopping("skipscope/r_max", mode="max", patience=99)
    trainer = parts.trainer(
        root,
        callback,
        checkpoint,
        stopping,
        max_epochs=epochs,
        enable_checkpointing=True,
        **settings,
    )
    data = [parts.loader(shuffle=False)]
    if validates:
        data.append(parts.loader(batches=2, shuffle=False))
    trainer.fit(parts.Net(), *data, ckpt_path=resume)
    return callback


@pytest.mark.filterwarnings("ignore:.*ended before the epoch ended.*")
@pytest.mark.parametrize("when", WHEN)
def test_history_goes_on(tmp_path: Path, when: str) -> None:
    first = _fit(tmp_path, 2, when)
    run_id = first.history.run.run_id
    saved = sorted((tmp_path / "saved").iterdir(), key=lambda p: int(p.stem.rpartition("=")[2]))
    resumed_at = int(saved[0].stem.rpartition("=")[2])  # its global step
    second = _fit(tmp_path, 3, when, saved[0])
    assert second.history.run.run_id == run_id
    assert not second.history.run.fresh
    assert second.history.capture_steps[0] == resumed_at
    (file,) = (tmp_path / "run").glob("history-*.skip")
    history = History.load(file)
    assert history.fact("step").tolist() == list(range(30))
    assert history.fact("epoch").tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert history.fact("global_step").tolist() == list(range(30))
    assert history.update_steps.tolist() == list(range(30))
    captured = history.capture_steps.tolist()
    assert captured == sorted(set(captured))
    assert set(range(0, 30, 4)) | {resumed_at} <= set(captured)
    assert [site.name for site in history.sites.sites] == [
        site.name for site in first.history.sites.sites
    ]
    report = (tmp_path / "run" / "report.json").read_text()
    assert '"epoch": 2' in report


@pytest.mark.filterwarnings("ignore:.*ended before the epoch ended.*")
def test_with_accumulation(tmp_path: Path) -> None:
    """Four steps an epoch; the checkpoint is from the second epoch's second step."""
    WHEN["sixth step"] = ({"every_n_train_steps": 6}, False)
    try:
        _fit(tmp_path, 2, "sixth step", accumulate_grad_batches=3)
        (saved,) = (tmp_path / "saved").iterdir()
        _fit(tmp_path, 3, "sixth step", saved, accumulate_grad_batches=3)
    finally:
        del WHEN["sixth step"]
    history = History.load(tmp_path / "run")
    assert history.fact("step").tolist() == list(range(12))
    assert history.fact("epoch").tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_in_another_directory_a_new_file_begins(tmp_path: Path) -> None:
    first = _fit(tmp_path, 1, "epoch end")
    (saved,) = (tmp_path / "saved").iterdir()
    (tmp_path / "run").rename(tmp_path / "moved")
    second = _fit(tmp_path, 2, "epoch end", saved)
    assert second.history.run.run_id == first.history.run.run_id
    assert History.load(tmp_path / "run").fact("step").tolist() == list(range(10, 20))
    assert History.load(tmp_path / "moved").fact("step").tolist() == list(range(10))


def test_state_is_plain_and_small(tmp_path: Path) -> None:
    _fit(tmp_path, 1, "epoch end")
    (path,) = (tmp_path / "saved").iterdir()
    saved = torch.load(path, weights_only=True)
    state = saved["callbacks"]["skipscope.ResidualMonitor:skipscope"]
    assert len(str(state)) < 400
    summary = state.pop("summary")
    assert {type(value) for value in state.values()} <= {int, str, type(None)}
    assert {type(value) for value in summary.values()} <= {int, float}


def test_state_of_another_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _fit(tmp_path, 1, "epoch end")
    (path,) = (tmp_path / "saved").iterdir()
    saved = torch.load(path, weights_only=True)
    saved["callbacks"]["skipscope.ResidualMonitor:skipscope"] = {"version": 99, "stuff": "?"}
    torch.save(saved, path)
    with caplog.at_level(logging.WARNING, "skipscope"):
        second = _fit(tmp_path, 2, "epoch end", path)
    assert "version 99" in caplog.text
    assert second.history.fact("step").tolist() == list(range(10, 20))
    assert len(list((tmp_path / "run").glob("history-*.skip"))) == 2


def test_a_checkpoint_without_our_state(tmp_path: Path) -> None:
    net = parts.Net()
    trainer = parts.trainer(tmp_path)
    trainer.fit(net, parts.loader())
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    callback = _fit(tmp_path, 2, "epoch end", tmp_path / "plain.ckpt")
    assert callback.history.fact("step").tolist() == list(range(10, 20))
    assert not np.isnan(callback.history.fact("loss")).any()
