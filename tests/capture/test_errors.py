"""Errors of the monitor stay with it, those of the model pass through."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipscope import capture as capture_module
from skipscope import judge as judge_module
from skipscope.capture import Capture
from skipscope.capture import slots as slots_module
from skipscope.capture.slots import Slot
from skipscope.find import Discovery, SiteRegistry
from skipscope.find.graph import Graph
from skipscope.loggers import Loggers
from skipscope.monitor import Monitor
from skipscope.recorder import Recorder
from skipscope.rules import RULES
from skipscope.transfer import Transfer
from skipscope.updates import Updates
from tests.capture.attachments import attached, changes
from tests.capture.interrupting import Remembering, interrupted, one_step, setting
from tests.capture.nets import D, Residual, Stack


# ---------------------------------------------------------------------- errors of the monitor
class InjectedError(RuntimeError):
    """An error of ours, made for the test."""


def explode(*args: Any, **kwargs: Any) -> Any:
    raise InjectedError("injected")


ENTRIES: dict[str, tuple[object, str]] = {
    "finding": (Discovery, "addition"),
    "completing the graph": (Graph, "note"),
    "module inputs": (Discovery, "_module_input"),
    "reading the graph": (Graph, "node"),
    "reading operands": (capture_module, "row_sums"),
    "forward sums": (capture_module, "forward_sums"),
    "the loss": (Capture, "before_backward"),
    "hook at the sum": (Slot, "at_sum"),
    "hook at a share": (Slot, "at_share"),
    "hook at the input": (slots_module, "gradient_sums"),
    "opening": (Capture, "open"),
    "collecting": (Capture, "collect"),
    "closing": (Discovery, "close"),
    "gradients": (Updates, "_read_gradients"),
    "before the step": (Updates, "_pre"),
    "after the step": (Updates, "_post"),
    "transfer": (Transfer, "move"),
    "site map": (SiteRegistry, "site_map"),
    "recording": (Recorder, "tell"),
    "diagnosis": (judge_module, "diagnose"),
    "loggers": (Loggers, "scalars"),
}


class Quiet:
    """A logger that takes everything."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        return None


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_error_of_ours_does_not_reach_the_training(
    entry: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Remembering()
    watched = copy.deepcopy(plain)
    batches = [torch.randn(4, 6, D) for _ in range(4)]
    expected = trained(plain, batches, None)
    optimizer = torch.optim.AdamW(watched.parameters(), lr=0.01)
    monitor = Monitor(watched, optimizer, preset="debug", loggers=[Quiet()])
    before = attached(watched, [optimizer])
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "skipscope"):
        patch.setattr(*ENTRIES[entry], explode)
        losses = trained(watched, batches, monitor, optimizer)
    assert losses == expected
    pairs = zip(plain.parameters(), watched.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR and r.name == "skipscope"]
    assert len(errors) == 1
    assert isinstance(errors[0].exc_info[1], InjectedError), "with its traceback"
    assert changes(before, attached(watched, [optimizer])) == {}
    count = len(monitor.history.capture_steps)
    trained(watched, batches[:1], monitor, optimizer)
    assert len(monitor.history.capture_steps) == count, "it is off"
    assert caplog.records[-1] is errors[0] or len(errors) == 1


def trained(
    model: nn.Module,
    batches: list[Tensor],
    monitor: Monitor | None,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[float]:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for x in batches:
        if monitor is not None:
            monitor.begin_step()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if monitor is not None:
            monitor.end_step()
    return losses


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_error_of_ours_is_raised_on_request(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, monitor = setting(on_error="raise", loggers=[Quiet()])
    before = attached(model, [optimizer])
    with monkeypatch.context() as patch:
        patch.setattr(*ENTRIES[entry], explode)
        with pytest.raises(InjectedError):
            one_step(model, optimizer, monitor)
    monitor.close()
    assert changes(before, attached(model, [optimizer])) == {}


# ---------------------------------------------------------------------- errors of the model
def test_an_error_of_the_model_passes_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer, monitor = setting()
    before = attached(model, [optimizer])
    model.fail_at, model.error = 1, LookupError("mine")
    with pytest.raises(LookupError) as caught:
        one_step(model, optimizer, monitor)
    assert caught.value is model.error
    assert caught.value.__cause__ is None
    model.fail_at = None
    one_step(model, optimizer, monitor)
    assert monitor.history.capture_steps.tolist() == [0]
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert changes(before, attached(model, [optimizer])) == {}


def test_an_error_of_the_addition_itself_passes_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Residual):
        def branch(self, x: Tensor) -> Tensor:
            return super().branch(x)[..., :3]

    model = Stack(lambda k: Wrong(torch.add), 1)
    with pytest.raises(RuntimeError) as plain:
        model(torch.randn(2, 3, D))
    monitor = Monitor(model, preset="debug")
    with pytest.raises(RuntimeError) as watched, monitor.step():
        model(torch.randn(2, 3, D))
    assert str(watched.value) == str(plain.value)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_out_of_memory_of_the_model_is_not_ours(place: str) -> None:
    model, optimizer, monitor = setting()
    error = torch.OutOfMemoryError("out of memory")
    with pytest.raises(torch.OutOfMemoryError) as caught, monitor.step():
        interrupted(model, optimizer, error, place)
    assert caught.value is error
    assert not monitor._guard.broken


def test_a_defect_of_one_rule_costs_that_rule(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    monitor = Monitor(net, preset="debug", report=[])
    broken = replace(RULES["RES901"], function=explode)
    monkeypatch.setattr("skipscope.diagnose.RULES", {**RULES, "RES901": broken})
    for _ in range(3):
        with monitor.step():
            net(torch.ones(2, 4)).sum().backward()
    assert len(monitor.history.capture_steps) == 3
    (skipped,) = [s for s in monitor.diagnose().skipped if s.code == "RES901"]
    assert skipped.reason == "an error of its own, see the log"
    (told,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert "RES901" in told.getMessage()
