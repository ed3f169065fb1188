"""The look before training: what it says is what a hand-written forward and backward say."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skipscope import preflight
from tests.capture.attachments import attached, changes
from tests.capture.shared_cases import load

D = 6


class Block(nn.Module):
    """x + up(down(x)), where `zero` names the matrices that start at 0."""

    def __init__(self, zero: str = "", drop: float = 0.0) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.drop = drop
        for name in zero.split():
            nn.init.zeros_(getattr(self, name).weight)

    def branch(self, x: Tensor) -> Tensor:
        f = self.up(F.gelu(self.down(x)))
        if not self.training or not self.drop:
            return f
        return f * (torch.rand(()) >= self.drop) / max(1 - self.drop, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def net_of(*blocks: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, D), *blocks)


# ---------------------------------------------------------------------- numbers
def test_numbers_are_those_by_hand() -> None:
    net, x = net_of(Block(), Block(), Block()), torch.randn(5, D)
    found = preflight(net, x)

    stream = [net[0](x)]
    branches = []
    for block in net[1:]:
        branches.append(block.branch(stream[-1]))
        stream.append(stream[-1] + branches[-1])
    direction = torch.randn(stream[-1].shape, generator=torch.Generator().manual_seed(0))
    gradients = torch.autograd.grad(stream[-1], stream, direction / direction.norm())
    ratios = [(f.norm() / s.norm()).item() for f, s in zip(branches, stream, strict=False)]

    (start,) = found.streams
    assert start.ratios == pytest.approx(ratios, rel=1e-5)
    assert start.budget == pytest.approx(sum(np.log1p(r**2) for r in ratios[1:]), rel=1e-5)
    assert start.law == pytest.approx(np.log(4))
    assert start.limit == pytest.approx(2 * np.log(3) + 2)
    assert start.growth == pytest.approx((stream[-1].norm() / stream[0].norm()).item(), rel=1e-5)
    ratio = float(gradients[1].norm() / gradients[-1].norm())
    assert start.gradient_ratio == pytest.approx(ratio, rel=1e-5)
    assert float(found.history.table("grad_sum_norm").values[0, -1]) == pytest.approx(1, rel=1e-5)
    assert found.gradient.startswith("fixed random unit gradient")


class Times(nn.Module):
    """y = x + a x: r is |a|, at whatever x."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.fc = nn.Linear(D, D, bias=False)
        self.fc.weight.data = a * torch.eye(D)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc(x)


@pytest.mark.parametrize(
    ("a", "told"),
    [
        # B over the second and third site of a stage of three: 2 ln(1 + a^2); the law's limit is
        # 2 ln 3 + 2 = 4.197
        (0.5, "near the identity: r 0.500 to 0.500, B 0.446, up to 1"),
        (2.0, "within its law: r 2.00 to 2.00, B 3.22, up to 4.20; ln(1+L) is 1.39"),
        (3.0, "far from the identity: r 3.00 to 3.00, B 4.61, above 4.20; ln(1+L) is 1.39"),
    ],
)
def test_a_start_is_told_with_its_limit(a: float, told: str) -> None:
    found = preflight(net_of(Times(a), Times(a), Times(a)), torch.randn(5, D))
    assert str(found.streams[0]).splitlines()[0] == told


def test_with_a_loss_the_gradients_are_that_loss_s() -> None:
    net, x = net_of(Block(), Block()), torch.randn(5, D)
    found = preflight(net, x, loss_fn=lambda y: y.square().mean())

    loss = net(x).square().mean()
    loss.backward()
    norms = [float(p.grad.norm()) for p in net.parameters() if p.grad is not None]
    table = found.history.table("gradient_norm")
    assert list(table.values[0]) == pytest.approx(norms, rel=1e-5)
    assert found.history.fact("loss")[0] == pytest.approx(loss.item())
    assert found.gradient == "that of loss_fn"


def test_the_same_look_twice() -> None:
    net, x = net_of(Block(drop=0.3), nn.Dropout(0.5), Block()), torch.randn(5, D)
    torch.manual_seed(1)
    first = preflight(net, x)
    second = preflight(net, x)
    assert first.streams == second.streams
    assert np.array_equal(first.history.sums, second.history.sums, equal_nan=True)


# ---------------------------------------------------------------------- starts at 0
def test_zero_factors_that_wake_and_that_never_do() -> None:
    net, x = net_of(Block("up"), Block("up down"), Block("down"), Block()), torch.randn(5, D)
    found = preflight(net, x)

    # Of up(gelu(down(x))) either factor alone gets a gradient: gelu has a slope of 1/2 at 0.
    assert found.zero == ("1", "3")
    assert found.asleep == ("2",)
    (finding,) = (f for f in found.diagnosis.findings if f.code == "RES103")
    assert finding.where == ("2",)
    assert finding.cause.startswith("2.down.weight, 2.up.weight: 0 together")
    assert not found.ok
    assert "asleep     2: r 0, without a gradient: never wakes" in str(found)


class Gated(nn.Module):
    """adaLN-zero: the gate of the branch is computed from a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.gate = nn.Linear(D, D), nn.Linear(D, D)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return x + self.gate(condition) * self.fc(x)


class Conditioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(D, D), nn.ModuleList([Gated(), Gated()])

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, condition)
        return x


def test_a_gate_that_is_computed_elsewhere_wakes_its_branch() -> None:
    net, inputs = Conditioned(), (torch.randn(5, D), torch.randn(5, D))
    found = preflight(net, *inputs)
    assert (found.asleep, found.zero, found.ok) == ((), ("blocks.0", "blocks.1"), True)

    net.blocks[1].gate.requires_grad_(False)
    assert preflight(net, *inputs).asleep == ("blocks.1",)


def test_a_dropped_branch_is_not_asleep() -> None:
    net, x = net_of(Block(drop=1.0), Block("up", drop=1.0), Block()), torch.randn(5, D)
    found = preflight(net, x)
    # The first is 0 in this forward only, the second in every one.
    assert (found.asleep, found.zero, found.ok) == ((), ("2",), True)


def test_a_frozen_zero_branch_neither_wakes_nor_should() -> None:
    net, x = net_of(Block("up"), Block()), torch.randn(5, D)
    net[1].requires_grad_(False)
    found = preflight(net, x)
    assert (found.asleep, found.zero, found.ok) == ((), (), True)


def test_nothing_is_said_where_no_gradient_arrives() -> None:
    """A head of zeros: whether a branch before it wakes shows a step later."""
    net, x = net_of(Block("up"), nn.LayerNorm(D), nn.Linear(D, 3)), torch.randn(5, D)
    nn.init.zeros_(net[-1].weight)
    found = preflight(net, x)
    assert (found.asleep, found.zero, found.ok) == ((), (), True)


def test_parameters_that_are_no_part_of_it() -> None:
    net, x = net_of(Block(), Block()), torch.randn(5, D)
    net[1].spare = nn.Linear(D, D, bias=False)
    assert preflight(net, x).unused == ("1.spare.weight",)


# ---------------------------------------------------------------------- verdicts, cases
@pytest.mark.parametrize(
    ("name", "verdict", "codes"),
    [
        # its 48 blocks draw the samples together too: mean cosine .66 after the first, .996 at last
        ("08_deep_unscaled_stack", "far", {"RES101", "RES105", "RES201", "RES205", "RES301"}),
        ("12_both_factors_zero", "identity", {"RES103"}),
        ("24_branch_broadcast_into_the_stream", "near", {"RES502"}),
        ("03_one_block_without_skip", "within its law", {"RES503"}),
        ("51_healthy_zero_init_resnet", "identity", set()),
        ("54_healthy_stochastic_depth", "within its law", set()),
        ("55_healthy_first_block_after_small_embedding", "within its law", set()),
        ("63_healthy_prenorm_sqrt_growth", "within its law", set()),
    ],
)
def test_cases_from_the_record(name: str, verdict: str, codes: set[str]) -> None:
    case = load(name)
    model = case.build()
    x, y = next(case.batches())
    for loss_fn in (None, lambda output: case.loss_fn(output, y)):
        found = preflight(model, x, loss_fn=loss_fn)
        grave = {f.code for f in found.diagnosis.findings if f.severity != "info"}
        assert grave == codes
        assert [start.verdict for start in found.streams] == [verdict]
        assert found.ok == (not codes)
    if name.startswith("12"):
        assert found.asleep == ("blocks.2", "blocks.4", "blocks.5")


def test_scaled_by_depth_is_near_and_post_norm_is_named() -> None:
    x = torch.randn(5, 4, 8)
    layers = [
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first)
        for first in (True, False)
    ]
    verdicts = []
    for layer in layers:
        encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        if layer.norm_first:
            for one in encoder.layers:
                for last in (one.self_attn.out_proj, one.linear2):
                    last.weight.data /= 8**0.5
        (start,) = preflight(nn.Sequential(nn.Linear(8, 8), encoder), x).streams
        verdicts.append(start.verdict)
    assert verdicts == ["near", "post-norm"]


def test_a_model_of_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=20, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model, ids = GPT2LMHeadModel(config), torch.randint(0, 20, (2, 6))

    found = preflight(model, ids)
    labelled = preflight(model, input_ids=ids, labels=ids)

    assert found.ok
    assert len(found.streams[0].ratios) == 4
    assert found.gradient.startswith("fixed random unit gradient")
    # Its loss of about ln 20 comes first in the output.
    assert "one number and taken for the loss" in labelled.gradient
    assert labelled.history.fact("loss")[0] == pytest.approx(np.log(20), abs=0.2)


def test_a_model_without_a_site() -> None:
    found = preflight(nn.Linear(2, 2), torch.ones(3, 2))
    assert found.streams == ()
    assert [f.code for f in found.diagnosis.findings] == ["RES901"]
    assert "start      no residual addition was found" in str(found)


# ---------------------------------------------------------------------- no trace
class Restless(nn.Module):
    """Batch statistics, dropout, every global generator, a buffer that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.drop = nn.BatchNorm1d(D), nn.Linear(D, D), nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        noise = random.random() + float(np.random.rand())  # noqa: NPY002
        return x + noise * self.drop(self.fc(self.norm(x)))


def train(*, looking: bool) -> list[Tensor]:
    torch.manual_seed(3)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    net = net_of(Restless(), Restless(), Block("up down"))
    net[1].drop.eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        x = torch.randn(5, D)
        loss = net(x).square().mean()
        loss.backward()
        if looking:
            gradients = [p.grad for p in net.parameters()]
            before = attached(net)
            preflight(net, x, loss_fn=lambda y: y.square().sum())
            assert changes(before, attached(net)) == {}
            assert all(p.grad is g for p, g in zip(net.parameters(), gradients, strict=True))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(loss.detach())
    assert not net[1].drop.training
    assert net[2].drop.training
    return [*losses, *net.state_dict().values()]


def test_training_goes_on_bit_by_bit_as_without() -> None:
    for one, other in zip(train(looking=True), train(looking=False), strict=True):
        assert torch.equal(one, other)


def test_hooks_at_gradients_are_not_called() -> None:
    """An optimizer that steps within the backward must not step here."""
    net, called = net_of(Block()), []
    net[0].weight.register_post_accumulate_grad_hook(called.append)
    preflight(net, torch.randn(5, D))
    assert called == []


def test_a_result_is_frozen() -> None:
    found = preflight(net_of(Block()), torch.randn(5, D))
    with pytest.raises(FrozenInstanceError):
        found.mode = "evaluation"  # type: ignore[misc]
    assert found.mode == "training"
    assert preflight(net_of(Block()).eval(), torch.randn(5, D)).mode == "evaluation"


# ---------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda net, _: preflight(net, torch.randn(5, D + 1)), ValueError, "example .RuntimeError"),
        (lambda _, x: preflight(len, x), TypeError, "must be an nn.Module"),
        (
            lambda net, x: preflight(net, x, loss_fn=lambda y: y),
            TypeError,
            rf"one number as a tensor, got Tensor of shape \(5, {D}\); reduce it",
        ),
        (lambda net, x: preflight(net, x, loss_fn=3), TypeError, "be a function .* got 3"),
        (lambda net, x: preflight(net.requires_grad_(False), x), ValueError, "can be trained"),
    ],
)
def test_errors_name_what_is_wrong(
    call: Callable[..., object], error: type[Exception], message: str
) -> None:
    net = net_of(Block())
    before = attached(net)
    with pytest.raises(error, match=message):
        call(net, torch.randn(5, D))
    assert changes(before, attached(net)) == {}


def test_an_error_of_loss_fn_passes_through() -> None:
    def loss_fn(output: Tensor) -> Tensor:
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        preflight(net_of(Block()), torch.randn(5, D), loss_fn=loss_fn)
