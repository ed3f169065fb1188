"""Bad input is told clearly, and odd input does no harm."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from skipscope.find import find_residuals
from skipscope.monitor import Monitor
from tests.capture.attachments import attached, changes
from tests.capture.interrupting import one_step, setting
from tests.capture.nets import D, Residual, Stack


# ---------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"every_n_steps": 0}, ["every_n_steps", "0"]),
        ({"every_n_steps": -3}, ["every_n_steps"]),
        ({"every_n_steps": 1.5}, ["every_n_steps", "1.5"]),
        ({"every_n_steps": True}, ["every_n_steps"]),
        ({"report_every_n_epochs": 0}, ["report_every_n_epochs"]),
        ({"update_bytes": -1}, ["update_bytes"]),
        ({"preset": "fast"}, ["preset", "train", "debug"]),
        ({"on_error": "ignore"}, ["on_error", "disable", "raise"]),
        ({"on_compile": "crash"}, ["on_compile", "eager", "skip"]),
        ({"updates": "some"}, ["updates", "blocks"]),
        ({"sites": "blocks.0"}, ["sites", "list", "['blocks.0']"]),
        ({"exclude": "blocks.0"}, ["exclude", "list"]),
        ({"select": "RES101"}, ["select", "list"]),
        ({"report": ["html"]}, ["report", "html", "console"]),
        ({"sites": [1]}, ["sites", "got 1", "list of strings"]),
        ({"sites": ["blocks.0", None]}, ["sites", "got None"]),
        ({"sites": [" "]}, ["sites", "got ' '"]),
        ({"sites": 1}, ["sites", "got 1", "[ ]"]),
        ({"exclude": [2]}, ["exclude", "got 2"]),
        ({"exclude": 3}, ["exclude", "got 3"]),
        ({"select": [101]}, ["select", "got 101"]),
        ({"select": 101}, ["select", "got 101"]),
        ({"ignore": [None]}, ["ignore", "got None"]),
        ({"report": None}, ["report", "got None"]),
        ({"thresholds": ["RES101"]}, ["thresholds", "{'RES101': {'above': 6.0}}", "['RES101']"]),
        ({"thresholds": {1: {"above": 2.0}}}, ["thresholds", "{1: "]),
        ({"thresholds": {"RES101": {1: 2.0}}}, ["thresholds", "no threshold 1", "above"]),
        ({"update_bytes": "1"}, ["update_bytes", "got '1'"]),
        ({"update_bytes": True}, ["update_bytes", "got True"]),
        ({"update_bytes": float("nan")}, ["update_bytes", "got nan"]),
        ({"dirpath": 5}, ["dirpath", "got 5"]),
        ({"dirpath": " "}, ["dirpath", "got ' '"]),
        ({"name": 5}, ["name", "got 5"]),
        ({"name": "a/b"}, ["name"]),
        ({"select": ["RES999"]}, ["RES999"]),
        ({"ignore": ["RES1O1"]}, ["RES1O1", "RES101"]),
        ({"thresholds": {"RES101": {"no_such": 1.0}}}, ["RES101", "no_such"]),
        ({"thresholds": {"RES77": {"x": 1.0}}}, ["RES77"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_options(options: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ValueError, match=names[0]) as caught:
        Monitor(nn.Linear(2, 2), **options)
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"optimizer": 5}, "optimizer must be an optimizer, or a list of them, got an int"),
        ({"optimizer": nn.Linear(2, 2).parameters()}, "optimizer must be .*, got a Parameter"),
        ({"loggers": 5}, "loggers must be a list of loggers, got an int"),
    ],
)
def test_what_is_no_optimizer_and_no_logger(given: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=f"Monitor: {told}"):
        Monitor(nn.Linear(2, 2), **given)


def test_unknown_option() -> None:
    with pytest.raises(TypeError, match="every_steps"):
        Monitor(nn.Linear(2, 2), every_steps=3)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((torch.randn(2, 3),), {}),
        ((torch.randn(2, D), 3), {}),
        ((), {"y": 1}),
        (("x",), {}),
    ],
)
def test_example_inputs_that_fail(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    model = Stack(lambda k: Residual(torch.add), 1)
    model.register_buffer("calls", torch.zeros(()))
    before, state = attached(model), torch.get_rng_state()
    with pytest.raises(ValueError, match="the given example") as caught:
        find_residuals(model, *args, **kwargs)
    assert "Stack" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert changes(before, attached(model)) == {}
    assert torch.equal(state, torch.get_rng_state())


def test_what_is_no_module() -> None:
    with pytest.raises(TypeError, match=r"nn\.Module"):
        find_residuals(lambda x: x, torch.ones(2, 2))


def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(D, D), nn.ReLU()))


def test_scripted_model_is_refused() -> None:
    with pytest.raises(TypeError, match="TorchScript"):
        find_residuals(scripted(), torch.ones(2, D))


def test_monitor_of_a_scripted_model_trains_on() -> None:
    model = scripted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, optimizer, preset="debug", on_error="raise")
    for _ in range(2):
        with monitor.step():
            model(torch.randn(3, D)).sum().backward()
            optimizer.step()
    assert monitor.history.sites.sites == ()
    assert len(monitor.history.update_steps) == 2


def test_model_without_additions() -> None:
    model = nn.Sequential(nn.Linear(D, D), nn.ReLU())
    monitor = Monitor(model, preset="debug", on_error="raise")
    with monitor.step():
        model(torch.randn(3, D)).sum().backward()
    assert monitor.history.sites.sites == ()
    assert [finding.code for finding in monitor.diagnose().findings] == ["RES901"]


def test_step_without_forward() -> None:
    model, optimizer, monitor = setting(on_error="raise")
    with monitor.step():
        pass
    one_step(model, optimizer, monitor)
    assert len(monitor.history.sites.sites) == 3


@pytest.mark.parametrize("use", [lambda m: copy.deepcopy(m), lambda m: m.state_dict()])
def test_the_model_can_be_copied_in_a_captured_step(use: Callable[[nn.Module], object]) -> None:
    model = Stack(lambda k: Residual(torch.add), 1)
    monitor = Monitor(model, preset="debug", on_error="raise")
    with monitor.step():
        use(model)
        model(torch.randn(2, 3, D)).sum().backward()
        use(model)
    assert len(monitor.history.sites.sites) == 1
