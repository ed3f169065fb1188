"""A remedy, told from its runs: compared, and extrapolated to a depth that is then built."""

from __future__ import annotations

import math
from typing import Literal

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


def factored(depth: int, learned: Literal["scalar", "no"]) -> History:
    """The same blocks behind `scale_branches`, after one step."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block() for _ in range(depth)))
    net = nn.Sequential(nn.Linear(8, WIDTH), blocks, nn.Linear(WIDTH, 4))
    inputs = torch.randn(64, 8)
    remedies.scale_branches(net, inputs[:2], alpha=depth**-0.5, learned=learned)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    monitor = Monitor(net, optimizer, report=[], on_error="raise")
    with monitor.step():
        net(inputs).square().mean().backward()
        optimizer.step()
    monitor.close()
    return monitor.history


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


def test_a_factor_on_the_branches_is_extrapolated_as_it_is_built() -> None:
    """Independent branches of a^2 = s^2/L: growth is (1 + s^2/L)^(L/2) at each depth."""
    found, was = at_the_start(factored(16, "scalar"), "3x"), at_the_start(factored(48, "scalar"))
    assert found.forward.law == "depth-scaled"
    (said,) = found.extrapolated
    assert said.growth == pytest.approx(was.measured.growth, rel=0.25)
    assert said.budget == pytest.approx(was.measured.budget, rel=0.25)


def test_a_factor_that_no_parameter_holds_leaves_both_answers() -> None:
    """A buffer is not in a history, nor is a number in the code; one of the answers is that net."""
    found, was = at_the_start(factored(16, "no"), "3x"), at_the_start(factored(48, "no"))
    assert found.forward.law is None
    assert "leaves room for a factor of 1/sqrt(16)" in found.forward.reason
    same, scaled = found.otherwise
    assert scaled.growth == pytest.approx(was.measured.growth, rel=0.25)
    assert same.growth is not None
    assert scaled.growth is not None
    assert same.growth > 4 * scaled.growth
