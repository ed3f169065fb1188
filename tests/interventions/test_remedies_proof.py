"""A factor on a module's output scales its branch and nothing else, or is refused without trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipscope import remedies
from skipscope.remedies.factor import Factor

WIDTH = 6
X = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(3))


class Gated(nn.Module):
    """ReZero or LayerScale with its gate in the block, whose output is the sum."""

    def __init__(self, *gate: int) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(gate))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.g * self.f(x.tanh())


class Raw(nn.Module):
    """A last weight in the block itself."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + x.tanh() @ self.w


class Normed(nn.Module):
    """Behind its one sum a norm, which hides a factor on the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm = Gated(), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.block(x))


BLIND: dict[str, tuple[Callable[[], nn.Module], Tensor, str]] = {
    "gate of 0": (lambda: nn.Sequential(Gated(), Gated()), X, "it is 0 in the example"),
    "gates of 0": (lambda: nn.Sequential(Gated(WIDTH)), X, "it is 0 in the example"),
    "gate of 0 before a norm": (Normed, X, "it is 0 in the example"),
    "weight of 0": (
        lambda: nn.Sequential(Raw(torch.zeros(WIDTH, WIDTH))), X, "it is 0 in the example"
    ),
    "example of 0": (
        lambda: nn.Sequential(Raw(torch.eye(WIDTH))), 0 * X, "it is 0 in the example"
    ),
    "example of NaN": (
        lambda: nn.Sequential(Raw(torch.eye(WIDTH))), X * float("nan"), "no finite number"
    ),
}  # fmt: skip


def refused(model: nn.Module, x: Tensor, why: str, **settings: Any) -> None:
    """It is refused for this reason, and the model computes, holds and hooks what it did."""
    before, keys = model(X), list(model.state_dict())
    with pytest.raises(ValueError, match=why):
        remedies.scale_branches(model, x, alpha=0.5, **settings)
    assert torch.equal(model(X), before)
    assert list(model.state_dict()) == keys
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("learned", ["no", "scalar"])
@pytest.mark.parametrize("name", BLIND)
def test_a_branch_of_which_the_example_shows_nothing_is_no_proof(name: str, learned: str) -> None:
    make, x, why = BLIND[name]
    refused(make(), x, why, learned=learned)


@pytest.mark.parametrize("learned", ["no", "scalar", "channel"])
def test_a_zero_branch_that_reads_its_factor_is_scaled(learned: Any) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.f(x.tanh())

    model = nn.Sequential(Block(), Block())
    remedies.zero_init_branches(model, X)
    account = remedies.scale_branches(model, X, alpha=0.5, learned=learned)
    assert torch.equal(model(X), X)
    nn.init.eye_(model[1].f.weight)
    torch.testing.assert_close(model(X), X + 0.5 * X.tanh())
    assert all(p.requires_grad for p in account.parameters)
    assert not any(b.requires_grad for b in model.buffers())


# ---------------------------------------------------------------------- one module, several ends
class Loop(nn.Module):
    """Branches that are operations of the model's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.ParameterList(nn.Parameter(torch.eye(WIDTH)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for w in self.w:
            x = x + x.relu() @ w
        return x


class Operations(nn.Module):
    """Two branches from one module, which holds a weight for each."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.eye(WIDTH)) for _ in range(2))

        def forward(self, x: Tensor, first: bool) -> Tensor:
            return x.tanh() @ (self.a if first else self.b)

    def __init__(self) -> None:
        super().__init__()
        self.both = self.Both()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.both(x, True)
        return x + self.both(x, False)


@pytest.mark.parametrize("model", [Loop(), Operations()])
def test_a_module_in_which_several_branches_end_is_refused(model: nn.Module) -> None:
    refused(model, X, "branches end in (the model|both), and a factor scales them all")


def test_a_single_one_of_several_ends_is_refused_too() -> None:
    refused(Operations(), X, "2 branches end in both", sites="model/both/1")


def test_factors_leave_a_module_as_it_was_whatever_came_between() -> None:
    module = nn.Linear(2, 2)
    factors = [Factor("fc", module, "scalar", (2,)) for _ in range(2)]
    for factor in factors:
        factor.remove()
    assert (list(module.state_dict()), len(module._forward_hooks)) == (["weight", "bias"], 0)


# ---------------------------------------------------------------------- further than the branch
class Read(nn.Module):
    """What a branch ends in is read again, past the sum."""

    def __init__(self, again: Callable[[Read, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.i, self.f, self.g = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.again = again

    def forward(self, x: Tensor) -> Any:
        x = self.i(x)
        h = self.f(x.tanh())
        x = x + h
        return self.again(self, x, h)


@pytest.mark.parametrize(
    "again",
    [
        lambda m, x, h: x + m.g(torch.tanh(h)),
        lambda m, x, h: {"y": x, "penalty": [h.square().mean()]},
        lambda m, x, h: m.g(torch.cat([x, h])),
    ],
)
def test_a_factor_that_reaches_further_than_its_branch_is_refused(again: Any) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="output of f also changes what the model returns"):
        remedies.scale_branches(Read(again), X, alpha=0.5)


def test_of_several_only_the_factor_that_reaches_further_is_named() -> None:
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            kept = x
            for k, f in enumerate(self.f):
                h = f(x.tanh())
                x, kept = x + h, h if k == 1 else kept
            return x * kept.sigmoid()

    model = Net()
    with pytest.raises(ValueError, match=r"nothing: model/f/2: a factor on the output of f\.1"):
        remedies.scale_branches(model, X, alpha=0.5)
    others = ["model/f/1", "model/f/3"]
    assert remedies.scale_branches(model, X, alpha=0.5, sites=others).sites == tuple(others)
