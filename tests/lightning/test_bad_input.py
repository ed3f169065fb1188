"""What a user can get wrong: a clear message, and a training that goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from skipscope import ResidualMonitor
from tests.lightning import parts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sites": []}, r"sites must name something, got \[\]: nothing would be measured"),
        ({"every_n_steps": 0}, "every_n_steps must be a whole number of 1 or more, got 0"),
        ({"every_n_steps": 2.5}, "every_n_steps"),
        ({"every_n_steps": True}, "every_n_steps"),
        ({"report_every_n_epochs": 0}, "report_every_n_epochs"),
        ({"preset": "all"}, "preset must be one of train, debug, got 'all'"),
        ({"updates": "layers"}, "updates must be one of"),
        ({"update_bytes": -1}, "update_bytes"),
        ({"on_compile": "maybe"}, "on_compile must be one of"),
        ({"on_error": "panic"}, "on_error must be one of"),
        ({"report": ["pdf"]}, "report must list formats among"),
        ({"report": "console"}, r"report must be a list of strings.*write \['console'\]"),
        ({"sites": "blocks"}, "sites must be a list of strings"),
        ({"name": "a/b"}, "name must be"),
        ({"name": ""}, "name must be"),
        ({"select": ["RES999"]}, "RES999"),
        ({"ignore": ["RES100"]}, "RES100"),
        ({"thresholds": {"RES101": {"hihg": 2.0}}}, "hihg"),
        ({"thresholds": {"RSE101": {"ratio": 2.0}}}, "RES101"),
    ],
)
def test_constructor_errors_name_the_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResidualMonitor(**arguments)


def _messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [
        r.getMessage()
        for r in caplog.records
        if r.name.partition(".")[0] == "skipscope" and r.levelno >= level
    ]


@pytest.mark.parametrize("report", [[], ["json", "markdown"]])
def test_a_directory_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, report: Any
) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = str(tmp_path / "file" / "below")
    callback = ResidualMonitor(dirpath=folder, report=report, on_error="raise")
    with caplog.at_level(logging.WARNING, "skipscope"):
        trainer = parts.trainer(tmp_path, callback, max_epochs=3)
        trainer.fit(parts.Net(), parts.loader())
    (said,) = _messages(caplog)
    assert folder in said
    assert "dirpath=" in said
    assert trainer.global_step == 30
    assert len(callback.history.fact("step")) == 30  # memory goes on
    assert callback.history.capture_steps[-1] > 20


def test_a_disk_that_fills_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from skipscope import History, history

    writes = 0
    write = history.HistoryWriter._write

    def failing(self: Any, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes > 12:
            raise OSError(28, "No space left on device")
        write(self, data)

    callback = ResidualMonitor(report=[], on_error="raise")
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "skipscope"):
        patch.setattr(history.HistoryWriter, "_write", failing)
        trainer = parts.trainer(tmp_path, callback)
        trainer.fit(parts.Net(), parts.loader())
    (said,) = _messages(caplog)
    assert "No space left on device" in said
    kept = History.load(tmp_path / "skipscope").capture_steps.tolist()
    assert kept == callback.history.capture_steps.tolist()[: len(kept)]
    assert kept
    assert len(callback.history.capture_steps) == 5


def test_a_model_without_residual_additions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    callback = ResidualMonitor(on_error="raise")
    with caplog.at_level(logging.WARNING, "skipscope"):
        trainer = parts.trainer(tmp_path, callback, max_epochs=2)
        trainer.fit(parts.Net("plain"), parts.loader())
    assert trainer.global_step == 20
    out = capsys.readouterr().out
    assert "RES901" in out
    assert "no residual addition found" in out
    assert "RES901" in (tmp_path / "skipscope" / "report.md").read_text()
    assert len([r for r in caplog.records if r.name == "skipscope.RES901"]) == 1
    assert float(trainer.callback_metrics["skipscope/warnings"]) >= 1
    assert torch.isnan(trainer.callback_metrics["skipscope/r_max"])


def test_a_model_without_parameters_or_optimizer(tmp_path: Path) -> None:
    class Nothing(parts.Net):
        def configure_optimizers(self) -> Any:
            return None

    callback = ResidualMonitor(report=["json"], on_error="raise")
    trainer = parts.trainer(tmp_path, callback)
    with pytest.warns(UserWarning, match="configure_optimizers"):
        trainer.fit(Nothing(), parts.loader())
    assert callback.history.capture_steps.tolist() == [0, 1, 2, 4, 8]


@pytest.mark.parametrize("which", ["a block", "the whole body"])
def test_scripted_modules(tmp_path: Path, which: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Their inside is not visible; what is outside is measured, and training goes on."""
    results = []
    for ours in (False, True):
        torch.manual_seed(7)
        net = parts.Net()
        if which == "a block":
            net.body.blocks[1] = torch.jit.script(net.body.blocks[1])
        else:
            net.body = torch.jit.script(net.body)
        callback = ResidualMonitor(preset="debug", report=["console"], on_error="raise")
        parts.trainer(tmp_path, *[callback] * ours).fit(net, parts.loader())
        results.append((net.losses, parts.weights(net)))
    assert parts.equal(results[0][0], results[1][0])
    assert parts.equal(results[0][1], results[1][1])
    modules = {site.module for site in callback.history.sites.sites}
    expected = {"body.blocks.0", "body.blocks.2"} if which == "a block" else set()
    assert modules == expected
    assert ("RES901" in capsys.readouterr().out) == (which != "a block")


@pytest.mark.parametrize("where", ["begin", "addition", "end", "epoch end", "summary"])
def test_an_error_of_our_own_turns_it_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    from skipscope import capture, judge

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("planned")

    places: dict[str, tuple[Any, str]] = {
        "begin": (capture.Capture, "open"),
        "addition": (capture.Capture, "_measure_forward"),
        "end": (capture.Capture, "collect"),
        "epoch end": (judge, "publish"),
        "summary": (judge, "summary"),
    }
    results, net = [], parts.Net()
    before = parts.attached(net)
    for ours in (False, True):
        torch.manual_seed(7)
        net = parts.Net()
        callback = ResidualMonitor(report=[])
        trainer = parts.trainer(tmp_path, *[callback] * ours, max_epochs=2)
        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "skipscope"):
            patch.setattr(*places[where], broken)
            trainer.fit(net, parts.loader())
            trainer.save_checkpoint(tmp_path / "any.ckpt")
        results.append((net.losses, parts.weights(net)))
    assert parts.equal(results[0][0], results[1][0])
    assert parts.equal(results[0][1], results[1][1])
    assert parts.attached(net, trainer.optimizers) == before
    (record,) = [r for r in caplog.records if r.name == "skipscope"]
    assert record.exc_info
    assert "planned" in str(record.exc_info[1])
    assert "the training goes on" in record.getMessage()


@pytest.mark.parametrize(
    "hook", ["run_directory", "plain_optimizer", "steps_now", "step_axis", "loss_of"]
)
def test_an_error_in_the_callback_stops_no_training(
    hook: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(f"skipscope.lightning.callback.{hook}", broken)
    with caplog.at_level(logging.WARNING, "skipscope"):
        trainer = parts.trainer(tmp_path, ResidualMonitor(report=[]), max_epochs=2)
        trainer.fit(parts.Net(), parts.loader())
    (said,) = _messages(caplog)
    assert "error of its own" in said
    assert caplog.records[-1].exc_info is not None
    assert trainer.global_step == 20
    with pytest.raises(RuntimeError, match="planted"):
        parts.trainer(tmp_path, ResidualMonitor(report=[], on_error="raise"), max_epochs=2).fit(
            parts.Net(), parts.loader()
        )
