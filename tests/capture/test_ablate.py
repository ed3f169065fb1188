"""Leaving branches out: the loss is that of a forward written without them, and no trace stays."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import skipscope
import skipscope.monitor
from skipscope import Monitor, ablate, find_residuals
from skipscope.ablation import Ablation
from tests.capture.attachments import attached, changes

D = 6


class Add(nn.Module):
    """One residual addition, in one of the ways it is written."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.fc, self.more = nn.Linear(D, D), nn.Linear(D, 1 if way == "broadcast" else D)

    def forward(self, x: Tensor) -> Tensor:
        return self.sum(x, 2 * self.fc(x).tanh(), self.more)

    def sum(self, x: Tensor, f: Tensor, more: Callable[[Tensor], Tensor]) -> Tensor:
        match self.way:
            case "plain":
                return x + f
            case "branch in place":
                f += x
                return f.relu_()
            case "shortcut in place":
                x = x.clone()
                x += f
                return x
            case "scaled":
                return torch.add(f, x, alpha=0.5)
            case "subtracted":
                return x - f
            case "projection":
                return more(x) + f
            case "parallel":
                return x + f + more(x)
            case "broadcast":
                return x + more(x)
        raise AssertionError(self.way)

    def without(self, x: Tensor) -> Tensor:
        """The block with F = 0."""
        match self.way:
            case "branch in place":
                return x.relu()
            case "scaled":
                return 0.5 * x
            case "projection":
                return self.more(x)
        return x


class Net(nn.Module):
    """Stem, blocks, head; its forward by hand leaves out the branches that are named."""

    def __init__(self, *ways: str) -> None:
        super().__init__()
        self.stem = nn.Linear(D, D)
        self.blocks = nn.ModuleList(map(Add, ways))
        self.head = nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def by_hand(self, x: Tensor, *off: int) -> Tensor:
        x = self.stem(x)
        for k, block in enumerate(self.blocks):
            x = block.without(x) if k in off else block(x)
        return self.head(x)


class Noisy(nn.Module):
    """Batch statistics, dropout, and draws from every global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.drop = nn.BatchNorm1d(D), nn.Linear(D, D), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        noise = random.random() + float(np.random.rand())  # noqa: NPY002
        return x + noise * self.drop(self.fc(self.norm(x)))


def loss_of(scores: Tensor) -> Tensor:
    return scores.square().mean()


@pytest.mark.parametrize(
    "way",
    [
        "plain",
        "branch in place",
        "shortcut in place",
        "scaled",
        "subtracted",
        "projection",
        "parallel",
        "broadcast",
    ],
)
def test_loss_is_that_of_a_forward_without_the_branch(way: str) -> None:
    net, x = Net("plain", way, way, "plain"), torch.randn(5, D)

    found = ablate(net, None, lambda: loss_of(net(x)), together=True)

    assert found.loss == loss_of(net(x)).item()
    assert [row.where for row in found.sites] == [(f"blocks.{k}",) for k in range(4)]
    for k, row in enumerate(found.sites):
        assert row.loss == loss_of(net.by_hand(x, k)).item()
        assert row.difference == row.loss - found.loss
    assert found.together is not None
    assert found.together.loss == loss_of(net.by_hand(x, 0, 1, 2, 3)).item()


def test_the_gradient_of_the_branch_is_gone_too() -> None:
    net, x = Net("plain", "plain"), torch.randn(5, D, requires_grad=True)

    def penalty(scores: Tensor) -> Tensor:
        return torch.autograd.grad(scores.sum(), x, create_graph=True)[0].square().sum()

    found = ablate(net, "blocks.0", lambda: penalty(net(x)))

    assert found.sites[0].loss == pytest.approx(penalty(net.by_hand(x, 0)).item(), rel=1e-6)
    assert x.grad is None


def test_a_branch_that_is_not_a_number_is_left_out_as_well() -> None:
    net, x = Net("plain", "plain"), torch.randn(5, D)
    nn.init.constant_(net.blocks[1].fc.weight, float("nan"))

    found = ablate(net, ["blocks.1"], lambda: loss_of(net(x)))

    assert np.isnan(found.loss)
    assert found.sites[0].loss == loss_of(net.by_hand(x, 1)).item()


def test_several_forwards_of_one_run_lose_the_same_branch() -> None:
    net, x = Net("plain", "plain"), torch.randn(2, 5, D)
    found = ablate(net, 0, lambda: loss_of(net(x[0])) + loss_of(net(x[1])))
    by_hand = loss_of(net.by_hand(x[0], 0)) + loss_of(net.by_hand(x[1], 0))
    assert found.sites[0].loss == by_hand.item()


def test_both_sites_of_a_transformer_layer() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    net, x = nn.Sequential(nn.Linear(8, 8), layer), torch.randn(2, 4, 8)
    found = ablate(net, "1", lambda: loss_of(net(x)), together=True)

    h = net[0](x)
    attended = layer.norm1(h + layer.self_attn(h, h, h, need_weights=False)[0])
    forward = lambda z: layer.linear2(layer.linear1(z).relu())  # noqa: E731
    expected = [
        loss_of(layer.norm2(layer.norm1(h) + forward(layer.norm1(h)))),
        loss_of(layer.norm2(attended)),
        loss_of(layer.norm2(layer.norm1(h))),
    ]
    losses = [row.loss for row in (*found.sites, found.together) if row is not None]
    assert losses == pytest.approx([one.item() for one in expected], rel=1e-6)


def test_every_run_starts_from_the_same_random_state_and_buffers() -> None:
    net, x = nn.Sequential(nn.Linear(D, D), Noisy(), Noisy()), torch.randn(5, D)
    states = torch.random.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002

    once = ablate(net, None, lambda: loss_of(net(x)))
    again = ablate(net, None, lambda: loss_of(net(x)))

    assert once == again
    assert torch.equal(states[0], torch.random.get_rng_state())
    assert states[1] == random.getstate()
    assert str(states[2]) == str(np.random.get_state())  # noqa: NPY002
    assert once.loss == loss_of(net(x)).item()  # and a training step would have drawn these


def train(steps: int, *, ablating: bool) -> list[Tensor]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(D, D), Noisy(), Noisy())
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x = torch.randn(5, D)
        loss_of(net(x)).backward()
        if ablating and step % 2:
            ablate(net, None, lambda x=x: loss_of(net(x)), together=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return [*net.state_dict().values(), *(p.grad for p in net.parameters())]


def test_training_goes_on_bit_by_bit_as_without() -> None:
    for one, other in zip(train(5, ablating=True), train(5, ablating=False), strict=True):
        assert torch.equal(one, other)


def test_nothing_is_attached_and_gradients_and_modes_stay() -> None:
    net, x = Net("plain", "branch in place"), torch.randn(5, D)
    net.blocks[0].eval()
    loss_of(net(x)).backward()
    gradients = [(p.grad, p.grad.clone()) for p in net.parameters() if p.grad is not None]
    before = attached(net)

    def closure() -> Tensor:
        net.train()
        net.zero_grad(set_to_none=False)
        loss = loss_of(net(x))
        loss.backward()
        return loss

    ablate(net, None, closure)

    assert changes(before, attached(net)) == {}
    assert [m.training for m in net.blocks] == [False, True]
    for parameter, (gradient, value) in zip(
        (p for p in net.parameters() if p.grad is not None), gradients, strict=True
    ):
        assert parameter.grad is gradient
        assert torch.equal(gradient, value)


def test_no_graph_stays_alive() -> None:
    net, x = Net("plain", "parallel"), torch.randn(5, D)
    losses: list[weakref.ref[Tensor]] = []

    def closure() -> Tensor:
        loss = loss_of(net(x))
        losses.append(weakref.ref(loss))
        return loss

    ablate(net, None, closure, together=True)
    gc.collect()
    assert [loss() for loss in losses] == [None] * 4


# ---------------------------------------------------------------------- which sites
def test_sites_by_name_path_and_index() -> None:
    net, x = Net("plain", "plain", "plain"), torch.randn(5, D)

    def asked(sites: str | int | list[str | int]) -> list[str]:
        found = ablate(net, sites, lambda: loss_of(net(x)))
        return [name for row in found.sites for name in row.where]

    assert asked("blocks.1") == asked(1) == ["blocks.1"]
    assert asked("blocks") == ["blocks.0", "blocks.1", "blocks.2"]
    assert asked([2, "blocks.2", "blocks.0"]) == ["blocks.2", "blocks.0"]


def test_names_can_be_those_of_another_map() -> None:
    net, x = Net("plain", "plain"), torch.randn(5, D)
    known = find_residuals(net, x)
    found = ablate(net, known.sites[1].index, lambda: loss_of(net(x)), known=known)
    assert found.sites[0].loss == loss_of(net.by_hand(x, 1)).item()


def test_the_table() -> None:
    net, x = Net("plain", "plain"), torch.randn(5, D)
    lines = str(ablate(net, None, lambda: loss_of(net(x)), together=True)).splitlines()
    assert [line.split()[0] for line in lines] == [
        "branch",
        "none",
        "blocks.0",
        "blocks.1",
        "these",
    ]
    assert float(lines[2].split()[1]) == pytest.approx(loss_of(net.by_hand(x, 0)).item(), rel=1e-5)


# ---------------------------------------------------------------------- errors
def test_an_error_of_the_closure_passes_through() -> None:
    net, x = Net("plain", "plain"), torch.randn(5, D)
    before = attached(net)

    def closure() -> Tensor:
        net(x)
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        ablate(net, None, closure)
    assert changes(before, attached(net)) == {}


def test_what_is_asked_wrongly_is_told() -> None:
    net, x = Net("plain", "plain"), torch.randn(5, D)

    def closure() -> Tensor:
        return loss_of(net(x))

    with pytest.raises(ValueError, match=r"'block.1' .*; did you mean .*blocks.1"):
        ablate(net, "block.1", closure)
    with pytest.raises(ValueError, match="index 7; there are 2"):
        ablate(net, 7, closure)
    with pytest.raises(TypeError, match=r"one number, got Tensor of shape \(5, 3\)"):
        ablate(net, None, lambda: net(x))
    with pytest.raises(TypeError, match=r"closure must be a function .* returns the loss, got 3"):
        ablate(net, None, 3)  # type: ignore[arg-type]
    for sites in (1.5, [1.5]):
        with pytest.raises(ValueError, match=r"sites are names, indices or module .* got 1\.5"):
            ablate(net, sites, closure)  # type: ignore[arg-type]
    for empty in ([], ()):
        with pytest.raises(
            ValueError, match=r"ablate: sites must name something, got .*: nothing would"
        ):
            ablate(net, empty, closure)
    with pytest.raises(TypeError, match="got NoneType"):
        ablate(net, None, lambda: None)
    with pytest.raises(TypeError, match=r"must be an nn.Module, got a function"):
        ablate(closure, None, closure)


def test_a_closure_that_shows_nothing_is_told_why() -> None:
    net, x = Net("plain", "plain"), torch.randn(5, D)

    @torch.no_grad()
    def blind() -> Tensor:
        return loss_of(net(x))

    with pytest.raises(ValueError, match="under no_grad"):
        ablate(net, None, blind)
    with pytest.raises(ValueError, match="none was called"):
        ablate(net, None, lambda: 1.0)


def test_a_closure_that_trains_is_told() -> None:
    net, x = Net("plain", "plain"), torch.randn(5, D)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def closure() -> Tensor:
        loss = loss_of(net(x))
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(ValueError, match=r"leave optimizer.step\(\) out"):
        ablate(net, None, closure)


# ---------------------------------------------------------------------- monitor and package
def test_method_of_the_monitor() -> None:
    net, x = Net("plain", "plain"), torch.randn(5, D)
    monitor = Monitor(net, torch.optim.SGD(net.parameters(), lr=0.1), report=[], on_error="raise")

    def closure() -> Tensor:
        return loss_of(net(x))

    before = monitor.ablate(closure)  # no step was taken yet
    with monitor.step():
        closure().backward()
        with pytest.raises(RuntimeError, match="between steps"):
            monitor.ablate(closure)
    found = monitor.ablate(closure, ["blocks.1"], together=True)

    assert isinstance(found, Ablation)
    assert found.sites == before.sites[1:]
    assert found.sites[0].loss == loss_of(net.by_hand(x, 1)).item()
    assert len(monitor.history.capture_steps) == 1


def test_public_names_are_functions_whatever_was_imported_before() -> None:
    assert skipscope.monitor.Monitor is Monitor
    assert callable(skipscope.ablate)
    assert callable(skipscope.preflight)
