"""Whose sums are followed: hooks of the user's, other models inside, what Ctrl-C left, samples."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skipscope import intervene
from tests.interventions import nets

WIDTH = nets.WIDTH


class Branch(nn.Module):
    """Without a shortcut of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def rows(count: int = 4) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(3))


def hooked(net: nn.Module, at: str, before: bool, first: bool, add: nets.Add) -> Any:
    """Adds a shortcut around a module, or a block before it, by a hook of the user's."""
    module, weight = net.get_submodule(at), nn.Parameter(torch.randn(WIDTH, WIDTH))
    if before:
        module.register_parameter("w", weight)
        return module.register_forward_pre_hook(
            lambda m, args: add(args[0], F.linear(args[0], m.w)), prepend=first
        )
    return module.register_forward_hook(lambda _, args, output: add(args[0], output), prepend=first)


@pytest.mark.parametrize("late", [False, True], ids=["earlier", "while open"])
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("at", ["", "1", "1.first"], ids=["root", "block", "layer"])
def test_a_hook_that_adds_a_shortcut_is_acted_on(
    at: str, before: bool, first: bool, late: bool
) -> None:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), Branch())

    hand, net, x = made(), made(), rows()
    torch.manual_seed(1)
    hooked(hand, at, before, first, nets.plain)
    expected = hand(x)
    expected.sum().backward()
    torch.manual_seed(1)
    if not late:
        hooked(net, at, before, first, nets.residual)
    with intervene(net, shortcut=False) as found:
        if late:
            hooked(net, at, before, first, nets.residual)
        if late and before and first and at == "":  # it runs before the intervention can know
            with pytest.raises(ValueError, match="register it before the intervention"):
                net(x)
            return
        for _ in range(2):
            got = net(x)
            assert torch.equal(got, expected)
        got.sum().backward()
    assert len(found.sites) == 1
    for ours, theirs in zip(net.parameters(), hand.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert not torch._C._len_torch_function_stack()


def test_a_class_whose_forward_is_wrapped_is_acted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What wraps a forward passes for PyTorch's by name, also where a layer is called alone."""
    own = nn.Linear.forward

    @functools.wraps(own)
    def adding(self: nn.Linear, x: Tensor) -> Tensor:
        return x + own(self, x)

    net, x = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]), rows()
    expected = net[1](net[0](x))
    monkeypatch.setattr(nn.Linear, "forward", adding)
    with intervene(net, shortcut=False):
        assert torch.equal(net[1](net[0](x.requires_grad_())), expected)


def test_a_layer_with_a_hook_is_acted_on_where_it_is_called_alone() -> None:
    net, x = nn.ModuleList([nets.Block("add"), nn.Linear(WIDTH, WIDTH)]), rows()
    h = net[0].branch(x)
    expected = net[1](h)
    net[1].register_forward_hook(lambda _, args, output: args[0] + output)
    with intervene(net, shortcut=False):
        assert torch.equal(net[1](net[0](x)), expected)


class Holding(nn.Module):
    """A block whose branch ends in another model, that is no part of it; both share a line."""

    def __init__(self, other: nn.Module | None) -> None:
        super().__init__()
        self.branch, self.held = Branch(), [other]

    def forward(self, x: Tensor) -> Tensor:
        f = self.branch(x)
        f = f if self.held[0] is None else self.held[0](f)
        return x + f


@pytest.mark.parametrize("reverse", [False, True])
def test_interventions_on_a_model_and_on_one_that_it_calls(reverse: bool) -> None:
    torch.manual_seed(0)
    inner = Holding(None)
    outer = nn.Sequential(nn.Linear(WIDTH, WIDTH), Holding(inner))
    x = rows()
    expected = inner.branch(outer[1].branch(outer[0](x)))
    one, other = (inner, outer) if reverse else (outer, inner)
    with intervene(one, shortcut=False), intervene(other, shortcut=False):
        for _ in range(2):
            assert torch.equal(outer(x), expected)


class Stopping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return x


@pytest.mark.parametrize("error", [RuntimeError(), KeyboardInterrupt()], ids=repr)
def test_a_forward_that_was_broken_off_leaves_the_next_one_alone(error: BaseException) -> None:
    torch.manual_seed(0)
    stopping = Stopping()
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nets.Block("add"), stopping, nets.Block("add"))
    x = rows()
    expected = net[3].branch(net[1].branch(net[0](x)))
    with intervene(net, shortcut=False):
        for stopping.error in (None, error, None, error, None):
            if stopping.error is None:
                assert torch.equal(net(x), expected)
                assert not torch._C._len_torch_function_stack()
            else:
                with pytest.raises(type(error)):
                    net(x)


class Again(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = Branch()

    def forward(self, x: Tensor, more: int = 2) -> Tensor:
        x = x + self.branch(x)
        return self(x, more - 1) if more else x


def test_a_model_that_calls_itself_was_not_broken_off() -> None:
    net, x = Again(), rows().requires_grad_()
    with intervene(net, shortcut=False) as found:
        assert torch.equal(net(x), net.branch(net.branch(net.branch(x))))
    assert len(found.sites) == 3


def one_sample(net: nn.Module, x: Tensor) -> Tensor:
    return net(x[0])


def mapped(net: nn.Module, x: Tensor) -> Tensor:
    return torch.func.vmap(net)(x)


@pytest.mark.parametrize("run", [one_sample, mapped])
@pytest.mark.parametrize("training", [True, False])
def test_a_sum_without_its_batch_is_refused(
    run: Callable[[nn.Module, Tensor], Tensor], training: bool
) -> None:
    """It would stay the model's own, and nobody would know."""
    net, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nets.Block("add")), rows()
    told = "inside a transform" if run is mapped and not training else "give the model a batch"
    with intervene(net, shortcut=False):
        net(x)
        with pytest.raises(ValueError, match=told):
            run(net.train(training), x)


def test_transforms_that_keep_the_batch_are_followed() -> None:
    net, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nets.Block("add")), rows()
    expected = net[1].branch(net[0](x))

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(net, weights, (x,)).sum()

    weights = {name: p.detach() for name, p in net.named_parameters()}
    with intervene(net, shortcut=False):
        with pytest.raises(ValueError, match="run the model once without it"):
            torch.func.grad(loss)(weights)
        net(x)
        got = torch.func.grad(loss)(weights)
        assert torch.equal(torch.func.vmap(net)(x[None])[0], expected)
    expected.sum().backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad)


class Gained(nn.Module):
    """A sum of small tensors, on the line of a site."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = Branch()
        self.one, self.more = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.one + self.more) * self.branch(x)


def test_parameters_may_be_added_beside_a_site() -> None:
    net, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), Gained()), rows()
    with intervene(net, shortcut=False):
        for training in (True, False, True):
            net.train(training)
            assert torch.equal(net(x), 2 * net[1].branch(net[0](x)))


class Meeting(nn.Module):
    """Runs what it is given in a thread of its own, in the middle of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.work: Callable[[], Tensor] | None = None
        self.got: Tensor | Exception | None = None

    def _run(self, work: Callable[[], Tensor]) -> None:
        try:
            self.got = work()
        except Exception as error:
            self.got = error

    def forward(self, x: Tensor) -> Tensor:
        work, self.work = self.work, None
        if work is not None:
            thread = threading.Thread(target=self._run, args=(work,))
            thread.start()
            thread.join()
        return x


def test_a_loop_beside_small_sums_may_grow_longer() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.block = nn.Linear(WIDTH, WIDTH), Gained()

        def forward(self, x: Tensor, times: int) -> Tensor:
            x = self.stem(x)
            for _ in range(times):
                x = self.block(x)
            return x

    net, x = Loop(), rows()
    with intervene(net, shortcut=False):
        for times in (1, 3, 2):
            expected = net.stem(x)
            for _ in range(times):
                expected = 2 * net.block.branch(expected)
            assert torch.equal(net(x, times), expected)


def test_models_in_two_threads_are_followed_each_by_itself() -> None:
    meeting, x = Meeting(), rows()
    one = nn.Sequential(nn.Linear(WIDTH, WIDTH), nets.Block("add"), meeting, nets.Block("add"))
    other = nn.Sequential(nn.Linear(WIDTH, WIDTH), nets.Block("add"))
    expected = one[3].branch(one[1].branch(one[0](x))), other[1].branch(other[0](x))
    with intervene(one, shortcut=False), intervene(other, shortcut=False):
        for _ in range(2):  # first in a rehearsal
            meeting.work = lambda: other(x)
            assert torch.equal(one(x), expected[0])
            assert isinstance(meeting.got, Tensor)
            assert torch.equal(meeting.got, expected[1])
        meeting.work = lambda: one(x)
        assert torch.equal(one(x), expected[0])
        assert "two threads" in str(meeting.got)


def test_a_replica_of_data_parallel_is_refused() -> None:
    net, x = nets.Block("add"), rows()
    with intervene(net, branch_scale=0.5):
        net(x.requires_grad_())
        replica = net._replicate_for_data_parallel()
        with pytest.raises(ValueError, match="DataParallel"):
            replica(x)
