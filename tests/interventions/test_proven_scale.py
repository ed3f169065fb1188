"""A branch that is said to be scaled is scaled, whoever computes with its last weight."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skipscope import remedies

WIDTH = 8
X = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(5))


class Attending(nn.Module):
    """`x + attention(x)`, whose `out_proj` is read by a function and never called."""

    def __init__(self, *, weights: bool = False) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        nn.init.ones_(self.attn.out_proj.bias)
        self.weights = weights

    def branch(self, x: Tensor) -> Tensor:
        out: Tensor = self.attn(x, x, x, need_weights=self.weights)[0]
        return out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class PastItsModule(nn.Module):
    """The last module is called for something else; the branch reads its weight by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.seen = 0.0

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen = float(self.fc(x).norm())
        return x + F.linear(x, self.fc.weight, self.fc.bias)


def after_linear(*blocks: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks)


@pytest.mark.parametrize("learned", ["no", "scalar", "channel"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_an_attention_is_scaled(learned: Any, weights: bool, gradient: bool) -> None:
    torch.manual_seed(0)
    model = after_linear(Attending(weights=weights), Attending(weights=weights)).eval()
    before = [block.branch(X).detach() for block in model[1:]]
    account = remedies.scale_branches(model, X, alpha=0.25, learned=learned)
    assert account.sites == ("1", "2")
    with torch.set_grad_enabled(gradient):
        for block, was in zip(model[1:], before, strict=True):
            torch.testing.assert_close(block.branch(X), was * 0.25)
            _, attention = block.attn(X, X, X)
            torch.testing.assert_close(attention.sum(-1), torch.ones(2, 5))  # not scaled as well
        twin = copy.deepcopy(model)
        torch.testing.assert_close(twin[1].branch(X), before[0] * 0.25)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_pytorchs_own_layer_is_scaled_in_each_mode(norm_first: bool, gradient: bool) -> None:
    """Without gradients it has a fast way, which calls none of its modules."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        WIDTH, 2, 16, dropout=0.5, batch_first=True, norm_first=norm_first
    )
    model = after_linear(layer)
    account = remedies.scale_branches(model, X, alpha=0.0)
    assert account.sites == ("1/self_attn", "1/linear2")
    norm = lambda x: F.layer_norm(x, (WIDTH,))  # noqa: E731
    for training in (False, True):
        with torch.set_grad_enabled(gradient):
            found = layer.train(training)(X)
        torch.testing.assert_close(found, X if norm_first else norm(norm(X)))


def test_tiny_transformers_are_scaled() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(num_hidden_layers=2, image_size=8, patch_size=4, **sizes)
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    remedies.scale_branches(model, torch.randn(1, 3, 8, 8), alpha=0.0, trained="allow")
    with torch.no_grad():
        states = model(torch.randn(1, 3, 8, 8), output_hidden_states=True).hidden_states
    torch.testing.assert_close(states[0], states[-1])
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 20, "n_positions": 8}
    config = transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
    gpt = transformers.GPT2Model(config).eval()  # Conv1D: a module of its own, ending in a view
    tokens = torch.tensor([[1, 2, 3]])
    account = remedies.scale_branches(gpt, tokens, alpha=0.0)
    assert [c.parameter for c in account.changes[:2]] == [
        "h.0.attn.c_proj.branch_scale", "h.0.mlp.c_proj.branch_scale"
    ]  # fmt: skip
    with torch.no_grad():
        embedded = gpt.wte(tokens) + gpt.wpe(torch.arange(3))
        torch.testing.assert_close(gpt(tokens).last_hidden_state, gpt.ln_f(embedded))


class LayerScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * x


class ByFunction(nn.Module):
    """Its matrix belongs to no module below it; `returned` makes its answer."""

    def __init__(self, returned: Callable[[Tensor], Any] = lambda y: y) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.returned = returned

    def forward(self, x: Tensor) -> Any:
        return self.returned(torch.tanh(x) @ self.weight)


class Adding(nn.Module):
    """`x + branch(x)`, the branch taken out of what it returns."""

    def __init__(self, branch: nn.Module, taken: Callable[[Any], Tensor] = lambda y: y) -> None:
        super().__init__()
        self.branch, self.taken = branch, taken

    def forward(self, x: Tensor) -> Tensor:
        return x + self.taken(self.branch(x))


class WithItsSum(nn.Module):
    """What it returns is the sum, so no module's output is the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(x) @ self.weight


@pytest.mark.parametrize("learned", ["no", "scalar"])
@pytest.mark.parametrize(
    "block",
    [
        lambda: Adding(nn.Sequential(nn.Linear(WIDTH, WIDTH), LayerScale())),
        lambda: Adding(ByFunction()),
        lambda: Adding(ByFunction(lambda y: (y, None)), lambda y: y[0]),
    ],
)
def test_any_module_that_returns_the_branch_is_scaled(
    block: Callable[[], Adding], learned: Any
) -> None:
    torch.manual_seed(0)
    model = after_linear(block(), block())
    before = [b.taken(b.branch(X)).detach() for b in model[1:]]
    remedies.scale_branches(model, X, alpha=0.25, learned=learned)
    for b, was in zip(model[1:], before, strict=True):
        torch.testing.assert_close(b.taken(b.branch(X)), was * 0.25)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (lambda: Adding(ByFunction(lambda y: {"y": y}), lambda y: y["y"]), "returns no tensor"),
        (lambda: Adding(ByFunction(lambda y: (None, y)), lambda y: y[1]), "returns no tensor"),
        (WithItsSum, "makes it 1 times what it was"),
    ],
)
def test_a_module_that_does_not_return_the_branch_is_refused_with_another_way(
    block: Callable[[], nn.Module], why: str
) -> None:
    torch.manual_seed(0)
    for alpha, other in (
        (0.25, r"depth_scaled_init\(..., factor=0.25\)"),
        (0, "zero_init_branches"),
    ):
        model = after_linear(block())
        with pytest.raises(ValueError, match=f"{why}.*; {other} .* instead"):
            remedies.scale_branches(model, X, alpha=alpha)
        if alpha:
            account = remedies.depth_scaled_init(model, X, factor=alpha)
        else:
            account = remedies.zero_init_branches(model, X)
        assert len(account.sites) == 1


def test_a_factor_for_each_channel_of_a_hand_written_module() -> None:
    torch.manual_seed(0)
    model = after_linear(Adding(ByFunction()))
    remedies.scale_branches(model, X, alpha=0.5, learned="channel")
    assert model[1].branch.branch_scale.shape == (WIDTH,)
    for block, why in (
        (
            Adding(ByFunction(lambda y: y.unflatten(-1, (2, -1))), lambda y: y.flatten(-2)),
            "its last",
        ),
        (Adding(nn.Sequential(nn.Linear(WIDTH, WIDTH), LayerScale())), "a trained factor already"),
    ):
        with pytest.raises(ValueError, match=f'{why}: use "scalar"'):
            remedies.scale_branches(after_linear(block), X, alpha=0.5, learned="channel")


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("learned", ["no", "scalar"])
def test_what_does_not_follow_its_factor_is_undone_and_refused(alpha: float, learned: Any) -> None:
    torch.manual_seed(0)
    model = after_linear(PastItsModule(), Attending())
    keys, before = list(model.state_dict()), model(X)
    if alpha == 0:
        learned = "scalar"
    with pytest.raises(ValueError, match=r"changed nothing: 1: a factor of 0.5 on the output of 1"):
        remedies.scale_branches(model, X, alpha=alpha, learned=learned, trained="allow")
    assert list(model.state_dict()) == keys
    assert not any(module._forward_hooks for module in model.modules())
    torch.testing.assert_close(model(X), before, rtol=0, atol=0)
    assert remedies.scale_branches(model, X, alpha=alpha, learned=learned, sites="2").sites == (
        "2",
    )


class InPlace(nn.Module):
    """Two additions, the first in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.m = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(torch.tanh(x))
        y += x
        return y + self.m(torch.tanh(y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_branches_behind_scaled_ones_are_proven_in_any_precision(dtype: torch.dtype) -> None:
    """Each is compared at the stream that it read before, and in place too."""
    torch.manual_seed(0)
    model = after_linear(*(InPlace() for _ in range(6))).to(dtype)
    account = remedies.scale_branches(model, X.to(dtype), alpha=0.0)
    assert len(account.sites) == 12
    torch.testing.assert_close(model(X.to(dtype)), model[0](X.to(dtype)))


def test_a_forward_that_fails_names_the_remedy() -> None:
    model = after_linear(Attending())
    for call in (remedies.zero_init_branches, remedies.depth_scaled_init):
        with pytest.raises(
            ValueError, match=rf"^{call.__name__}: the forward of Sequential failed"
        ):
            call(model, X[..., :3])
    with pytest.raises(ValueError, match=r"^scale_branches: the forward of Sequential failed"):
        remedies.scale_branches(model, X[..., :3], alpha=0.5)


class Failing(nn.Module):
    """Fails from some forward on."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.fc, self.good = nn.Linear(WIDTH, WIDTH), good

    def forward(self, x: Tensor) -> Tensor:
        self.good -= 1
        if self.good < 0:
            raise RuntimeError("no more")
        return x + self.fc(torch.tanh(x))


@pytest.mark.parametrize(
    ("remedy", "settings", "good"),
    [("zero_init_branches", {}, 1), ("scale_branches", {"alpha": 0.5}, 2)],
)
def test_a_proof_that_fails_leaves_the_model_as_it_was(
    remedy: str, settings: dict[str, float], good: int
) -> None:
    model = after_linear(Failing(good))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=rf"^{remedy}: the forward .* failed .*no more"):
        getattr(remedies, remedy)(model, X, **settings)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not any(module._forward_hooks for module in model.modules())
