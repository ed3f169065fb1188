"""Compiled modules with on_compile="skip"; tests/modes has those whose steps are captured."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from skipscope import ResidualMonitor
from tests.lightning import parts

# Dynamo looks at `.grad` of everything.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Counted(parts.Net):
    """Notes how many graphs there are after each step."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.graphs: list[int] = []

    def training_step(self, batch: parts.Batch, batch_idx: int) -> torch.Tensor:
        return self.loss(batch)  # nothing that would be compiled anew each time

    def on_train_batch_end(self, *args: Any) -> None:
        self.graphs.append(counters["stats"]["unique_graphs"])


def _compiled(how: str) -> Any:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(7)
    net = Counted("gpt", "adamw")
    if how == "whole":
        return torch.compile(net, backend="eager")
    if how == "body":
        net.body = torch.compile(net.body, backend="eager")
    elif how == "blocks":
        for block in net.body.blocks:
            block.compile(backend="eager")
    return net


def _inner(net: Any) -> Counted:
    return getattr(net, "_orig_mod", net)


@pytest.mark.parametrize("how", ["whole", "body", "blocks"])
def test_skip_captures_nothing_and_says_so(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    net = _compiled(how)
    callback = ResidualMonitor(on_compile="skip", report=["console"], on_error="raise")
    with caplog.at_level(logging.WARNING, "skipscope"):
        parts.trainer(tmp_path, callback).fit(net, parts.loader("gpt"))
    assert not len(callback.history.capture_steps)
    assert len(callback.history.update_steps) == 10  # parameters are measured all the same
    (said,) = [r.getMessage() for r in caplog.records if r.name == "skipscope"]
    assert "on_compile='skip'" in said
    graphs = _inner(net).graphs
    assert 0 < graphs[0] == graphs[-1]
    assert "nothing measured" in capsys.readouterr().out


def test_an_uncompiled_model_is_not_skipped(tmp_path: Path) -> None:
    callback = ResidualMonitor(on_compile="skip", report=[], on_error="raise")
    parts.trainer(tmp_path, callback).fit(parts.Net(), parts.loader())
    assert len(callback.history.capture_steps) == 5
