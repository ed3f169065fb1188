"""What is scaled already is noticed, and what is offered instead of a remedy is accepted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipscope import remedies

WIDTH = 16
X = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(3))


class Block(nn.Module):
    def __init__(self, last: float = 0.02) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(self.a.weight, std=0.02)
        nn.init.normal_(self.b.weight, std=last)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(torch.tanh(self.a(x)))


def net(blocks: int = 9, last: float = 0.02) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block(last) for _ in range(blocks)))


# ---------------------------------------------------------------------- scaled already
@pytest.mark.parametrize("factor", [200.0, 0.001])
def test_one_branch_that_is_out_of_line_hides_no_scaled_start(factor: float) -> None:
    model = net(last=0.02 / 3)  # of 9 blocks: 1/sqrt(9)
    with torch.no_grad():
        model[4].b.weight *= factor
    with pytest.raises(ValueError, match=r"1, 2, 3 \.\.\. 9 \(8\): the last matrices start 0\.3"):
        remedies.depth_scaled_init(model, X)
    assert remedies.depth_scaled_init(model, X, sites="4").sites == ("4",)


def test_one_branch_that_is_out_of_line_makes_no_start_look_scaled() -> None:
    model = net()
    with torch.no_grad():
        model[4].b.weight /= 100
    assert len(remedies.depth_scaled_init(model, X).sites) == 9


@pytest.mark.parametrize("learned", ["no", "scalar", "channel"])
@pytest.mark.parametrize("twin", [lambda model: model, copy.deepcopy])
def test_a_factor_that_hangs_there_is_noticed_by_depth_scaling(learned: Any, twin: Any) -> None:
    model = net()
    remedies.scale_branches(model, X, alpha=1 / 3, learned=learned)
    model = twin(model)
    before = model(X)
    with pytest.raises(ValueError, match=r"multiplies it by a branch_scale of 0\.333; scaled="):
        remedies.depth_scaled_init(model, X)
    assert torch.equal(model(X), before)
    assert len(remedies.depth_scaled_init(model, X, scaled="allow").sites) == 9


def test_a_scaled_start_is_noticed_by_a_factor_that_makes_it_smaller() -> None:
    model = net()
    remedies.depth_scaled_init(model, X)
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match=r"depth_scaled_init has multiplied it by 0\.333 before"):
        remedies.scale_branches(model, X, alpha=1 / 3)
    assert list(model.state_dict()) == keys
    for alpha in (1.0, 0.0):  # changes nothing; starts at the identity
        assert remedies.scale_branches(copy.deepcopy(model), X, alpha=alpha).changes
    assert len(remedies.scale_branches(model, X, alpha=1 / 3, scaled="allow").sites) == 9


def test_a_factor_of_one_is_no_scaling() -> None:
    model = net()
    remedies.scale_branches(model, X, alpha=1.0)
    assert len(remedies.depth_scaled_init(model, X).sites) == 9


def test_leave_is_asked_for_in_two_words() -> None:
    with pytest.raises(ValueError, match='scale_branches: scaled is "refuse" or "allow", got True'):
        remedies.scale_branches(net(), X, alpha=0.5, scaled=True)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- two factors of 0
class Gated(nn.Module):
    """A gate behind the last matrix, or a norm before the first one."""

    def __init__(self, gate: Tensor) -> None:
        super().__init__()
        self.n, self.g = nn.LayerNorm(WIDTH), nn.Parameter(gate)
        self.a, self.b = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.g * self.b(torch.tanh(self.a(self.n(x))))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n, self.b = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        for parameter in (self.n.weight, self.b.weight, self.b.bias):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.n(x))


@pytest.mark.parametrize(
    ("block", "first", "second"),
    [
        (lambda: Gated(torch.zeros(WIDTH)), r"1\.g", r"1\.b\.weight"),
        (lambda: Gated(torch.zeros(())), r"1\.g", r"1\.b\.weight"),
        (Normed, r"1\.b\.weight", r"1\.n\.weight"),
    ],
)
def test_both_factors_of_zero_are_named(
    block: Callable[[], nn.Module], first: str, second: str
) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), block())
    with pytest.raises(
        ValueError,
        match=rf"1: {first} is 0 already and so is {second}, .* draw {second} again .* leave",
    ):
        remedies.zero_init_branches(model, X)


class Offset(nn.Module):
    """A norm whose weight is kept as its distance from 1, as Gemma does."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.zeros(WIDTH)), nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b((1 + self.w) * nn.functional.layer_norm(x, x.shape[-1:]))


def test_a_weight_of_zero_that_is_no_factor_is_not_named() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Offset())
    with pytest.raises(ValueError, match=r"1: 1\.b\.weight is 0 already\. sites="):
        remedies.zero_init_branches(model, X)


# ---------------------------------------------------------------------- reasons and offers
class Routed(nn.Module):
    """Each row goes through one of three experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        chosen, out = self.router(x).argmax(-1), torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            out[chosen == k] = expert(x[chosen == k])
        return x + out


def routed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Routed())


def tied() -> nn.Module:
    model = nn.Sequential(*net(1), nn.Linear(WIDTH, WIDTH))
    model[1].b = nn.Sequential(model[1].b, nn.ReLU())
    model[2].weight = model[1].b[0].weight
    return model


def raw(last: float = 1.0) -> nn.Module:
    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(last * torch.eye(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x + x.tanh() @ self.w

    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Raw(), Raw())


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("make", [routed, tied, raw, lambda: raw(0.0), lambda: net(2)])
def test_what_is_offered_instead_is_accepted(make: Callable[[], nn.Module], alpha: float) -> None:
    try:
        remedies.scale_branches(make(), X, alpha=alpha)
    except ValueError as error:
        told = str(error)
    else:
        return
    assert "stays 0" not in told
    if "depth_scaled_init(" in told:
        remedies.depth_scaled_init(make(), X, factor=alpha)
    if "zero_init_branches" in told:
        remedies.zero_init_branches(make(), X)


def test_what_would_be_accepted_is_offered() -> None:
    for alpha, other in ((0.5, r"depth_scaled_init\(..., factor=0.5\)"), (0.0, "zero_init_bran")):
        with pytest.raises(ValueError, match=other):
            remedies.scale_branches(raw(), X, alpha=alpha)


def test_a_branch_that_is_not_zero_is_not_said_to_stay_so() -> None:
    with pytest.raises(ValueError, match="changed nothing") as told:
        remedies.depth_scaled_init(routed(), X)
    assert "stays 0" not in str(told.value)
