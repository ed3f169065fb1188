"""Steps that do more than a forward and a backward, and streams that are no plain tensors."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipscope.find import find_residuals
from skipscope.history import History
from skipscope.monitor import Monitor
from skipscope.records import REASONS
from tests.capture.reference import norm

D = 6
Step = Callable[[nn.Module], Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Parallel(Block):
    def forward(self, x: Tensor) -> Tensor:
        return (x + torch.relu(self.up(x))) + torch.relu(self.down(x))


class Net(nn.Module):
    def __init__(self, block: type[nn.Module] = Block) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(D, D), nn.Sequential(block(), block())

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.stem(x))


def history_of(net: nn.Module, step: Step, steps: int = 1, **options: Any) -> History:
    """Steps under the monitor; they leave the same weights as without it."""
    plain = copy.deepcopy(net)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (net, plain)]
    monitor = Monitor(net, optimizers[0], preset="debug", on_error="raise", report=[], **options)
    for number in range(steps):
        torch.manual_seed(number)
        with monitor.step():
            step(net)
            optimizers[0].step()
            optimizers[0].zero_grad()
        torch.manual_seed(number)
        step(plain)
        optimizers[1].step()
        optimizers[1].zero_grad()
    for a, b in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    monitor.report("json")
    return monitor.history


def reasons(history: History) -> list[str]:
    return [REASONS[code] for code in history.why[-1]]


def whats(history: History) -> list[tuple[str, str]]:
    return [(unseen.what, unseen.where) for unseen in history.sites.unseen]


def rows() -> Tensor:
    return torch.randn(4, 3, D)


def plain_step(net: nn.Module) -> None:
    net(rows()).square().sum().backward()


# ---------------------------------------------------------------------- streams of another kind
def jagged(net: nn.Module) -> None:
    parts = [torch.randn(3, D), torch.randn(5, D)]
    net(torch.nested.nested_tensor(parts, layout=torch.jagged)).values().square().sum().backward()


def strided(net: nn.Module) -> None:
    x = torch.nested.nested_tensor([torch.randn(3, D), torch.randn(5, D)])
    net(x).to_padded_tensor(0.0).square().sum().backward()


NOT_REDUCED = "operands of this type cannot be reduced"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("block", [Block, Parallel])
@pytest.mark.parametrize("step", [jagged, strided])
def test_nested_tensors_are_found_and_said_not_to_be_measured(
    step: Step, block: type[nn.Module]
) -> None:
    history = history_of(Net(block), step, 2)
    assert [site.name for site in history.sites.sites] == ["blocks.0", "blocks.1"]
    assert {site.shape for site in history.sites.sites} in ({(2, -1, D)}, {(2, -1, -1)})
    assert reasons(history) == [NOT_REDUCED] * 2
    assert history.table("branch_ratio").missing.all()
    assert history.table("grad_sum_norm").missing.all()


def test_nested_tensors_in_a_module_that_is_watched_whole() -> None:
    history = history_of(Net(), jagged, sites=["stem"])
    assert [(site.name, site.watched) for site in history.sites.sites] == [("stem", "module")]
    assert reasons(history) == [NOT_REDUCED]


def test_an_empty_batch_says_why_it_has_no_numbers() -> None:
    history = history_of(Net(), lambda net: net(torch.randn(0, 3, D)).sum().backward())
    assert reasons(history) == [NOT_REDUCED] * 2
    assert history.table("branch_ratio").missing.all()


def test_a_complex_stream_is_left_alone() -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(D, D, dtype=torch.complex64)
            self.inner = nn.Linear(D, D, dtype=torch.complex64)

        def forward(self, x: Tensor) -> Tensor:
            z = self.stem(x.to(torch.complex64))
            return torch.add(z, torch.tanh(self.inner(z)), alpha=2j)

    history = history_of(Complex(), lambda net: net(rows()).abs().sum().backward(), 2)
    assert history.sites.sites == ()  # a documented limit


def test_lists_of_additions_with_numbers() -> None:
    class Listed(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.up(x)
            (one,) = torch._foreach_add([x], [1.0])
            (two,) = torch._foreach_add([x], [torch.relu(self.down(one))])
            return two

    history = history_of(Listed(), plain_step)
    assert whats(history) == [("fused", "")]  # of the two lists that of tensors alone


# ---------------------------------------------------------------------- transforms of torch.func
def per_sample(net: nn.Module) -> None:
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(net, weights, (x,)).square().sum()

    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, rows())


def vmapped(net: nn.Module) -> None:
    torch.func.vmap(net)(rows()).square().sum().backward()


def forward_mode(net: nn.Module) -> None:
    torch.func.jvp(net, (rows(),), (rows(),))[1].sum().backward()


@pytest.mark.parametrize("block", [Block, Parallel])
@pytest.mark.parametrize("step", [per_sample, vmapped, forward_mode])
def test_inside_a_transform_nothing_is_measured(step: Step, block: type[nn.Module]) -> None:
    history = history_of(Net(block), step, 2)
    assert history.sites.sites == ()
    assert ("transform", "blocks.0") in whats(history)


def test_a_transform_does_not_replace_the_training_forward() -> None:
    net = Net()
    x = rows()
    s = net.stem(x).detach().double()
    f = net.blocks[0](net.stem(x)).detach().double() - s

    def both(net: nn.Module) -> None:
        net(x).square().sum().backward()
        per_sample(net)

    history = history_of(net, both)
    assert history.table("branch_ratio").values[-1, 0] == pytest.approx(norm(f) / norm(s), rel=1e-4)
    assert reasons(history) == ["", ""]
    assert "transform" not in [what for what, _ in whats(history)]


def batched(net: nn.Module) -> Tensor:
    y = net(rows())
    many = torch.randn(5, 4, D)
    torch.autograd.grad(
        y.sum(1), list(net.parameters()), many, is_grads_batched=True, retain_graph=True
    )
    return y


def test_many_gradients_at_once_are_no_training_gradient() -> None:
    history = history_of(Net(), batched)
    assert reasons(history) == ["only a vectorized backward reached it"] * 2
    assert history.table("grad_sum_norm").missing.all()
    assert not history.table("branch_ratio").missing.any()
    net = Net()
    torch.manual_seed(0)
    y = copy.deepcopy(net)(rows())
    after = history_of(net, lambda net: batched(net).square().sum().backward())
    assert reasons(after) == ["", ""]
    wanted = norm(2 * y)  # of a sum of squares
    assert after.table("grad_sum_norm").values[-1, 1] == pytest.approx(wanted, rel=1e-4)


def test_a_vectorized_jacobian_beside_the_training() -> None:
    def step(net: nn.Module) -> None:
        torch.autograd.functional.jacobian(net, torch.randn(2, D), vectorize=True)
        plain_step(net)

    assert reasons(history_of(Net(), step)) == ["", ""]


# ---------------------------------------------------------------------- another model in the step
def test_a_discriminator_is_no_part_of_the_generator() -> None:
    other = Net()
    history = history_of(Net(), lambda net: other(net(rows())).square().sum().backward(), 2)
    assert [site.name for site in history.sites.sites] == ["blocks.0", "blocks.1"]
    assert len(history.sites.streams) == 1


def test_a_copy_that_teaches_is_no_part_of_the_model() -> None:
    def step(net: nn.Module) -> None:
        x = rows()
        target = copy.deepcopy(net)(x).detach()
        (net(x) - target).square().sum().backward()

    assert len(history_of(Net(), step, 2).sites.sites) == 2


def test_a_wrapper_that_adds_up_the_models_own_parts() -> None:
    class Wrapper(nn.Module):
        def __init__(self, net: Net) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            x = self.net.stem(x)
            return x + torch.relu(self.net.blocks[0].up(x))

    history = history_of(Net(), lambda net: Wrapper(net)(rows()).sum().backward())
    assert len(history.sites.sites) == 1


# ---------------------------------------------------------------------- order of a stream
class Dropping(Net):
    """Runs the blocks that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(3)])
        self.run = [0, 1, 2]

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number in self.run:
            x = self.blocks[number](x)
        return x


@pytest.mark.parametrize(
    "runs",
    [
        [[0, 2], [0, 1]],  # what follows on 0 is a matter of the numbers in names
        [[0, 1], [0, 2], [1, 2]],
        [[1], [0], [0, 1], [2], [1, 2]],  # streams of their own that prove one
        [[2], [1], [0], [0, 1, 2]],
    ],
    ids=str,
)
def test_depth_is_right_whatever_layer_drop_shows_first(runs: list[list[int]]) -> None:
    net, order = Dropping(), iter(runs)
    monitor = Monitor(net, preset="debug", on_error="raise", report=[])
    for run in order:
        net.run = run
        with monitor.step():
            plain_step(net)
    sites = sorted(monitor.history.sites.sites, key=lambda site: site.depth)
    assert [site.name for site in sites] == ["blocks.0", "blocks.1", "blocks.2"]
    assert [site.depth for site in sites] == [0, 1, 2]
    assert {site.stream for site in sites} == {0}
    assert len(monitor.history.sites.streams) == 1


# ---------------------------------------------------------------------- errors of the interceptor
class Refusing(Tensor):
    """A tensor that does not tell what it is."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("is_floating_point", "dim"):
            raise LookupError("refused")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_that_refuses_to_be_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    net = Net()
    expected = copy.deepcopy(net)(torch.ones(2, D))
    monitor = Monitor(net, preset="debug", report=[])
    with caplog.at_level(logging.WARNING, "skipscope"), monitor.step():
        out = net(torch.ones(2, D).as_subclass(Refusing))
        out.sum().backward()
    assert torch.equal(out.as_subclass(Tensor), expected)
    assert all("an error of its own" in record.getMessage() for record in caplog.records)
    assert len(caplog.records) <= 1


def test_a_wrong_factor_is_the_models_error(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Block):
        def forward(self, x: Tensor) -> Tensor:
            return torch.add(x, torch.relu(self.up(x)), alpha=2j)

    net = Wrong()
    with pytest.raises(RuntimeError) as plain:
        net(rows())
    monitor = Monitor(net, preset="debug", report=[])
    with pytest.raises(RuntimeError) as watched, monitor.step():
        net(rows())
    assert str(watched.value) == str(plain.value)
    assert not caplog.records


# ---------------------------------------------------------------------- what the report makes of it
class Hiding(torch.autograd.Function):
    """A residual addition that Python never sees."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Tensor) -> Tensor:
        return torch.add(x, f)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient


def test_a_hidden_addition_is_a_blind_spot() -> None:
    class Hidden(Block):
        def forward(self, x: Tensor) -> Tensor:
            return Hiding.apply(x, self.down(torch.relu(self.up(x))))

    net = Net(Hidden)
    monitor = Monitor(net, preset="debug", on_error="raise", report=[])
    for _ in range(3):
        with monitor.step():
            plain_step(net)
    assert "RES901" in [finding.code for finding in monitor.diagnose().findings]
    watched = history_of(Net(Hidden), plain_step, sites=["Hidden"])
    assert [(site.name, site.watched) for site in watched.sites.sites] == [
        ("blocks.0", "module"),
        ("blocks.1", "module"),
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("place", "at"), [(0, 2), (1, 3)])
def test_the_first_place_that_is_not_finite_is_named(place: int, at: int, value: float) -> None:
    class Planted(Block):
        planted = False

        def forward(self, x: Tensor) -> Tensor:
            f = self.down(torch.relu(self.up(x)))
            return x + (f.masked_fill(torch.eye(D)[:3] > 0, value) if self.planted else f)

    net = Net(Planted)
    monitor = Monitor(net, preset="debug", on_error="raise", report=[])
    for step in range(5):
        net.blocks[place].planted = step >= at
        with monitor.step():
            plain_step(net)
    (finding,) = [f for f in monitor.diagnose().findings if f.code == "RES902"]
    assert finding.first_step == at
    assert finding.where[0].startswith(f"blocks.{place}")


def test_find_residuals_sees_weights_of_a_plain_list() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(D, D)
            self.parts = [Block()]
            self.scale = [nn.Parameter(torch.ones(D))]

        def forward(self, x: Tensor) -> Tensor:
            x = self.parts[0](self.stem(x))
            return self.scale[0] * x + torch.relu(self.parts[0].up(x))

    found = find_residuals(Listed(), rows())
    assert [site.kind for site in found.sites] == ["identity", "scaled"]
    assert found.unseen == ()


def test_raw_data_that_is_scaled_by_a_weight_is_a_shortcut() -> None:
    class Raw(Block):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(D))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x + self.down(torch.relu(self.up(x)))

    found = find_residuals(Raw(), rows())
    assert [site.kind for site in found.sites] == ["scaled"]
    assert found.unseen == ()
