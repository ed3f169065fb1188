"""Loggers: one call a step, keys that stay, and no logger that can stop a training."""

from __future__ import annotations

import logging
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from skipscope.curves import Curves, chosen
from skipscope.loggers import Loggers
from tests.offline.builders import add_facts, make_history, make_map, make_site
from tests.offline.report_values import run_of, sick


class Writer:
    """As TensorBoard's SummaryWriter."""

    def __init__(self) -> None:
        self.scalars: dict[str, float] = {}
        self.images: list[tuple[str, tuple[int, ...], int, str]] = []
        self.texts: list[tuple[str, str, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag] = value

    def add_image(self, tag: str, image: Any, step: int, dataformats: str) -> None:
        self.images.append((tag, image.shape, step, dataformats))

    def add_text(self, tag: str, text: str, step: int) -> None:
        self.texts.append((tag, text, step))


class Logger:
    """As a Lightning logger that takes scalars; `experiment` says what else."""

    def __init__(self, experiment: Any = None) -> None:
        self.experiment = experiment or SimpleNamespace()
        self.calls: list[tuple[dict[str, float], int]] = []

    def log_metrics(self, *, metrics: dict[str, float], step: int) -> None:
        self.calls.append((metrics, step))


class DummyLogger(Logger):
    """As Lightning's: it has every attribute."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


class Broken(Logger):
    def log_metrics(self, *, metrics: dict[str, float], step: int) -> None:
        raise RuntimeError("disk full")


# ------------------------------------------------------------------------------ scalars


def test_one_call_a_step_and_logger_with_python_floats() -> None:
    logger, writer = Logger(), Writer()
    loggers = Loggers([logger, writer])
    values = loggers.scalars(run_of(4, {2: 34.0}), 50)
    assert [step for _, step in logger.calls] == [50]
    assert logger.calls[0][0] == values == writer.scalars
    assert all(type(value) is float for value in values.values())


def test_the_numbers() -> None:
    values = Loggers([]).scalars(run_of(4, {2: 34.0}), 50)
    assert values["skipscope.branch_ratio/000_blocks.0"] == pytest.approx(0.5)
    assert values["skipscope.branch_ratio/002_blocks.2"] == pytest.approx(34.0)
    assert values["skipscope.growth/000_blocks.0"] == pytest.approx(1.1180340)  # sqrt(1 + .25)
    assert values["skipscope.gradient_gain/000_blocks.0"] == pytest.approx(1.1180340)
    assert values["skipscope.update_ratio/003_blocks.3"] == pytest.approx(2.6e-3)
    assert values["skipscope/summary/r_median"] == pytest.approx(0.5)
    assert values["skipscope/summary/r_worst"] == pytest.approx(34.0)
    assert values["skipscope/summary/r_worst_site"] == 2.0
    assert values["skipscope/summary/loss"] == pytest.approx(0.41)
    assert values["skipscope/summary/lr"] == pytest.approx(1e-3)
    assert values["skipscope/summary/update_ratio_median"] == pytest.approx(2.6e-3)
    # growths sqrt(1.25)^3 * sqrt(1 + 34^2)
    assert values["skipscope/summary/total_growth"] == pytest.approx(47.5370, rel=1e-5)


def test_tags_are_safe_sorted_and_metric_first() -> None:
    sites = [make_site(at, name=f"b[{at}]->x y", module=f"b.{at}") for at in range(12)]
    history = make_history(np.full((1, 12), 0.5), sites=make_map(*sites))
    tags = Curves(history).tags
    assert all(re.fullmatch(r"[A-Za-z0-9_./-]+", tag) for tag in tags)
    assert len(set(tags)) == len(tags)
    ratios = [tag for tag in tags if tag.startswith("skipscope.branch_ratio/")]
    assert ratios == sorted(ratios)
    assert ratios[7] == "skipscope.branch_ratio/007_b_7_-_x_y"
    assert sum(tag.startswith("skipscope/summary/") for tag in tags) == 12


def test_deep_networks_stay_near_the_budget() -> None:
    history = run_of(400)
    tags = Curves(history, budget=200).tags
    assert 180 <= len(tags) <= 200
    shown = [int(tag.partition("/")[2][:3]) for tag in tags if tag.startswith("skipscope.growth/")]
    assert shown[:3] == [0, 1, 2]
    assert shown[-3:] == [397, 398, 399]
    steps = np.diff(shown[2:-2])
    assert steps.max() - steps.min() <= 1


@pytest.mark.parametrize(("count", "room"), [(1, 46), (6, 6), (7, 6), (20, 7), (100, 46)])
def test_chosen_sites(count: int, room: int) -> None:
    sites = tuple(make_site(at) for at in range(count))
    kept = chosen(sites, room)
    assert len(kept) == min(count, room)
    assert kept[0] is sites[0]
    assert kept[-1] is sites[-1]


def test_keys_stay_as_they_were_at_the_first_capture() -> None:
    loggers, history = Loggers([]), run_of(4)
    before = loggers.scalars(history, 50)
    history.set_sites(make_map(*history.sites.sites, make_site(4)))
    sums = np.concatenate([history.sums[-1][:4], history.sums[-1][:1]])
    history.append_capture(60, sums, [31] * 5, [0] * 5)
    assert list(loggers.scalars(history, 60)) == list(before)


def test_missing_is_nan_in_tables_and_absent_in_tensorboard() -> None:
    table, board = Logger(), Logger(Writer())
    have = np.full((8, 4), 31)
    have[-1, 1] = 0
    Loggers([table, board]).scalars(run_of(4, have=have), 50)
    tag = "skipscope.growth/001_blocks.1"
    assert math.isnan(table.calls[0][0][tag])
    assert tag not in board.calls[0][0]
    assert table.calls[0][0].keys() > board.calls[0][0].keys()


def test_a_measured_nan_reaches_every_logger_and_is_the_worst() -> None:
    history = run_of(4, {2: 34.0})
    sums = history.sums[-1].copy()
    sums[1, 4] = math.nan  # the branch of blocks.1
    history.append_capture(60, sums, [31] * 4, [0] * 4)
    writer = Writer()
    Loggers([writer]).scalars(history, 60)
    assert math.isnan(writer.scalars["skipscope.branch_ratio/001_blocks.1"])
    assert math.isnan(writer.scalars["skipscope/summary/r_worst"])
    assert writer.scalars["skipscope/summary/r_worst_site"] == 1.0


def test_the_gradient_gain_farthest_from_one_is_the_worst() -> None:
    history = make_history([[0.5, 0.5, 0.5]], b=[[0.2, 0.9, 0.1]], gradient_cosine=-1.0)
    values = Loggers([]).scalars(add_facts(history), 0)
    # gains 1 - b: .8, .1, .9
    assert values["skipscope/summary/gradient_gain_worst"] == pytest.approx(0.1)
    assert values["skipscope/summary/gradient_gain_worst_site"] == 1.0


def test_streams_have_curves_of_their_own() -> None:
    tags = Curves(run_of(8, streams=2)).tags
    assert "skipscope/summary/total_growth_stream0" in tags
    assert "skipscope/summary/total_growth_stream1" in tags


def test_two_monitors_do_not_share_curves() -> None:
    one, other = (Curves(run_of(4), name=name).tags for name in ("skipscope", "critic"))
    assert not set(one) & set(other)


# ------------------------------------------------------------------------------ who gets what


def test_stand_ins_and_other_ranks_get_nothing() -> None:
    logger = Logger()
    assert Loggers([DummyLogger(), logger]).active == [logger]
    assert Loggers([logger], rank=1).active == []


def test_a_stand_in_experiment_is_not_asked_for_pictures() -> None:
    class _DummyExperiment:
        def __getattr__(self, name: str) -> Any:
            return pytest.fail

    logger = Logger(_DummyExperiment())
    loggers = Loggers([logger])
    loggers.pictures(run_of(4), sick(), 50)
    loggers.text("report", 50)
    loggers.scalars(run_of(4), 50)
    assert loggers.active == [logger]


@pytest.mark.parametrize("wrapped", [False, True])
def test_tensorboard_takes_pictures_and_text(wrapped: bool) -> None:
    writer = Writer()
    loggers = Loggers([Logger(writer) if wrapped else writer])
    loggers.pictures(run_of(4), sick(), 50)
    loggers.text("# report", 50)
    assert [image[0] for image in writer.images] == [
        "skipscope/picture/branch_ratio",
        "skipscope/picture/growth",
        "skipscope/picture/gradient_gain",
    ]
    assert writer.images[0][1:] == ((330, 1100, 3), 50, "HWC")
    assert writer.texts == [("skipscope/report", "# report", 50)]


def test_weights_and_biases_takes_pictures_and_text_without_a_step() -> None:
    seen: list[tuple[str, Any]] = []

    class Wandb(Logger):
        def log_image(self, key: str, images: list[Any]) -> None:
            seen.append((key, len(images)))

        def log_text(self, key: str, columns: list[str], data: list[list[Any]]) -> None:
            seen.append((key, data))

    loggers = Loggers([Wandb()])
    loggers.pictures(run_of(4), None, 50)
    loggers.text("report", 50)
    assert ("skipscope/picture/growth", 1) in seen
    assert ("skipscope/report", [[50, "report"]]) in seen


def test_mlflow_takes_artifacts() -> None:
    files: list[str] = []
    client = SimpleNamespace(
        log_image=lambda run, image, artifact_file: files.append(artifact_file),
        log_text=lambda run, text, artifact_file: files.append(artifact_file),
    )
    logger = Logger(client)
    logger.run_id = "r"  # type: ignore[attr-defined]
    loggers = Loggers([logger])
    loggers.pictures(run_of(4), None, 50)
    loggers.text("report", 50)
    assert "skipscope/picture/growth-00000050.png" in files
    assert "skipscope/report-00000050.md" in files


def test_nothing_is_drawn_where_nobody_takes_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skipscope.pictures.pictures", pytest.fail)
    Loggers([Logger()]).pictures(run_of(4), sick(), 50)


def test_a_failing_logger_warns_once_and_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = Logger(), Broken()
    loggers = Loggers([bad, good])
    with caplog.at_level(logging.WARNING, "skipscope.loggers"):
        loggers.scalars(run_of(4), 50)
        loggers.scalars(run_of(4), 60)
        loggers.text("report", 60)
    assert len(caplog.records) == 1
    assert "Broken failed" in caplog.text
    assert "disk full" in caplog.text
    assert loggers.active == [good]
    assert [step for _, step in good.calls] == [50, 60]


def test_an_experiment_that_cannot_be_had_is_a_failing_logger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class NoServer(Logger):
        experiment = property(lambda self: 1 / 0)

        def __init__(self) -> None:
            self.calls = []

    loggers = Loggers([NoServer()])
    loggers.pictures(run_of(4), None, 50)
    assert loggers.active == []
    assert len(caplog.records) == 1


# ------------------------------------------------------------------------------ the real ones


def test_a_real_summary_writer_and_a_real_csv_logger(tmp_path: Any) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    lightning = pytest.importorskip("pytorch_lightning.loggers")
    writer = tensorboard.SummaryWriter(str(tmp_path / "board"))
    csv = lightning.CSVLogger(str(tmp_path), name="csv")
    stand_in = lightning.logger.DummyLogger()
    loggers = Loggers([writer, csv, stand_in])
    history = run_of(4)
    loggers.scalars(history, 50)
    loggers.scalars(history, 60)
    loggers.pictures(history, sick(), 60)
    loggers.text("report", 60)
    csv.save()
    writer.close()
    assert loggers.active == [writer, csv]
    rows = (tmp_path / "csv" / "version_0" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 3
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = events.EventAccumulator(str(tmp_path / "board"))
    read.Reload()
    assert "skipscope.branch_ratio/002_blocks.2" in read.Tags()["scalars"]
    assert "skipscope/picture/growth" in read.Tags()["images"]
    assert "skipscope/report/text_summary" in read.Tags()["tensors"]
