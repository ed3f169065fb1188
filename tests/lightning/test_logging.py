"""What reaches the Trainer's loggers, its metrics and its console."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from skipscope import ResidualMonitor
from tests.lightning import parts

BRANCH_RATIO = "skipscope.branch_ratio/001_body.blocks.1"


def _fit(root: Path, callback: Any, *others: Any, **settings: Any) -> Any:
    trainer = parts.trainer(root, callback, *others, **{"max_epochs": 2, **settings})
    trainer.fit(parts.Net(), parts.loader())
    return trainer


def _events(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    return events.Reload()


def test_tensorboard_files_read_back(tmp_path: Path) -> None:
    callback = ResidualMonitor(report=[], on_error="raise")
    tensorboard = TensorBoardLogger(tmp_path)
    _fit(tmp_path, callback, logger=tensorboard, log_every_n_steps=1)
    events = _events(Path(tensorboard.log_dir))
    captured = callback.history.capture_steps.tolist()
    assert captured[:5] == [0, 1, 2, 4, 8]
    scalars = set(events.Tags()["scalars"])
    assert {
        "skipscope/summary/loss",
        "skipscope/summary/r_median",
        "skipscope/summary/r_worst",
        "skipscope/summary/depth_multiplier",
        BRANCH_RATIO,
        "skipscope.growth/000_body.blocks.0",
        "skipscope.gradient_gain/002_body.blocks.2",
        "skipscope.update_ratio/000_body.blocks.0",
    } <= scalars
    read = events.Scalars(BRANCH_RATIO)
    assert [event.step for event in read] == captured
    table = callback.history.table("branch_ratio")
    assert [event.value for event in read] == pytest.approx(table.values[:, 1].tolist(), rel=1e-6)

    # The user's own loss has the same step axis, and the same value.
    own = {event.step: event.value for event in events.Scalars("loss")}
    losses = dict(zip(range(20), callback.history.fact("loss").tolist(), strict=True))
    assert own.keys() == losses.keys()
    assert own == pytest.approx(losses, rel=1e-6)
    ours = {event.step: event.value for event in events.Scalars("skipscope/summary/loss")}
    assert ours == pytest.approx({step: losses[step] for step in captured}, rel=1e-6)

    pictures = [tag for tag in events.Tags()["images"] if tag.startswith("skipscope/picture/")]
    assert {tag.rpartition("/")[2] for tag in pictures} >= {
        "branch_ratio",
        "growth",
        "gradient_gain",
    }
    assert [event.step for event in events.Images(pictures[0])] == [9, 19]
    assert events.Images(pictures[0])[0].encoded_image_string.startswith(b"\x89PNG")
    (text,) = [tag for tag in events.Tags()["tensors"] if tag.startswith("skipscope/report")]
    said = events.Tensors(text)
    assert [event.step for event in said] == [9, 19]
    assert b"3 sites" in said[-1].tensor_proto.string_val[0]


def test_step_axis_with_accumulation_is_that_of_lightning(tmp_path: Path) -> None:
    """Ten batches, three a step: the last step of an epoch has one."""
    callback = ResidualMonitor(preset="debug", report=[], on_error="raise")
    tensorboard = TensorBoardLogger(tmp_path)
    settings = {"accumulate_grad_batches": 3, "log_every_n_steps": 1}
    trainer = _fit(tmp_path, callback, logger=tensorboard, **settings)
    events = _events(Path(tensorboard.log_dir))
    assert [event.step for event in events.Scalars(BRANCH_RATIO)] == list(range(8))
    assert trainer.global_step == 8
    net = trainer.lightning_module
    last = [float(net.losses[at]) for at in (2, 5, 8, 9, 12, 15, 18, 19)]
    assert callback.history.fact("loss").tolist() == pytest.approx(last, rel=1e-6)
    assert callback.history.fact("epoch").tolist() == [0] * 4 + [1] * 4


def test_csv_keeps_its_header(tmp_path: Path) -> None:
    callback = ResidualMonitor(every_n_steps=3, report=[], on_error="raise")
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    headers: list[set[str]] = []

    class Look(pl.Callback):
        def on_train_epoch_end(self, *_: Any) -> None:
            with Path(logger.log_dir, "metrics.csv").open() as file:
                headers.append(set(csv.DictReader(file).fieldnames or ()))

    trainer = _fit(tmp_path, callback, Look(), logger=logger, max_epochs=3)
    assert trainer.loggers == [logger]
    assert headers[0] == headers[1] == headers[2]
    assert BRANCH_RATIO in headers[0]
    with Path(logger.log_dir, "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row[BRANCH_RATIO]]
    assert [int(row["step"]) for row in rows] == callback.history.capture_steps.tolist()


class Raising(Logger):
    """Somebody else's logger, which fails."""

    name, version = "raising", 3

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.save_root = str(root)
        self.armed = True

    @property
    def save_dir(self) -> str:
        return self.save_root

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        if any(key.startswith("skipscope/") for key in metrics):
            raise ConnectionError("no network")

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


def test_two_loggers_of_which_one_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = ResidualMonitor(report=["json"], on_error="raise")
    tensorboard = TensorBoardLogger(tmp_path / "good")
    with caplog.at_level(logging.WARNING, "skipscope"):
        _fit(tmp_path, callback, logger=[Raising(tmp_path / "bad"), tensorboard])
    said = [r.getMessage() for r in caplog.records if "Raising" in r.getMessage()]
    assert len(said) == 1
    assert "no network" in said[0]
    captured = callback.history.capture_steps.tolist()
    events = _events(Path(tensorboard.log_dir))
    assert [event.step for event in events.Scalars(BRANCH_RATIO)] == captured
    # A logger without a folder per run: ours is where its checkpoints would go.
    assert (tmp_path / "bad" / "raising" / "version_3" / "skipscope" / "report.json").exists()


def test_without_a_logger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _fit(tmp_path, ResidualMonitor(on_error="raise"))
    folder = tmp_path / "skipscope"
    assert {"report.md", "report.json"} <= {path.name for path in folder.iterdir()}
    assert len(list(folder.glob("history-*.skip"))) == 1
    out = capsys.readouterr().out
    assert out.count("watched    Net, 3 sites") == 2


@pytest.mark.parametrize("every", [1, 2, 3])
def test_epochs_between_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], every: int
) -> None:
    callback = ResidualMonitor(report=["console"], report_every_n_epochs=every, on_error="raise")
    _fit(tmp_path, callback, max_epochs=4)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipscope ")]
    assert [line.split()[2] for line in lines] == [str(e) for e in range(every - 1, 4, every)]


def test_metrics_for_checkpoints_and_early_stopping(tmp_path: Path) -> None:
    callback = ResidualMonitor(report=[], on_error="raise")
    checkpoint = ModelCheckpoint(tmp_path, monitor="skipscope/r_max", save_top_k=1)
    stopping = EarlyStopping("skipscope/r_median", mode="max", divergence_threshold=-1.0)
    settings = {"enable_checkpointing": True, "max_epochs": 5}
    trainer = _fit(tmp_path, callback, checkpoint, stopping, **settings)
    assert not stopping.stopped_epoch
    metrics = trainer.callback_metrics
    assert {key for key in metrics if key.startswith("skipscope/")} == {
        "skipscope/warnings",
        "skipscope/errors",
        "skipscope/r_median",
        "skipscope/r_max",
    }
    ratios = callback.history.table("branch_ratio").values[-1]
    assert float(metrics["skipscope/r_max"]) == pytest.approx(ratios.max())
    assert checkpoint.best_model_score is not None
    every_epoch = callback.history.table("branch_ratio").values.max(axis=1)
    assert float(checkpoint.best_model_score) >= every_epoch.min() * (1 - 1e-6)

    stops = EarlyStopping("skipscope/r_max", mode="max", divergence_threshold=1e6)
    trainer = _fit(tmp_path, ResidualMonitor(report=[], on_error="raise"), stops, max_epochs=5)
    assert trainer.current_epoch == 1  # diverged at once


@pytest.mark.parametrize("bar", ["tqdm", "tqdm, leave", "rich", "none"])
def test_the_report_does_not_tear_the_progress_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bar: str
) -> None:
    from pytorch_lightning.callbacks import RichProgressBar, TQDMProgressBar

    bars = {
        "tqdm": lambda: [TQDMProgressBar()],
        "tqdm, leave": lambda: [TQDMProgressBar(leave=True)],
        "rich": lambda: [RichProgressBar()],
        "none": list,
    }[bar]()
    callback = ResidualMonitor(report=["console"], on_error="raise")
    trainer = parts.trainer(tmp_path, *bars, callback, enable_progress_bar=bool(bars), max_epochs=2)
    trainer.fit(parts.Net(), parts.loader(), parts.loader(batches=2, shuffle=False))
    assert callback.monitor is not None
    out = capsys.readouterr().out.replace("\r", "\n").splitlines()
    shown = [line.rstrip() for line in out]
    report = [line.rstrip() for line in callback.report().splitlines() if line.strip()]
    compared = 0
    for line in report:
        if not line.startswith(("skipscope", "cost")) and "captures" not in line:
            assert line in shown, line
            compared += 1
    assert compared > 20
    assert sum(line.startswith("watched    Net") for line in shown) == 2
