"""Code that is to run compiled only is recognised; then no step is captured, which is said."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import flex_attention

from skipscope.compiled import compiled_only
from skipscope.monitor import Monitor

compiled = torch.compile(flex_attention, backend="eager")


def helper(x: Tensor) -> Tensor:
    return compiled(x, x, x)


@torch.compile(backend="eager")
def whole_helper(x: Tensor) -> Tensor:
    return flex_attention(x, x, x)


class Named(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return compiled(x, x, x)


class InAMethod(nn.Module):
    def attend(self, x: Tensor) -> Tensor:
        return [helper(y) for y in (x,)][0]  # noqa: RUF015 - a function within a function

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x)


class ThroughAHelper(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return whole_helper(x)


class AsAnAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = compiled

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x)


class AsAStaticMethod(nn.Module):
    attend = staticmethod(compiled)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x)


class Eager(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return flex.flex_attention(x, x, x)


class Setting(nn.Module):
    config = SimpleNamespace(_attn_implementation="flex_attention")


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


def compiled_whole() -> nn.Module:
    net = nn.Sequential(Eager())
    net.compile(backend="eager")
    return net


USING = [Named, InAMethod, ThroughAHelper, AsAnAttribute, AsAStaticMethod, Setting]


@pytest.mark.parametrize("kind", USING)
def test_it_is_recognised(kind: type[nn.Module]) -> None:
    assert compiled_only(nn.Sequential(nn.Linear(2, 2), kind())) == kind.__name__


def test_it_counts_where_it_is_compiled() -> None:
    assert compiled_only(compiled_whole()) == "Eager"
    assert compiled_only(nn.Sequential(Eager())) == "", "the user runs it eagerly as well"
    assert compiled_only(torch.compile(Plain(), backend="eager")) == ""


class Block(nn.Module):
    """Never calls it, for a CPU has no backward of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        f = self.fc(x)
        return x + (compiled(f, f, f) if x.is_cuda else f)


@pytest.mark.parametrize("on_compile", ["auto", "eager"])
def test_no_step_is_captured_and_why_is_said(
    on_compile: str, caplog: pytest.LogCaptureFixture
) -> None:
    net = nn.Sequential(nn.Linear(4, 4), Block())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor = Monitor(net, optimizer, preset="debug", on_compile=on_compile, on_error="raise")
    with caplog.at_level(logging.WARNING, "skipscope"):
        for _ in range(3):
            with monitor.step():
                optimizer.zero_grad()
                net(torch.ones(2, 3, 4)).sum().backward()
                optimizer.step()
    if on_compile == "eager":
        assert monitor.history.capture_steps.tolist() == [0, 1, 2]
        assert monitor.history.run.uncaptured == ""
        return
    assert not len(monitor.history.capture_steps)
    assert monitor.history.update_steps.tolist() == [0, 1, 2]
    reason = "Block uses flex_attention, which writes out all scores when it runs eagerly"
    assert monitor.history.run.uncaptured.startswith(reason)
    (told,) = [r.getMessage() for r in caplog.records if "captures nothing" in r.getMessage()]
    assert reason in told
    for form in ("console", "markdown", "json"):
        text = " ".join(monitor.report(form).split())
        assert "which writes out all scores when it runs eagerly" in text
