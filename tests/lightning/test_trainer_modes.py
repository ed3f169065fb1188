"""The Trainer's modes and other callbacks: what the monitor does in each."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import (
    BatchSizeFinder,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.tuner import Tuner

from skipscope import History, ResidualMonitor
from tests.lightning import parts


def _ours(**settings: Any) -> ResidualMonitor:
    return ResidualMonitor(**{"report": ["json"], "on_error": "raise", **settings})


def _steps(callback: ResidualMonitor) -> list[int]:
    return [int(step) for step in callback.history.fact("step")]


def _no_files(root: Path) -> bool:
    return not any(p.name.startswith(("history-", "report.")) for p in root.rglob("*"))


@pytest.mark.parametrize("dirpath", [None, "given"])
def test_fast_dev_run_captures_and_writes_nothing(tmp_path: Path, dirpath: str | None) -> None:
    given = str(tmp_path / dirpath) if dirpath else None
    callback = _ours(dirpath=given)
    trainer = parts.trainer(tmp_path, callback, logger=True, fast_dev_run=2)
    trainer.fit(parts.Net(), parts.loader(), parts.loader(shuffle=False))
    assert callback.history.capture_steps.tolist() == [0, 1]
    assert "skipscope/r_max" in trainer.callback_metrics
    assert _no_files(tmp_path)


def test_barebones_turns_it_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Silent(parts.Net):
        def log(self, *args: Any, **kwargs: Any) -> None:
            pass

    callback = _ours()
    settings = {"enable_checkpointing": None, "logger": None, "enable_progress_bar": None}
    with caplog.at_level(logging.INFO, "skipscope"):
        trainer = parts.trainer(
            tmp_path, callback, barebones=True, enable_model_summary=None, **settings
        )
        trainer.fit(Silent(), parts.loader())
    assert callback.monitor is None
    assert [r.getMessage() for r in caplog.records if r.name == "skipscope"] == [
        "skipscope is off: Trainer(barebones=True) asks for no overhead at all"
    ]
    assert _no_files(tmp_path)


def test_validation_is_not_measured(tmp_path: Path) -> None:
    """Sanity check, validation inside an epoch and at its end: counts are those of training."""

    class Sanity(pl.Callback):
        def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
            assert not callback.monitor.in_step
            assert callback.monitor._recorder is None

    callback = _ours(preset="debug")
    trainer = parts.trainer(tmp_path, callback, Sanity(), val_check_interval=4, max_epochs=2)
    trainer.fit(parts.Net(), parts.loader(), parts.loader(batches=2, shuffle=False))
    assert callback.history.capture_steps.tolist() == list(range(20))
    assert _steps(callback) == list(range(20))
    table = callback.history.table("branch_ratio")
    assert not table.missing.any()
    # A validation between two batches is no part of a step's time.
    untimed = np.isnan(callback.history.fact("seconds"))
    assert np.flatnonzero(untimed).tolist() == [3, 7, 9, 13, 17, 19]
    assert callback.history.fact("epoch").tolist() == [0] * 10 + [1] * 10


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_without_training_it_does_nothing(tmp_path: Path, stage: str) -> None:
    callback, net = _ours(), parts.Net()
    before = parts.attached(net)
    trainer = parts.trainer(tmp_path, callback)
    getattr(trainer, stage)(
        net, parts.loader(shuffle=False), **{"verbose": False} if stage != "predict" else {}
    )
    assert callback.monitor is None
    assert parts.attached(net) == before
    assert _no_files(tmp_path)


def test_history_of_the_fit_outlives_a_test(tmp_path: Path) -> None:
    callback, net = _ours(), parts.Net()
    trainer = parts.trainer(tmp_path, callback)
    trainer.fit(net, parts.loader())
    trainer.test(net, parts.loader(shuffle=False), verbose=False)
    assert _steps(callback) == list(range(10))


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        ({}, 7),
        ({"limit_train_batches": 4}, 4),
        ({"limit_train_batches": 0.5}, 4),
        ({"max_steps": 3, "max_epochs": -1}, None),
        ({"max_epochs": 3}, 21),
    ],
)
@pytest.mark.parametrize("data", ["known length", "stream"])
def test_how_long_an_epoch_is(
    tmp_path: Path, data: str, settings: dict[str, Any], batches: int | None, accumulate: int
) -> None:
    if data == "stream" and settings.get("limit_train_batches") == 0.5:
        pytest.skip("Lightning refuses a share of an unknown length")
    loader = parts.stream(7) if data == "stream" else parts.loader(batches=7)
    if settings.get("limit_train_batches") == 0.5:
        loader = parts.loader(batches=8)
    callback = _ours(preset="debug")
    trainer = parts.trainer(tmp_path, callback, accumulate_grad_batches=accumulate, **settings)
    trainer.fit(parts.Net(), loader)
    epochs = settings.get("max_epochs", 1)
    expected = (
        3 if batches is None else max(epochs, 1) * -(-batches // max(epochs, 1) // accumulate)
    )
    assert trainer.global_step == expected
    assert _steps(callback) == list(range(expected))
    assert callback.history.capture_steps.tolist() == list(range(expected))
    assert History.load(tmp_path / "skipscope").capture_steps.tolist() == list(range(expected))
    losses = [float(loss) for loss in trainer.lightning_module.losses]
    assert callback.history.fact("loss")[-1] == pytest.approx(losses[-1], rel=1e-6)


def test_accumulation_that_changes_between_epochs(tmp_path: Path) -> None:
    callback = _ours(preset="debug")
    scheduler = GradientAccumulationScheduler({0: 4, 1: 2})
    trainer = parts.trainer(tmp_path, callback, scheduler, max_epochs=2)
    trainer.fit(parts.Net(), parts.loader())
    assert trainer.global_step == 3 + 5
    assert _steps(callback) == list(range(8))


@pytest.mark.filterwarnings("ignore:.*training batches \\(10\\) is smaller than.*")
@pytest.mark.parametrize("through", ["callback", "tuner"])
def test_learning_rate_finder(tmp_path: Path, through: str) -> None:
    class Tuned(parts.Net):
        lr = 0.1

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=self.lr)

    callback, net = _ours(), Tuned()
    before = parts.attached(net)
    if through == "callback":
        finder = LearningRateFinder(num_training_steps=8)
        trainer = parts.trainer(
            tmp_path,
            callback,
            finder,
            enable_checkpointing=True,
            logger=TensorBoardLogger(tmp_path),
        )
    else:
        trainer = parts.trainer(tmp_path, callback, enable_checkpointing=True)
        Tuner(trainer).lr_find(net, parts.loader(), num_training=8)
        assert parts.attached(net) == before
        assert _no_files(tmp_path)
    trainer.fit(net, parts.loader())
    assert _steps(callback) == list(range(10))
    assert callback.history.run.fresh
    assert parts.attached(net, trainer.optimizers) == before


@pytest.mark.parametrize("through", ["callback", "tuner"])
def test_batch_size_finder(tmp_path: Path, through: str) -> None:
    class Data(pl.LightningDataModule):
        batch_size = 2

        def val_dataloader(self) -> Any:
            return parts.loader(batches=2, shuffle=False)

        def train_dataloader(self) -> Any:
            return parts.loader(batches=10, batch=self.batch_size)

    callback, net, data = _ours(), parts.Net(), Data()
    before = parts.attached(net)
    settings = {"steps_per_trial": 2, "max_trials": 2}
    if through == "callback":
        finder = BatchSizeFinder(**settings)
        trainer = parts.trainer(tmp_path, callback, finder, enable_checkpointing=True)
    else:
        trainer = parts.trainer(tmp_path, callback, enable_checkpointing=True)
        Tuner(trainer).scale_batch_size(net, datamodule=data, **settings)
        assert _no_files(tmp_path)
    trainer.fit(net, datamodule=data)
    assert _steps(callback) == list(range(10))
    assert parts.attached(net, trainer.optimizers) == before


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_averaged_models_are_not_polluted(tmp_path: Path, kind: str) -> None:
    """They copy the model while our callback is listed first."""
    other = (
        StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)
        if kind == "swa"
        else EMAWeightAveraging(decay=0.5)
    )
    callback = _ours(preset="debug")
    trainer = parts.trainer(tmp_path, callback, other, max_epochs=3)
    trainer.fit(parts.Net(), parts.loader(), parts.loader(batches=2, shuffle=False))
    average = getattr(other, "_average_model", None)
    assert average is not None
    count = parts.attached(average)
    assert count["module hooks"] == count["tensor hooks"] == 0
    copy.deepcopy(average)
    assert _steps(callback)[:30] == list(range(30))


def test_two_monitors(tmp_path: Path) -> None:
    """Their steps overlap without being nested: first on is first off."""
    net = parts.Net()
    before = parts.attached(net)
    first = _ours(preset="debug")
    second = _ours(name="second", every_n_steps=3, sites=["body.blocks.1"])
    tensorboard = TensorBoardLogger(tmp_path)
    trainer = parts.trainer(tmp_path, first, second, logger=tensorboard)
    trainer.fit(net, parts.loader())
    assert parts.attached(net, trainer.optimizers) == before
    assert first.history.capture_steps.tolist() == list(range(10))
    assert second.history.capture_steps.tolist() == [0, 1, 2, 3, 4, 6, 8, 9]
    ours, theirs = (m.history.table("branch_ratio") for m in (first, second))
    assert theirs.columns == ("body.blocks.1",)
    assert (ours.values[second.history.capture_steps, 1] == theirs.values[:, 0]).all()
    assert {"skipscope/r_max", "second/r_max"} <= set(trainer.callback_metrics)
    for name in ("skipscope", "second"):
        assert (Path(tensorboard.log_dir) / name / "report.json").exists()

    with pytest.raises(RuntimeError, match="state_key"):
        parts.trainer(tmp_path, _ours(), _ours())


def test_fitting_twice_starts_a_second_history(tmp_path: Path) -> None:
    callback, net = _ours(), parts.Net()
    trainer = parts.trainer(tmp_path, callback)
    trainer.fit(net, parts.loader())
    first = callback.history.run
    trainer.fit_loop.max_epochs = 2
    trainer.fit(net, parts.loader())
    assert callback.history.run.run_id != first.run_id
    assert callback.history.capture_steps[0] == _steps(callback)[0] == 10
    assert len(list((tmp_path / "skipscope").glob("history-*.skip"))) == 2


def test_a_batch_of_none_is_no_step(tmp_path: Path) -> None:
    class Holes(parts.Stream):
        def __iter__(self) -> Any:
            for at, batch in enumerate(super().__iter__()):
                yield None if at in (0, 3) else batch

    callback = _ours(preset="debug")
    loader = torch.utils.data.DataLoader(Holes(7), batch_size=None)
    trainer = parts.trainer(tmp_path, callback)
    with pytest.warns(UserWarning, match="yielded None"):
        trainer.fit(parts.Net(), loader)
    assert _steps(callback) == [1, 2, 4, 5, 6]


def test_the_monitor_names_its_own_sites_through_a_profiler(tmp_path: Path) -> None:
    from pytorch_lightning.profilers import SimpleProfiler

    callback = _ours()
    profiler = SimpleProfiler(dirpath=tmp_path, filename="profile")
    parts.trainer(tmp_path, callback, profiler=profiler).fit(parts.Net(), parts.loader())
    assert any(
        "skipscope.ResidualMonitor:skipscope" in action for action in profiler.recorded_durations
    )
