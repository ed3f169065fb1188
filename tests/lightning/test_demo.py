"""The demo's net: a healthy run, and the planted fault named in the report of epoch 1."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from types import ModuleType

import pytest
import torch

from skipscope import ResidualMonitor
from tests.lightning import parts

_FILE = Path(__file__).parents[2] / "docs" / "examples" / "digits.py"


def _digits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("digits", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("sick", [False, True])
def test_the_report_of_epoch_1(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    sick: bool,
) -> None:
    """Default settings; epoch 1 of three, and the first report too."""
    digits = _digits()
    torch.manual_seed(0)
    net = digits.DigitsNet()
    block = digits.plant_fault(net) if sick else ""
    train, _ = digits.loaders()
    callback = ResidualMonitor()
    with caplog.at_level(logging.WARNING, "skipscope"):
        parts.trainer(tmp_path, callback, max_epochs=2).fit(net, train)
    said = [(r.name, block in r.getMessage()) for r in caplog.records if "skipscope" in r.name]
    assert said == ([("skipscope.RES101", True)] if sick else [])
    first, second = capsys.readouterr().out.split("skipscope  epoch ")[1:]
    for report in (first, second):
        lines = report.splitlines()
        assert f"{12} sites" in lines[0]
        if sick:
            assert "1 warning" in lines[0]
            assert any("RES101" in line and block in line.split() for line in lines)
        else:
            assert "warning" not in lines[0]
            assert "RES101 branch-dominance" not in report
    assert callback.diagnose().count("warning", "error") == sick
