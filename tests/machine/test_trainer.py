"""The same faults under a Trainer."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.loggers import CSVLogger

from skipscope import ResidualMonitor
from tests.lightning import parts
from tests.machine.runs import apart, heard, read

Result = tuple[list[torch.Tensor], dict[str, torch.Tensor], list[str], list[int]]


def fit(root: Path, *, watched: bool = True, **settings: Any) -> Result:
    torch.manual_seed(7)
    net = parts.Net()
    callback = ResidualMonitor(preset="debug", on_error="raise", dirpath=str(root / "run"))
    trainer = parts.trainer(root, *[callback] * watched, max_epochs=3, **settings)
    with heard() as said:
        trainer.fit(net, parts.loader())
    captures = callback.history.capture_steps.tolist() if watched else []
    return net.losses, parts.weights(net), said, captures


def check(root: Path, result: Result) -> list[str]:
    losses, weights, said, captures = result
    plain = fit(root, watched=False)
    assert parts.equal(losses, plain[0])
    assert parts.equal(weights, plain[1])
    assert captures == list(range(30))
    return said


def test_disk_and_console_are_full(tmp_path: Path) -> None:
    """Two faults, two messages, however many epochs."""

    def run() -> Result:
        sys.stdout = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        return fit(tmp_path)

    said = check(tmp_path, apart(run))
    assert sorted(message.split("(")[0] for message in said) == [
        "WARNING skipscope cannot give out its report ",
        f"WARNING skipscope cannot write to {tmp_path / 'run'} ",
    ]
    assert len(read(tmp_path / "run").capture_steps) > 10


class Broken(CSVLogger):
    """Takes what Lightning logs, and nothing of ours."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        if any(name.startswith("skipscope") for name in metrics):
            raise OSError("no room for more columns")


@pytest.mark.filterwarnings("ignore:.*Experiment logs directory.*")
def test_a_logger_that_raises(tmp_path: Path) -> None:
    (message,) = check(tmp_path, fit(tmp_path, logger=Broken(tmp_path)))
    assert message == (
        "WARNING Broken failed and gets nothing more from skipscope: "
        "OSError: no room for more columns"
    )
    assert len(read(tmp_path / "run").capture_steps) == 30
