"""A pytest plugin: what became of each row, as JSON for `docs/generate_compatibility.py`.

pytest tests/modes -p tests.modes.outcomes --outcomes FILE

A test counts whose parameters are a `mode` and a `check`; so rows may stand in other folders too.
"""

from __future__ import annotations

import json
import platform
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

#: mode -> check -> how often it "passed", "failed" or was "skipped", with the reasons
Rows = dict[str, dict[str, dict[str, list[str]]]]


class Outcomes:
    """Collects while tests run; writes at the end."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows: Rows = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: Any, call: Any
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        given = getattr(getattr(item, "callspec", None), "params", {})
        if {"mode", "check"} <= given.keys() and (report.when == "call" or not report.passed):
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.nodeid
            told = self.rows[given["mode"].name][given["check"]][report.outcome]
            told.append(why.removeprefix("Skipped: ") if report.skipped else report.nodeid)
        return report

    def pytest_sessionfinish(self) -> None:
        import pytorch_lightning
        import torch

        found = {
            "torch": torch.__version__.partition("+")[0],
            "lightning": pytorch_lightning.__version__,
            "python": platform.python_version(),
            "rows": self.rows,
        }
        self.file.write_text(json.dumps(found, indent=1), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option, the file."""
    parser.addoption("--outcomes", type=Path, default=None, help="where outcomes are written")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the collector where a file is named."""
    if config.getoption("--outcomes"):
        config.pluginmanager.register(Outcomes(config.getoption("--outcomes")), "mode outcomes")
