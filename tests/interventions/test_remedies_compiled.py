"""Remedies on compiled models: whatever is compiled, they do what they do to the plain one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from skipscope import preflight, remedies
from skipscope.remedies import Account

WIDTH = 6
X = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(3))
REMEDIES: dict[str, Callable[[nn.Module], Account]] = {
    "zero": lambda model: remedies.zero_init_branches(model, X),
    "depth": lambda model: remedies.depth_scaled_init(model, X),
    "scale": lambda model: remedies.scale_branches(model, X, alpha=0.25),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(torch.tanh(self.a(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.stem(x))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def whole() -> nn.Module:
    return torch.compile(net(), backend="eager")


def in_place() -> nn.Module:
    model = net()
    model.compile(backend="eager")
    return model


def submodule() -> nn.Module:
    model = net()
    model.blocks = torch.compile(model.blocks, backend="eager")
    return model


def last_module() -> nn.Module:
    model = net()
    for block in model.blocks:
        block.b = torch.compile(block.b, backend="eager")
    return model


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("make", [whole, in_place, submodule, last_module])
@pytest.mark.parametrize("name", REMEDIES)
def test_a_compiled_model_becomes_what_the_plain_one_does(
    name: str, make: Callable[[], nn.Module], ran: bool
) -> None:
    plain, model = net(), make()
    if ran:  # code from before the remedy must not go on
        with torch.no_grad():
            model(X)
    told = str(REMEDIES[name](plain))
    assert str(REMEDIES[name](model)) == told
    with torch.no_grad():
        torch.testing.assert_close(model(X), plain(X))
        torch.testing.assert_close(model(X), plain(X))


def test_what_a_compiled_model_lacks_is_refused_as_of_the_plain_one() -> None:
    model = net()
    for block in model.blocks:
        nn.init.zeros_(block.a.weight)
        nn.init.zeros_(block.a.bias)
        block.b.bias = None  # which would wake alone
    told = []
    for one in (model, torch.compile(model, backend="eager")):
        with pytest.raises(ValueError, match="another factor of it is 0") as error:
            remedies.zero_init_branches(one, X)
        told.append(str(error.value))
        assert preflight(one, X).zero == ("blocks.0", "blocks.1")
    assert told[0] == told[1]
