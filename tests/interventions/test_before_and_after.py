"""A remedy, told from its runs: compared, and extrapolated to a depth that is then built."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from skipscope import Monitor, compare, extrapolate, remedies
from skipscope.extrapolation.records import At, StageAt
from skipscope.history import History
from tests.zoo.parts import Mlp

WIDTH = 128  #: a start's chance weighs less in a wide net


class Block(nn.Module):
    """A residual MLP without a norm, from He's start."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp(WIDTH)
        for layer in (self.mlp.fc1, self.mlp.fc2):
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(x)


def trained(depth: int, steps: int, *, scaled: bool) -> History:
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block() for _ in range(depth)))
    net = nn.Sequential(nn.Linear(8, WIDTH), blocks, nn.Linear(WIDTH, 4))
    inputs = torch.randn(64, 8)
    targets = inputs[:, :4].argmax(1)
    if scaled:
        remedies.depth_scaled_init(net, inputs[:2])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    monitor = Monitor(net, optimizer, report=[], on_error="raise")
    for _ in range(steps):
        with monitor.step():
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
    monitor.close()
    return monitor.history


@pytest.fixture(scope="module")
def before() -> History:
    return trained(16, 2, scaled=False)


@pytest.fixture(scope="module")
def after() -> History:
    return trained(16, 2, scaled=True)


def at_the_start(history: History, *depths: str) -> StageAt:
    return extrapolate(history, *depths).numbers.moments[0].streams[0].stages[0]


def built(depth: int, *, scaled: bool) -> At:
    return at_the_start(trained(depth, 1, scaled=scaled)).measured


def test_before_and_after_a_remedy(before: History, after: History) -> None:
    found = compare(before, after).numbers
    lost = {one.code for one in found.findings if one.change == "lost"}
    assert {"RES105", "RES201"} <= lost
    assert not [one for one in found.findings if one.change == "gained"]
    (told,) = found.differences  # the last matrix of each branch, times 1/sqrt(16)
    assert (told.a, told.b) == ("x1", "x0.25 (median) in 16 of 34")
    (stream,) = found.streams
    growth = next(pair for pair in stream.start if pair.what == "total_growth")
    assert growth.a is not None
    assert growth.b is not None
    assert growth.a > 1000 > 5 > growth.b
    assert all(site.name_a == site.name_b for site in stream.sites)


@pytest.mark.parametrize(("scaled", "law"), [(False, "constant"), (True, "depth-scaled")])
def test_the_deeper_net_is_as_extrapolated(
    before: History, after: History, scaled: bool, law: str
) -> None:
    """From 16 sites to 48, which are then built: the logarithms agree within an eighth."""
    found = at_the_start(after if scaled else before, "3x")
    assert found.forward.law == law
    (said,), was = found.extrapolated, built(48, scaled=scaled)
    for one, two in ((said.growth, was.growth), (said.multiplier, was.multiplier)):
        assert one is not None
        assert two is not None
        assert math.log(one) == pytest.approx(math.log(two), rel=1 / 8)
    assert said.budget == pytest.approx(was.budget, rel=1 / 8)
