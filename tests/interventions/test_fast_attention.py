"""PyTorch's fast path for attention: the one place where bits are not those of the run alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from skipscope import Monitor, intervene

X = torch.randn(16, 5, 8, generator=torch.Generator().manual_seed(6))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def branch(self, x: Tensor) -> Tensor:
        out: Tensor = self.attn(x, x, x, need_weights=False)[0]
        return out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Plain(Attending):
    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradient", [True, False])
def test_an_intervention_is_the_net_written_otherwise(training: bool, gradient: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Attending(), Attending()).train(training)
    plain = copy.deepcopy(model)
    plain[1].__class__ = plain[2].__class__ = Plain
    with torch.set_grad_enabled(gradient):
        with intervene(model, shortcut=False):
            found = model(X)
        expected = plain(X)
    exactly = training or gradient  # else the plain net takes the fast path
    torch.testing.assert_close(
        found, expected, rtol=0 if exactly else 1e-5, atol=0 if exactly else 1e-5
    )


def test_a_monitor_leaves_a_validation_alone() -> None:
    """Between steps bit for bit; inside of a captured one by rounding."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    monitor = Monitor(model, preset="debug", report=[], on_error="raise")
    with torch.no_grad():
        before = model(X)
        with monitor.step():
            inside = model(X)
            with torch.enable_grad():
                model(X).sum().backward()
        after = model(X)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    torch.testing.assert_close(inside, before, rtol=1e-5, atol=1e-5)
