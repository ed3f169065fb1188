"""Shortcuts left out and branches scaled: against the same net with its sums written by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from skipscope import Monitor, find_residuals, intervene
from tests.interventions import nets

ARMS = {
    "plain": ({"shortcut": False}, nets.plain),
    "scaled": ({"branch_scale": 0.3}, nets.scaled(0.3)),
}
NETS: dict[str, Callable[[], nets.Net]] = {
    **{style: (lambda style=style: nets.Net(nets.Block(style), nets.Block(style)))
       for style in nets.STYLES},
    "parallel": lambda: nets.Net(nets.Parallel(), nets.Parallel()),
    "nested": lambda: nets.Net(nets.Nested(), nets.Nested()),
    "drawn": lambda: nets.Net(*(nets.Drawn() for _ in range(4))),
}  # fmt: skip


def two(make: Callable[[], nets.Net]) -> tuple[nets.Net, nets.Net]:
    torch.manual_seed(0)
    net = make()
    return net, copy.deepcopy(net)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("name", NETS)
def test_a_training_equals_the_net_written_by_hand(name: str, arm: str) -> None:
    settings, hand = ARMS[arm]
    one, other = two(NETS[name])
    torch.manual_seed(1)
    expected = nets.trained(one, lambda x: one.by_hand(x, hand))
    draws = torch.rand(3)
    torch.manual_seed(1)
    with intervene(other, **settings) as intervention:
        got = nets.trained(other, other)
    assert torch.equal(torch.rand(3), draws)
    if arm == "plain":
        assert nets.equal(got, expected)
    else:  # 0.3 * (0.5 * f) and 0.5 * (0.3 * f) round differently
        assert all(
            torch.allclose(a, b, rtol=2e-5, atol=1e-6) for a, b in zip(got, expected, strict=True)
        )
        if name not in ("alpha", "parallel"):
            assert nets.equal(got, expected)
    assert len(intervention.sites) == len(one.blocks)
    x, _ = nets.batch(9)
    with torch.no_grad():  # and nothing of it is left
        assert torch.equal(other.eval()(x), other.by_hand(x, nets.residual))
    one_hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in other.modules()]
    assert not any(one_hooks)
    assert not torch._C._len_torch_function_stack()


def test_a_forward_without_gradient_is_changed_too() -> None:
    one, other = two(NETS["add"])
    x, _ = nets.batch()
    expected = one.by_hand(x, nets.plain)
    with intervene(other, shortcut=False):
        with torch.no_grad():
            first = other(x)
        with torch.inference_mode():
            second = other(x)
        third = other.eval()(x)
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)
    assert torch.equal(third, expected)


class TwoStages(nn.Module):
    """An identity block, then one with a projection and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, nets.WIDTH)
        self.one, self.two = nets.Block("add"), nets.Projecting()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(self.stem(x)))

    def by_hand(self, x: Tensor, *, keep: bool, scale: float = 1.0) -> Tensor:
        x = self.stem(x)
        x = scale * self.one.branch(x)
        f = scale * self.two.block.branch(self.two.norm(x))
        return self.two.projection(x) + f if keep else f


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("projections", ["keep", "cut"])
def test_projections_are_kept_or_cut(projections: str, scale: float) -> None:
    torch.manual_seed(0)
    net = TwoStages()
    other = copy.deepcopy(net)
    x, _ = nets.batch()
    expected = net.by_hand(x, keep=projections == "keep", scale=scale)
    with intervene(other, shortcut=False, projections=projections, branch_scale=scale) as found:
        got = other(x)
        got.sum().backward()
    assert torch.equal(got, expected)
    assert (other.two.projection.weight.grad is None) == (projections == "cut")
    # The rehearsal counted nothing: one batch went through the norm.
    assert other.two.norm.num_batches_tracked == 1
    assert torch.equal(other.two.norm.running_mean, net.two.norm.running_mean)
    kept = projections == "keep" and scale == 1.0
    assert [site.name for site in found.sites] == (["one"] if kept else ["one", "two"])
    assert [(left.site.name, "P(x) is kept" in left.reason) for left in found.left] == (
        [("two", True)] if kept else []
    )
    acted = projections == "keep" and scale != 1.0
    assert ("  two (projection, P(x) kept)" in str(found)) == acted


class Forms(nn.Module):
    """A branch that is smaller than the stream, and one of another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.fc = nn.Linear(4, 1), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.tanh(self.gate(x))
        y = x + self.fc(x).bfloat16()
        y.relu_()
        return y


def test_shape_and_dtype_are_those_of_the_sum() -> None:
    torch.manual_seed(0)
    net = Forms()
    x = torch.randn(2, 4)
    first = torch.tanh(net.gate(x)).expand(2, 4)
    expected = net.fc(first).bfloat16().float().relu()
    with intervene(net, shortcut=False) as found:
        got = net(x)
    assert len(found.sites) == 2
    assert got.dtype == torch.float32
    assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"branch_scale": -1.0}, "y = s - F"),
        ({"branch_scale": -0.5}, "y = s - 0.5 F"),
        ({"branch_scale": 0.5}, "y = s + 0.5 F"),
        ({"branch_scale": 0.0}, "y = s + 0 F"),
        ({"branch_scale": -1.0, "shortcut": False, "projections": "cut"}, "y = -F"),
        ({"branch_scale": -2.0, "shortcut": False, "projections": "cut"}, "y = -2 F"),
    ],
)
def test_a_sum_is_written_with_its_sign(settings: dict[str, Any], told: str) -> None:
    net, _ = two(NETS["add"])
    with intervene(net, **settings) as found:
        assert repr(found) == f"<Intervention {told} before any forward>"
        net(nets.batch()[0])
    assert str(found).startswith(f"{told} at 2 of 2 sites\n")
    assert repr(found) == f"<Intervention {told} at 2 of 2 sites>"


# ---------------------------------------------------------------------- names
def test_names_select_nested_sites_and_module_paths() -> None:
    net, _ = two(NETS["nested"])
    x, _ = nets.batch()
    with intervene(net, "blocks.0.inner", shortcut=False) as inner:
        net(x)
    assert [site.name for site in inner.sites] == ["blocks.0.inner"]
    with intervene(net, "blocks", shortcut=False) as outer:
        net(x)
    assert [site.name for site in outer.sites] == ["blocks.0", "blocks.1"]
    with intervene(net, shortcut=False) as default:
        assert str(default) == "intervention: no forward has run yet"
        got = net(x)
    assert [site.name for site in default.sites] == ["blocks.0", "blocks.1"]
    assert torch.equal(got, net.by_hand(x, nets.plain))
    text = str(default)
    assert text.startswith("y = F at 2 of 4 sites\n")
    assert "P(x)" not in text  # there is none
    assert "left blocks.1.inner: nested" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("block.0", r"'block.0' .*; did you mean .*blocks.0"),  # no such module: before any forward
        ("blocks.0/fc", r"no site is named 'blocks.0/fc' .*; did you mean .*blocks.0"),
        ("head", r"no site is named 'head'"),
    ],
)
def test_unknown_names_are_refused(name: str, message: str) -> None:
    net, _ = two(NETS["add"])
    with pytest.raises(ValueError, match=message), intervene(net, name):
        net(nets.batch()[0])
    assert not any(module._forward_hooks for module in net.modules())


def test_no_names_at_all_are_refused() -> None:
    net, _ = two(NETS["add"])
    with pytest.raises(
        ValueError, match=r"intervene: sites must name something, got \[\].* None for all"
    ):
        intervene(net, sites=[]).__enter__()


def test_a_name_that_never_ran_is_told_at_the_end() -> None:
    net, _ = two(NETS["add"])
    x, _ = nets.batch()
    with (
        pytest.raises(ValueError, match=r"no site is named 'blocks.1'"),
        intervene(net, "blocks.1", shortcut=False),
    ):
        net.blocks[0](net.stem(x))  # which may run later, in a call of its own


# ---------------------------------------------------------------------- with others
def test_a_monitor_sees_what_was_added() -> None:
    x, _ = nets.batch()
    found = {}
    for arm, (settings, _) in {"as it is": ({}, None), **ARMS}.items():
        net, _ = two(NETS["add"])
        monitor = Monitor(net, report=[], on_error="raise")
        with intervene(net, **settings), monitor.step():
            net(x).sum().backward()
        found[arm] = monitor.history
        assert not torch._C._len_torch_function_stack()
    whole = found["as it is"].table("branch_ratio").values[0, 0]
    assert found["scaled"].table("branch_ratio").values[0, 0] == pytest.approx(
        0.3 * whole, rel=1e-5
    )
    assert not found["plain"].sites.sites


class Checkpointing(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.net, self.how = nets.Net(nets.Block("add"), nets.Block("relu_")), how

    def forward(self, x: Tensor) -> Tensor:
        x = self.net.stem(x)
        for block in self.net.blocks:
            call = block.by_function if self.how == "function" else block
            x = checkpoint(call, x, use_reentrant=self.how == "reentrant")
        return self.net.head(x)


@pytest.mark.parametrize("arm", ARMS)
def test_checkpointed_modules_recompute_the_changed_sum(arm: str) -> None:
    settings, hand = ARMS[arm]
    torch.manual_seed(0)
    one = Checkpointing("module")
    other = copy.deepcopy(one)
    expected = nets.trained(one, lambda x: one.net.by_hand(x, hand))
    with intervene(other, **settings) as found:
        got = nets.trained(other, other)
    assert nets.equal(got, expected)
    assert len(found.sites) == 2


@pytest.mark.parametrize("arm", ARMS)
def test_a_backward_after_the_end_must_not_recompute_the_models_own_sum(arm: str) -> None:
    net, (x, _) = Checkpointing("module"), nets.batch()
    with intervene(net, **ARMS[arm][0]):
        late = net(x).sum()
        net(x).sum().backward()
    with pytest.raises(ValueError, match="inside of the context"):
        late.backward()
    net(x).sum().backward()


def test_checkpoints_that_cannot_be_followed_are_refused() -> None:
    x, _ = nets.batch()
    net = Checkpointing("reentrant")
    with pytest.raises(ValueError, match="use_reentrant=False"), intervene(net, shortcut=False):
        net(x)
    net = Checkpointing("function")
    for block in net.net.blocks:
        block.by_function = lambda x, block=block: x + block.branch(x)
    with pytest.raises(ValueError, match="checkpoint the module"), intervene(net, shortcut=False):
        net(x)
    assert not torch._C._len_torch_function_stack()


def test_a_compiled_net_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    one, other = two(NETS["add"])
    x, _ = nets.batch()
    compiled = torch.compile(other, backend="eager")
    before = compiled(x)
    with intervene(compiled, shortcut=False):
        got = compiled(x)
    assert "runs eagerly" in caplog.text
    assert torch.equal(got, one.by_hand(x, nets.plain))
    assert torch.equal(compiled(x), before)


# ---------------------------------------------------------------------- ends and refusals
class Failing(nets.Net):
    fails = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.stem(x))
        if self.fails:
            raise KeyboardInterrupt
        return self.head(x)


def _twice(net: Failing, x: Tensor) -> None:
    net(x)
    net.fails = True
    net(x)


@pytest.mark.parametrize("early", [True, False])
def test_everything_is_restored_after_an_error(early: bool) -> None:
    net = Failing(nets.Block("add"))
    x, _ = nets.batch()
    state = torch.random.get_rng_state()
    net.fails = early
    with pytest.raises(KeyboardInterrupt), intervene(net, shortcut=False):
        _twice(net, x)
    assert not torch._C._len_torch_function_stack()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert torch.equal(state, torch.random.get_rng_state())
    net.fails = False
    with intervene(net, shortcut=False) as again:  # it can be opened again
        net(x)
    assert len(again.sites) == 1


class Remembering(nn.Module):
    """Takes another path at every second forward, which no input tells."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.other, self.count = nets.Block("add"), nets.Block("add"), 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.block(x) if self.count % 2 else self.other(x)


def test_what_cannot_be_followed_is_refused() -> None:
    net = Remembering()
    with (
        pytest.raises(ValueError, match="depends on more than inputs"),
        intervene(net, shortcut=False),
    ):
        net(torch.randn(2, nets.WIDTH))
    net = nets.Net(nets.Block("add"))
    open_already = pytest.raises(ValueError, match="another intervention is open")
    with intervene(net), open_already, intervene(net):
        pass
    for one, other in ((net, net.blocks[0]), (net.blocks[0], net)):
        with open_already, intervene(one, branch_scale=0.5), intervene(other, branch_scale=0.5):
            pass
    with pytest.raises(ValueError, match='"keep" or "cut"'), intervene(net, projections="drop"):
        pass
    with pytest.raises(TypeError, match=r"must be an nn.Module"), intervene(len):
        pass
    with (
        pytest.raises(TypeError, match="TorchScript"),
        intervene(torch.jit.script(nn.Linear(1, 1))),
    ):
        pass


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p, self.f = nn.Linear(nets.WIDTH, nets.WIDTH), nn.Linear(nets.WIDTH, nets.WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.p(x) + self.f(torch.relu(x))


def test_a_control_that_changes_nothing_is_refused() -> None:
    x = torch.randn(2, nets.WIDTH)
    chain = nn.Sequential(nn.Linear(nets.WIDTH, 4), nn.ReLU(), nn.Linear(4, 1))
    for arm in ({"shortcut": False}, {"branch_scale": 0.0}):
        with pytest.raises(ValueError, match="no residual addition"), intervene(chain, **arm):
            chain(x)
    kept = pytest.raises(ValueError, match=r"leaves all 1 site: .*P\(x\) is kept")
    net = Projected()
    with kept, intervene(net, shortcut=False):
        net(x)
    with intervene(net, shortcut=False, projections="cut") as cut:
        net(x)
    assert len(cut.sites) == 1
    with intervene(chain), intervene(net):  # nothing is asked for
        chain(x), net(x)
    net = nets.Net(nets.Block("add"))
    nowhere = pytest.raises(ValueError, match="y = F nowhere")
    with nowhere, intervene(net, shortcut=False):  # the sum is the loop's own
        h = net.stem(x[:, : net.stem.in_features])
        h + net.blocks[0].branch(h)
    unseen = pytest.raises(ValueError, match="y = F nowhere: no module of the model ran")
    with unseen, intervene(net, shortcut=False):
        copy.deepcopy(net)(x[:, : net.stem.in_features])


class Adding(nn.Linear):
    """A layer of PyTorch's by name alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def patched(layer: nn.Linear) -> nn.Linear:
    own = layer.forward
    layer.forward = lambda x: x + own(x)
    return layer


def hooked(layer: nn.Linear) -> nn.Linear:
    layer.register_forward_hook(lambda _, args, output: args[0] + output)
    return layer


def hooked_before(layer: nn.Linear) -> nn.Linear:
    weight, bias = layer.weight, layer.bias
    layer.register_forward_pre_hook(
        lambda _, args: args[0] + nn.functional.linear(args[0], weight, bias)
    )
    return layer


@pytest.mark.parametrize("made", [Adding, patched, hooked, hooked_before])
def test_a_layer_that_adds_a_shortcut_of_the_users_is_acted_on(made: Any) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(nets.WIDTH, nets.WIDTH)
    x = torch.randn(2, nets.WIDTH)
    stem = nn.Linear(nets.WIDTH, nets.WIDTH)
    expected = nn.functional.linear(stem(x), layer.weight, layer.bias)
    if made is hooked_before:  # the layer itself comes after the sum
        expected = nn.functional.linear(expected, layer.weight, layer.bias)
    if made is Adding:
        adding = Adding(nets.WIDTH, nets.WIDTH)
        adding.load_state_dict(layer.state_dict())
        net = nn.Sequential(stem, adding)
    else:
        net = nn.Sequential(stem, made(layer))
    with intervene(net, shortcut=False) as plain:
        for _ in range(2):
            assert torch.equal(net(x), expected)
    assert len(plain.sites) == 1


def test_a_copy_of_the_model_is_not_intervened() -> None:
    net, _ = two(NETS["add"])
    x, _ = nets.batch()
    with intervene(net, shortcut=False):
        net(x)
        other = copy.deepcopy(net)
        assert torch.equal(other(x), net.by_hand(x, nets.residual))


def test_the_search_is_paid_once() -> None:
    net, _ = two(NETS["add"])
    calls = []
    net.register_forward_hook(lambda *_: calls.append(0))
    x, _ = nets.batch()
    with intervene(net, shortcut=False):
        for _ in range(4):
            net(x)
        net.eval()
        for _ in range(3):
            net(x)
    assert len(calls) == 4 + 3 + 2  # a rehearsal for each mode


def test_sites_are_those_of_the_site_map() -> None:
    net, _ = two(NETS["nested"])
    x, _ = nets.batch()
    with intervene(net, branch_scale=0.5) as found:
        net(x)
    named = [site.name for site in find_residuals(net, x).sites]
    assert sorted(
        [s.name for s in found.sites] + [left.site.name for left in found.left]
    ) == sorted(named)


class Looped(nn.Module):
    """One checkpointed block, called three times; its ReLU has the sum computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Linear(3, nets.WIDTH), nets.Block("relu_")

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = checkpoint(self.block, x, use_reentrant=False)
        return x


def test_a_shared_checkpointed_block_is_changed_at_every_call_or_not_at_all() -> None:
    torch.manual_seed(0)
    one = Looped()
    other = copy.deepcopy(one)
    x, _ = nets.batch()
    y = one.stem(x)
    for _ in range(3):
        y = torch.relu(0.5 * one.block.branch(y) + y)
    y.square().sum().backward()
    with intervene(other, branch_scale=0.5) as found:
        other(x).square().sum().backward()
    assert len(found.sites) == 3
    for ours, theirs in zip(other.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    name = found.sites[1].name
    with intervene(other, name, branch_scale=0.5) as found:
        loss = other(x).sum()
        assert [site.name for site in found.sites] == [name]
        with pytest.raises(ValueError, match="which of the calls it is"):
            loss.backward()


def test_two_branches_of_one_line_keep_their_order() -> None:
    """A sum that is no site stands on the line of one that is."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.shift = nets.Block("add"), torch.randn(8, nets.WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.block.branch(x + self.shift) + self.shift

    net, x = Shifted(), torch.randn(8, nets.WIDTH)
    with intervene(net, shortcut=False) as found:
        got = net(x)
        with torch.no_grad():
            assert torch.equal(got, net(x))
    assert len(found.sites) == 1
    assert torch.equal(got, net.block.branch(x + net.shift) + net.shift)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"branch_scale": "half"}, "branch_scale is a finite number, got 'half'"),
        ({"branch_scale": None}, "branch_scale is a finite number, got None"),
        ({"branch_scale": float("nan")}, "branch_scale is a finite number, got nan"),
        ({"branch_scale": 10**400}, "branch_scale is a finite number, got 1000"),
        ({"branch_scale": torch.ones(2)}, "branch_scale is a finite number, got tensor"),
        ({"shortcut": "no"}, "shortcut is True or False, got 'no'"),
        ({"shortcut": 0.5}, "shortcut is True or False, got 0.5"),
        ({"shortcut": None}, "shortcut is True or False, got None"),
        ({"sites": [1]}, "sites are names of sites or module paths, or None for all, got 1;"),
        ({"sites": 1}, "sites are names of sites or module paths, or None for all, got 1;"),
        ({"sites": [" "]}, "sites are names of sites or module paths, or None for all, got ' ';"),
    ],
)
def test_settings_that_are_none(settings: dict[str, Any], told: str) -> None:
    with (
        pytest.raises(ValueError, match=f"intervene: {told}"),
        intervene(nn.Linear(1, 1), **settings),
    ):
        pass
