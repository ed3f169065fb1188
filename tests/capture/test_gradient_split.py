"""Which backward counts, which forward counts, and why a number is absent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from skipscope.history import History
from skipscope.monitor import Monitor
from skipscope.records import HAVE_FORWARD, HAVE_GRAD, HAVE_INPUT_GRAD, HAVE_SPLIT, REASONS
from tests.capture.nets import D, Residual, Stack, step_residual, walk_stack
from tests.capture.odd_nets import Bare, OnView, frozen_prefix
from tests.capture.reference import BACKWARD, BAR, FORWARD, Numbers, Walk
from tests.capture.steps import error, expected_numbers

MIXED = torch.linspace(-1, 1, 4 * 6 * 5).view(4, 6, 5)


def net(depth: int = 2) -> Stack:
    return Stack(lambda k: Residual(torch.add), depth)


def data() -> Tensor:
    return torch.randn(4, 6, D)


def walked(model: nn.Module, x: Tensor, taps: Walk | None = None) -> tuple[Tensor, Walk]:
    """Output and taps of the same weights, on a graph of its own."""
    taps = Walk() if taps is None else taps
    return walk_stack(step_residual)(copy.deepcopy(model), taps, x), taps


def agrees(history: History, expected: list[Numbers], names: list[str] | None = None) -> bool:
    for name in names or [*FORWARD, *BACKWARD]:
        table = history.table(name)
        for at, numbers in enumerate(expected):
            wanted = numbers[name]
            if wanted is None:
                assert table.missing[-1, at], name
            else:
                off = error(name, table.values[-1, at], wanted, numbers)
                assert off <= BAR, (name, table.columns[at], table.values[-1, at], wanted)
    return True


@contextmanager
def captured(model: nn.Module, **options: object) -> Iterator[Monitor]:
    monitor = Monitor(model, preset="debug", on_error="raise", **options)
    with monitor.step():
        yield monitor


def reasons(history: History) -> list[str]:
    return [REASONS[code] for code in history.why[-1]]


# ---------------------------------------------------------------------- which forward
def test_of_two_micro_batches_the_last_counts() -> None:
    model, first, last = net(), data(), data()
    out, taps = walked(model, last)
    expected = expected_numbers(taps, (out * MIXED).sum())
    with captured(model) as monitor:
        for x in (first, last):
            (model(x) * MIXED).sum().backward()
    assert agrees(monitor.history, expected)


def test_of_two_forwards_under_one_loss_the_last_counts() -> None:
    model, first, last = net(), data(), data()
    other = copy.deepcopy(model)
    taps = Walk()
    walk = walk_stack(step_residual)
    loss = (walk(other, Walk(), first) * walk(other, taps, last)).sum()
    with captured(model) as monitor:
        (model(first) * model(last)).sum().backward()
    assert agrees(monitor.history, expected_numbers(taps, loss))
    assert len(monitor.history.sites.sites) == 2


@pytest.mark.parametrize("when", ["before the backward", "after it"])
@pytest.mark.parametrize("trained", [True, False])
def test_of_two_forwards_that_a_backward_reached_counts(when: str, trained: bool) -> None:
    """The other's result is detached, as a GAN's critic and a stop-gradient want it."""
    model, first, last = net(), data(), data()
    out, taps = walked(model, first)
    expected = expected_numbers(taps, (out * MIXED).sum())

    def other() -> None:
        model.requires_grad_(trained)
        model(last).detach()
        model.requires_grad_(True)

    with captured(model) as monitor:
        loss = (model(first) * MIXED).sum()
        if when == "before the backward":
            other()
        loss.backward()
        if when == "after it":
            other()
    assert agrees(monitor.history, expected)
    assert reasons(monitor.history) == ["", ""]


def test_a_forward_without_gradient_does_not_count() -> None:
    model, x = net(), data()
    out, taps = walked(model, x)
    with captured(model) as monitor:
        loss = (model(x) * MIXED).sum()
        with torch.no_grad():
            model(data())
        loss.backward()
    assert agrees(monitor.history, expected_numbers(taps, (out * MIXED).sum()))


# ---------------------------------------------------------------------- which backward
def test_of_several_backwards_the_last_counts() -> None:
    model, x = net(), data()
    out, taps = walked(model, x)
    with captured(model) as monitor:
        own = model(x)
        own.square().sum().backward(retain_graph=True)
        (own * MIXED).sum().backward()
    assert agrees(monitor.history, expected_numbers(taps, (out * MIXED).sum()))


def test_autograd_grad_counts_as_a_backward() -> None:
    model, x = net(), data()
    out, taps = walked(model, x)
    with captured(model) as monitor:
        torch.autograd.grad((model(x) * MIXED).sum(), list(model.parameters()))
    assert agrees(monitor.history, expected_numbers(taps, (out * MIXED).sum()))


def test_create_graph_is_ignored() -> None:
    model, x = net(), data()
    out, taps = walked(model, x)
    with captured(model) as monitor:
        own = model(x)
        torch.autograd.grad(own.square().sum(), list(model.parameters()), create_graph=True)
        (own * MIXED).sum().backward()
    assert agrees(monitor.history, expected_numbers(taps, (out * MIXED).sum()))


def test_gradient_penalty() -> None:
    """The training backward runs through the gradient's graph as well."""

    def penalised(out: Tensor, x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(out.tanh().sum(), x, create_graph=True)
        return (out * MIXED).sum() + gradient.square().sum()

    model, x = net(), data().requires_grad_()
    mine = x.detach().clone().requires_grad_()
    out, taps = walked(model, mine)
    expected = expected_numbers(taps, penalised(out, mine))
    with captured(model) as monitor:
        penalised(model(x), x).backward()
    assert agrees(monitor.history, expected, ["grad_sum_norm", "grad_input_norm", "branch_ratio"])


def test_only_create_graph() -> None:
    model, x = net(), data()
    with captured(model) as monitor:
        torch.autograd.grad(model(x).sum(), list(model.parameters()), create_graph=True)
    assert set(reasons(monitor.history)) == {"only a backward with create_graph reached it"}
    assert (monitor.history.have == HAVE_FORWARD | 2).all()


def test_scaled_loss() -> None:
    model, x = net(), data()
    out, taps = walked(model, x)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with captured(model, scaler=scaler) as monitor:
        scaler.scale((model(x) * MIXED).sum()).backward()
    loss = (out * MIXED).sum()
    assert agrees(monitor.history, expected_numbers(taps, loss))
    monitor.flush()
    assert monitor.history.table("loss").values[-1, 0] == pytest.approx(loss.item(), rel=1e-6)
    assert monitor.history.table("loss_scale").values[-1, 0] == 1024


def test_backward_on_some_outputs_only() -> None:
    """The last block is not reached."""
    model, x = net(3), data()
    seen: list[Tensor] = []
    model.blocks[1].register_forward_hook(lambda module, args, out: seen.append(out))
    with captured(model) as monitor:
        model(x)
        seen.pop().square().sum().backward()
    assert reasons(monitor.history) == ["", "", "no backward reached it"]


# ---------------------------------------------------------------------- why not
def test_no_backward() -> None:
    model = net()
    with captured(model) as monitor:
        model(data())
    assert set(reasons(monitor.history)) == {"no backward reached it"}
    assert not monitor.history.table("branch_ratio").missing.any()


def test_raw_input_and_frozen_blocks() -> None:
    model = Bare()
    with captured(model) as monitor:
        model(data()).sum().backward()
    assert reasons(monitor.history) == [
        "x has no gradient: it is a raw input or behind frozen layers",
        "",
    ]
    assert monitor.history.have[-1, 0] & HAVE_GRAD
    model = frozen_prefix()
    with captured(model) as monitor:
        model(data()).sum().backward()
    told = reasons(monitor.history)
    assert told[:2] == ["the whole block is frozen"] * 2
    assert told[2] == "x has no gradient: it is a raw input or behind frozen layers"
    assert told[3] == ""
    assert not monitor.history.table("branch_ratio").missing.any()


def test_block_that_is_not_called() -> None:
    class Skipping(Stack):
        skip = False

        def forward(self, x: Tensor) -> Tensor:
            x = self.blocks[0](self.stem(x))
            return self.head(x if self.skip else self.blocks[1](x))

    model = Skipping(lambda k: Residual(torch.add), 2)
    monitor = Monitor(model, preset="debug", on_error="raise")
    for skip in (False, True, False):
        model.skip = skip
        with monitor.step():
            (model(data()) * MIXED).sum().backward()
    history = monitor.history
    assert [REASONS[code] for code in history.why[:, 1]] == ["", "not called in this step", ""]
    assert history.table("branch_ratio").missing[:, 1].tolist() == [False, True, False]
    assert not history.have[1, 1]


def test_addition_through_a_view_of_x() -> None:
    model = Stack(lambda k: OnView(), 2)
    x = data()
    with captured(model) as monitor:
        (model(x) * MIXED).sum().backward()
    assert set(reasons(monitor.history)) == {"x was overwritten in place through a view"}
    assert not monitor.history.table("branch_ratio").missing.any()
    assert monitor.history.table("grad_sum_norm").missing.all()


def test_reentrant_checkpoint_is_listed() -> None:
    class Net(Stack):
        def forward(self, x: Tensor) -> Tensor:
            x = self.blocks[0](self.stem(x))
            return self.head(checkpoint(self.blocks[1], x, use_reentrant=True))

    model = Net(lambda k: Residual(torch.add), 2)
    with captured(model) as monitor:
        (model(data()) * MIXED).sum().backward()
    history = monitor.history
    assert [site.module for site in history.sites.sites] == ["blocks.0"]
    assert [(u.what, u.where) for u in history.sites.unseen] == [("no graph", "blocks.1")]
    assert history.have[-1, 0] & HAVE_SPLIT


# ---------------------------------------------------------------------- the graph stays as it is
@pytest.mark.parametrize("clear", [lambda p: None, lambda p: p.grad.zero_()], ids=["first", "more"])
def test_gradients_are_bit_identical(clear: Callable[[nn.Parameter], None]) -> None:
    plain = net()
    watched = copy.deepcopy(plain)
    monitor = Monitor(watched, preset="debug", on_error="raise")
    for _ in range(2):
        x = data()
        for model in (plain, watched):
            for p in model.parameters():
                if p.grad is not None:
                    clear(p)
        (plain(x) * MIXED).sum().backward()
        with monitor.step():
            (watched(x) * MIXED).sum().backward()
    pairs = zip(plain.parameters(), watched.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


def test_bits_of_a_complete_site() -> None:
    model = net()
    with captured(model) as monitor:
        (model(data()) * MIXED).sum().backward()
    complete = HAVE_FORWARD | 2 | HAVE_GRAD | HAVE_INPUT_GRAD | HAVE_SPLIT
    assert (monitor.history.have == complete).all()
    assert set(reasons(monitor.history)) == {""}
