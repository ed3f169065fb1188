"""Modules named in `sites=` that show no addition: watched as one site each, and marked so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skipscope.monitor import Monitor


class Hidden(torch.autograd.Function):
    """A residual addition inside a custom function: `x + 2x`, backward written by hand."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return torch.add(x, x, alpha=2.0)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return 3.0 * gradient


class HiddenBlock(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Hidden.apply(x)


class Loop(nn.Module):
    """Blocks in a row; the additions of `body` are in no module's forward but this one's."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(4, 4), HiddenBlock(), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)))


def test_a_hidden_addition_is_watched_at_block_level() -> None:
    torch.manual_seed(0)
    net, x = Loop(), torch.randn(5, 4)
    monitor = Monitor(net, sites=["HiddenBlock"], preset="debug", on_error="raise", report=[])
    with monitor.step():
        net(x).sum().backward()
    (site,) = monitor.history.sites.sites
    assert (site.name, site.watched, site.kind) == ("block", "module", "identity")
    assert monitor.history.sites.unseen == ()
    stem = net.stem(x).detach().double()
    r = monitor.history.table("branch_ratio").values[-1, 0]
    assert r == pytest.approx(2.0, rel=1e-6)  # F = output - input = 2x
    rms = monitor.history.table("rms_shortcut").values[-1, 0]
    assert rms == pytest.approx(float(stem.square().mean().sqrt()), rel=1e-6)
    assert monitor.history.table("gradient_gain").values[-1, 0] == pytest.approx(3.0, rel=1e-6)
    assert np.isnan(monitor.history.table("branch_gradient").values[-1, 0])  # not told apart


def test_a_module_with_an_addition_is_not_watched_twice() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Residual(), Residual()))
    monitor = Monitor(net, sites=["1"], preset="debug", on_error="raise", report=[])
    with monitor.step():
        net(torch.randn(3, 4)).sum().backward()
    assert [site.watched for site in monitor.history.sites.sites] == ["addition", "addition"]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc(x).relu()


def test_additions_outside_of_every_module() -> None:
    """Blocks that are added up in the training loop itself."""
    parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    monitor = Monitor(parts, preset="debug", on_error="raise", report=[])
    with monitor.step():
        h = parts[0](torch.randn(3, 4))
        for part in parts[1:]:
            h = h + part(h).tanh()
        h.sum().backward()
    assert [site.name for site in monitor.history.sites.sites] == ["model/1", "model/2"]
    assert not np.isnan(monitor.history.table("gradient_cosine").values).any()
