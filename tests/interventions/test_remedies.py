"""What remedies change, and the table of what they refuse."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from skipscope import find_residuals, intervene, remedies
from skipscope.rule import short

WIDTH = 6
X = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(3))
REMEDIES: dict[str, Callable[..., remedies.Account]] = {
    "zero": remedies.zero_init_branches,
    "depth": remedies.depth_scaled_init,
    "scale": lambda *args, **kwargs: remedies.scale_branches(*args, alpha=0.5, **kwargs),
}


class Block(nn.Module):
    """`x + branch(x)`."""

    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


class Fn(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def net(*ends: nn.Module, blocks: int = 2) -> nn.Sequential:
    """Blocks whose branches end as given."""
    return nn.Sequential(
        linear(), *(Block(linear(), nn.Tanh(), *copy.deepcopy(ends)) for _ in range(blocks))
    )


def with_last(change: Callable[[nn.Module], object]) -> nn.Module:
    """The last linears changed in place; what the older norms make cannot be copied."""
    model = net(linear())
    for block in model[1:]:
        change(block.branch[2])
    return model


def ratios(model: nn.Module, x: Tensor = X) -> list[float]:
    """|F(x)| / |x| of each `Block`, by hooks of our own."""
    found: list[float] = []

    def see(block: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> None:
        found.append(float((y - args[0]).norm() / args[0].norm()))

    handles = [m.register_forward_hook(see) for m in model.modules() if isinstance(m, Block)]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return found


def steps(model: nn.Module, count: int = 1, lr: float = 0.1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    target = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(4))
    for _ in range(count):
        optimizer.zero_grad()
        F.mse_loss(model(X), target).backward()
        optimizer.step()


# ---------------------------------------------------------------------- what they do
FINE: dict[str, Callable[[], nn.Module]] = {
    "last linear": lambda: net(linear()),
    "dropout behind": lambda: net(linear(), nn.Dropout(0.5)),
    "batch norm": lambda: net(linear(), nn.BatchNorm1d(WIDTH)),
    "layer norm": lambda: net(linear(), nn.LayerNorm(WIDTH)),
    "glu before the last linear": lambda: net(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU(), linear()),
    "weight_norm": lambda: with_last(weight_norm),
    "weight_norm as parametrization": lambda: net(parametrizations.weight_norm(linear())),
    "bias apart": lambda: net(
        Fn(lambda m, x: x @ m.w + m.b, w=nn.Parameter(torch.eye(WIDTH)),
           b=nn.Parameter(torch.ones(WIDTH)))
    ),
    "rms norm by hand": lambda: net(
        linear(),
        Fn(lambda m, x: m.w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
           w=nn.Parameter(torch.ones(WIDTH))),
    ),
    "rms norm that casts": lambda: net(
        linear(),
        Fn(
            lambda m, x: (m.w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)))).to(x.dtype),
            w=nn.Parameter(torch.ones(WIDTH)),
        ),
    ),
    "gate and value apart": lambda: net(
        Fn(lambda m, x: m.gate(x).sigmoid() * m.value(x), gate=linear(), value=linear())
    ),
}  # fmt: skip


#: Of these zero-init alone may change the last weight.
ACTIVATED: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: net(linear(), nn.Tanh()),
    "gelu": lambda: net(linear(), nn.GELU()),
    "glu": lambda: net(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU()),  # its gate is 1/2 at 0
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated.*")
@pytest.mark.parametrize("name", [*FINE, *ACTIVATED])
def test_zero_init_starts_at_the_identity_and_wakes(name: str) -> None:
    torch.manual_seed(0)
    model = {**FINE, **ACTIVATED}[name]().train()
    modes = [m.training for m in model.modules()]
    account = remedies.zero_init_branches(model, X)
    assert account.sites == ("1", "2")
    assert [m.training for m in model.modules()] == modes
    assert ratios(model) == [0.0, 0.0]
    assert all(p.grad is None for p in model.parameters())
    steps(model, 2)
    assert all(ratio > 1e-4 for ratio in ratios(model))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated.*")
@pytest.mark.parametrize("name", [*FINE, "relu"])
def test_depth_scaled_branches_are_the_branches_times_the_factor(name: str) -> None:
    torch.manual_seed(0)
    model = net(linear(), nn.ReLU()) if name == "relu" else FINE[name]()
    model.eval()
    x = model[0](X).detach()
    before = model[1].branch(x)
    remedies.depth_scaled_init(model, X)
    torch.testing.assert_close(model[1].branch(x), before / math.sqrt(2))
    remedies.depth_scaled_init(model, X, factor=0.5, sites="1", scaled="allow")
    torch.testing.assert_close(model[1].branch(x), before / math.sqrt(2) / 2)


@pytest.mark.parametrize("learned", ["no", "scalar", "channel"])
@pytest.mark.parametrize("end", ["linear", "conv"])
def test_scaled_branches_are_the_branches_times_alpha(end: str, learned: Any) -> None:
    torch.manual_seed(0)
    if end == "conv":
        conv = nn.Conv2d(3, 3, 3, padding=1)
        model, x = (
            nn.Sequential(nn.Conv2d(3, 3, 1), Block(conv, nn.Tanh(), copy.deepcopy(conv))),
            torch.randn(2, 3, 4, 4),
        )
    else:
        model, x = net(linear(), blocks=1), X
    inner = model[0](x).detach()
    before = model[1].branch(inner)
    keys = set(model.state_dict())
    account = remedies.scale_branches(model, x, alpha=0.25, learned=learned)
    torch.testing.assert_close(model[1].branch(inner), before * 0.25)
    (new,) = set(model.state_dict()) - keys
    assert new == "1.branch.2.branch_scale"
    assert keys < set(model.state_dict())
    held = dict(model.named_parameters())
    assert (new in held) == (learned != "no")
    assert [p is held[new] for p in account.parameters] == [True] * (learned != "no")
    assert (account.group["weight_decay"], len(account.group["params"])) == (0.0, learned != "no")
    if learned == "channel":
        assert held[new].numel() == (3 if end == "conv" else WIDTH)
    twin = copy.deepcopy(model)  # takes its factor along
    torch.testing.assert_close(twin[1].branch(inner), before * 0.25)


def test_rezero_wakes_and_is_trained() -> None:
    torch.manual_seed(0)
    model = net(linear())
    account = remedies.scale_branches(model, X, alpha=0.0)
    assert ratios(model) == [0.0, 0.0]
    steps(model)
    assert all(p.item() != 0 for p in account.parameters)
    assert "optimizer" in str(account)
    assert [site.kind for site in find_residuals(model, X).sites] == ["identity"] * 2


def test_sites_select_and_the_account_tells() -> None:
    model = net(linear())
    nn.init.constant_(model[1].branch[2].weight, 3.0)
    nn.init.constant_(model[1].branch[2].bias, -2.0)
    account = remedies.zero_init_branches(model, X, sites="1")
    assert account.changes == (
        remedies.Change("1", "1.branch.2.weight", 3.0, 0.0),
        remedies.Change("1", "1.branch.2.bias", 2.0, 0.0),
    )
    assert str(account).splitlines()[0] == "zero_init_branches: 1 branch"
    assert ratios(model)[0] == 0 != ratios(model)[1]


def test_what_is_zero_and_stays_zero_is_no_line_of_the_account() -> None:
    model = net(linear())
    for block in model[1:]:
        nn.init.zeros_(block.branch[2].bias)
    for remedy in (remedies.depth_scaled_init, remedies.zero_init_branches):
        account = remedy(copy.deepcopy(model), X)
        assert [c.parameter for c in account.changes] == ["1.branch.2.weight", "2.branch.2.weight"]


# ---------------------------------------------------------------------- what they refuse
def shared() -> nn.Module:
    block = Block(linear(), nn.Tanh(), linear())
    return nn.Sequential(linear(), block, block)


def tied() -> nn.Module:
    model = net(linear())
    model.append(linear())
    model[3].weight = model[2].branch[2].weight
    return model


def used_twice() -> nn.Module:
    last = linear()
    return nn.Sequential(
        linear(), Block(linear(), nn.Tanh(), last), Fn(lambda m, x: F.linear(x, last.weight))
    )


def frozen() -> nn.Module:
    model = net(linear())
    model[2].branch[2].requires_grad_(False)
    return model


def both_zero() -> nn.Module:
    """adaLN-zero: a gate that is computed elsewhere, and 0."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.gate = linear(), linear(), linear()
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.gate(X * 2) * self.last(torch.tanh(self.first(x)))

    return nn.Sequential(linear(), Gated())


def experts() -> nn.Module:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(WIDTH, 3)
            self.experts = nn.ModuleList(
                nn.Sequential(linear(), nn.Tanh(), linear()) for _ in range(3)
            )

        def forward(self, x: Tensor) -> Tensor:
            share = self.router(x).softmax(-1)
            return x + share[:, :1] * self.experts[0](x) + share[:, 1:2] * self.experts[1](x)

    return nn.Sequential(linear(), Mixture())


def scale(value: float) -> nn.Module:
    return Fn(lambda m, x: m.gamma * x, gamma=nn.Parameter(torch.full((WIDTH,), value)))


def zeroed(module: nn.Linear) -> nn.Linear:
    nn.init.zeros_(module.weight)
    return module


def two_zero() -> nn.Module:
    model = net(linear())
    for block in model[1:]:
        nn.init.zeros_(zeroed(block.branch[0]).bias)
        nn.init.zeros_(zeroed(block.branch[2]).bias)
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "relu end": (lambda: net(linear(), nn.ReLU()), "ends in relu", "zero scale"),
    "relu6 end": (lambda: net(linear(), nn.ReLU6()), "ends in hardtanh", "zero depth scale"),
    "sigmoid end": (lambda: net(linear(), nn.Sigmoid()), "the branch is not 0", "zero"),
    "tanh end": (lambda: net(linear(), nn.Tanh()), "ends in tanh", "depth scale"),
    "glu": (lambda: net(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU()), "ends in glu", "depth scale"),
    "swiglu": (
        lambda: net(
            nn.Linear(WIDTH, 2 * WIDTH),
            Fn(lambda m, x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]),
        ),
        "gate and .* value.* from one weight",
        "zero depth scale",
    ),
    "glu by hand": (
        lambda: net(
            nn.Linear(WIDTH, 2 * WIDTH),
            Fn(lambda m, x: x.chunk(2, -1)[0].sigmoid() * x.chunk(2, -1)[1]),
        ),
        "gate and a value from one weight",
        "depth scale",
    ),
    "rezero and last linear": (lambda: net(linear(), scale(0.0)), "gamma is 0", "zero"),
    "small scale and last linear": (
        lambda: net(linear(), scale(1e-5)), "branch scale .*gamma is 1e-05", "zero"
    ),
    "gate 0 and last linear": (both_zero, "another factor of it is 0", "zero"),
    "norm without weight": (
        lambda: net(linear(), nn.LayerNorm(WIDTH, elementwise_affine=False)),
        "norm without weight", "zero depth scale",
    ),
    "batch norm without weight": (
        lambda: net(linear(), nn.BatchNorm1d(WIDTH, affine=False)),
        "norm without weight", "zero depth scale",
    ),
    "frozen": (frozen, "is frozen", "zero depth scale"),
    "spectral_norm": (
        lambda: net(parametrizations.spectral_norm(linear())), "goes through spectral_norm",
        "zero depth scale",
    ),
    "old spectral_norm": (
        lambda: with_last(spectral_norm), "goes through spectral_norm", "zero depth scale"
    ),
    "shared": (shared, "shared by 2 branches", "zero depth scale"),
    "tied": (tied, r"is tied to 3\.weight", "zero depth scale"),
    "used twice": (used_twice, "is used 2 times", "zero depth scale"),
    "one of several experts": (experts, "of experts all must be changed", "zero depth scale"),
    "zero already": (lambda: net(zeroed(linear())), "is 0 already", "zero"),
    "both zero": (
        two_zero,
        r"branch\.2\.weight is 0 already and so is .*branch\.0\.weight, .* draw .*0\.weight again",
        "zero",
    ),
    "rezero, scaled": (lambda: net(linear(), scale(0.0)), "gamma is 0 and stays 0", "depth"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*spectral_norm.*deprecated.*")
@pytest.mark.parametrize(
    ("row", "remedy"),
    [(row, remedy) for row, (_, _, who) in REFUSED.items() for remedy in who.split()],
)
def test_what_would_do_harm_is_refused(row: str, remedy: str) -> None:
    torch.manual_seed(0)
    make, reason, _ = REFUSED[row]
    model = make()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=reason) as told:
        REMEDIES[remedy](model, X)
    assert "changed nothing" in str(told.value)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def trained_by_steps() -> nn.Module:
    model = net(linear())
    steps(model, 12)
    model.zero_grad()
    return model


def with_gradients() -> nn.Module:
    model = net(linear())
    model(X).sum().backward()
    return model


def loaded() -> nn.Module:
    model = net(nn.LayerNorm(WIDTH), linear())
    state = {k: v + torch.rand_like(v) for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    return model


def warm() -> nn.Module:
    model = net(nn.BatchNorm1d(WIDTH), linear())
    model(X)
    return model


TRAINED = {
    trained_by_steps: r"was written to 1\d times",
    with_gradients: "has a gradient",
    loaded: "weights of .* differ",
    warm: "has normalised 1 batches",
}


@pytest.mark.parametrize("make", TRAINED)
@pytest.mark.parametrize("remedy", REMEDIES)
def test_trained_weights_are_refused_unless_allowed(
    make: Callable[[], nn.Module], remedy: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=TRAINED[make]):
        REMEDIES[remedy](make(), X)
    assert REMEDIES[remedy](make(), X, trained="allow").changes
    model = make()  # a learned 1 changes nothing
    model.eval()
    expected = model(X)
    remedies.scale_branches(model, X, alpha=1.0)
    assert torch.equal(model(X), expected)


@pytest.mark.parametrize(("count", "noticed"), [(7, False), (8, True)])
def test_how_many_steps_without_another_trace_are_noticed(count: int, noticed: bool) -> None:
    """As the page says: an initialisation writes once, each step once more; a copy starts anew."""
    torch.manual_seed(0)
    model = net(linear())
    steps(model, count)
    model.zero_grad()
    copied = copy.deepcopy(model)
    if noticed:
        with pytest.raises(ValueError, match="was written to 9 times"):
            remedies.zero_init_branches(model, X)
    else:
        assert remedies.zero_init_branches(model, X).changes
    assert remedies.zero_init_branches(copied, X).changes


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"sites": [1]}, "sites are names of sites or module paths, or None for all, got 1;"),
        ({"sites": 1}, "sites are names of sites or module paths, or None for all, got 1;"),
        ({"factor": "half"}, "factor must be a finite number above 0, got 'half'; None stands"),
        ({"factor": math.inf}, "factor must be a finite number above 0, got inf"),
        ({"trained": "yes"}, 'trained is "refuse" or "allow", got \'yes\''),
    ],
)
def test_settings_that_are_none(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"depth_scaled_init: {told}"):
        remedies.depth_scaled_init(net(linear()), X, **settings)


def test_settings_and_examples_that_make_no_sense_are_refused() -> None:
    model = net(linear())
    with pytest.raises(ValueError, match="switches the branches off"):
        remedies.scale_branches(model, X, alpha=0.0, learned="no")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="never be trained"):
        remedies.scale_branches(model, X, alpha=0.0, optimizer=optimizer)
    with pytest.raises(ValueError, match="above 0"):
        remedies.depth_scaled_init(model, X, factor=0.0)
    with pytest.raises(ValueError, match=r"no site is named '11'"):
        remedies.zero_init_branches(model, X, sites="11")
    with pytest.raises(
        ValueError, match=r"zero_init_branches: sites must name something, got \[\]"
    ):
        remedies.zero_init_branches(model, X, sites=[])
    with pytest.raises(ValueError, match="failed with the given example"):
        remedies.zero_init_branches(model, X[:, :2])
    with pytest.raises(ValueError, match="no residual addition was found"):
        remedies.zero_init_branches(linear(), X)
    remedies.scale_branches(model, X, alpha=0.5)
    with pytest.raises(ValueError, match=r"1, 2: it has a branch_scale already\. sites="):
        remedies.scale_branches(model, X, alpha=0.5)
    with pytest.raises(ValueError, match='use "scalar"'):
        remedies.scale_branches(net(nn.LayerNorm(WIDTH)), X, alpha=0.5, learned="channel")


@pytest.mark.parametrize("factor", [None, 0.3])
def test_a_second_depth_scaling_is_refused_unless_told_or_drawn_again(factor: float | None) -> None:
    torch.manual_seed(0)
    model = net(linear())
    remedies.depth_scaled_init(model, X, factor=factor)
    before = model[1].branch[2].weight.clone()
    told = short(factor or 2**-0.5)
    with pytest.raises(
        ValueError,
        match=rf'1, 2: depth_scaled_init has multiplied it by {told} before; scaled="allow"',
    ):
        remedies.depth_scaled_init(model, X, factor=factor)
    assert torch.equal(model[1].branch[2].weight, before)
    remedies.depth_scaled_init(model, X, factor=0.5, scaled="allow")
    torch.testing.assert_close(model[1].branch[2].weight, before / 2)
    for block in model[1:]:
        block.branch[2].reset_parameters()
    assert len(remedies.depth_scaled_init(model, X).sites) == 2


def made(std_last: float, std: float = 0.02, blocks: int = 8, width: int = 64) -> nn.Module:
    """Branches of two matrices, drawn with these standard deviations."""
    model = nn.Sequential(
        linear(),
        *(
            Block(nn.Linear(WIDTH, width), nn.Tanh(), nn.Linear(width, WIDTH))
            for _ in range(blocks)
        ),
    )
    for block in model[1:]:
        nn.init.normal_(block.branch[0].weight, std=std)
        nn.init.normal_(block.branch[2].weight, std=std_last)
    return model


def test_an_initialisation_that_scales_already_is_refused_with_the_ratio() -> None:
    torch.manual_seed(0)
    with pytest.raises(
        ValueError, match=r"1, 2, 3 .*: the last matrices start 0\.3\d+ to 0\.\d+ times"
    ):
        remedies.depth_scaled_init(made(0.02 / math.sqrt(8)), X)  # as GPT-2 does
    assert remedies.depth_scaled_init(made(0.02 / math.sqrt(8)), X, scaled="allow").changes
    copied = made(0.02)
    remedies.depth_scaled_init(copied, X)
    with pytest.raises(ValueError, match="already"):  # of a copy no record is kept
        remedies.depth_scaled_init(copy.deepcopy(copied), X)
    for fine in (
        made(0.02),
        made(0.02 / math.sqrt(2)),
        # by fan-in, a last matrix of 4 times as many inputs is half as large; so is 1/sqrt(4)
        made(0.02 / 2, blocks=4, width=4 * WIDTH),
        nn.Sequential(linear(), nn.TransformerEncoderLayer(WIDTH, 2, 24, batch_first=True)),
    ):
        assert remedies.depth_scaled_init(fine, X[None]).changes


def test_a_gpt_of_transformers_is_scaled_as_it_is_made() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 3, "n_head": 2, "vocab_size": 20, "n_positions": 8}
    config = transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
    with pytest.raises(
        ValueError, match=r"start 0\.[34]\d+ to 0\.4\d+ times as large as the others"
    ):  # 1/sqrt(6)
        remedies.depth_scaled_init(transformers.GPT2Model(config), torch.tensor([[1, 2, 3]]))


@pytest.mark.parametrize("name", REMEDIES)
def test_an_open_intervention_is_named(name: str) -> None:
    model = net(linear())
    for around in (model, model[1], nn.Sequential(model)):
        refused = pytest.raises(ValueError, match="an intervention is open on the model")
        with intervene(around, shortcut=False):
            model(X)
            with refused:
                REMEDIES[name](model, X)
    assert REMEDIES[name](model, X).changes


@pytest.mark.parametrize("optimizer", [3, "adam", []])
def test_what_is_no_optimizer_is_told_with_its_value(optimizer: Any) -> None:
    with pytest.raises(
        ValueError,
        match=re.escape(f"torch.optim.Optimizer that there is already, or None, got {optimizer!r}"),
    ):
        remedies.scale_branches(net(linear()), X, alpha=0.5, optimizer=optimizer)


def test_a_branch_behind_an_activation_is_told_what_else_there_is() -> None:
    for end, alpha, other in (
        (nn.ReLU(), 0.5, "depth_scaled_init"),
        (nn.ReLU(), 0.0, "write the factor into the forward"),
        (nn.Tanh(), 0.0, "zero_init_branches"),
        (nn.Tanh(), 0.5, "write the factor into the forward"),
    ):
        with pytest.raises(ValueError, match=f"not linear; {other}"):
            remedies.scale_branches(net(linear(), end), X, alpha=alpha)


@pytest.mark.parametrize("name", REMEDIES)
def test_a_model_without_numbers_is_refused(name: str) -> None:
    model = nn.Sequential(Block(linear()), Block(linear())).to("meta")
    with pytest.raises(ValueError, match=r"0.branch.0.weight is on the meta device"):
        REMEDIES[name](model, X.to("meta"))


@pytest.mark.parametrize("alpha", [math.nan, math.inf, "0.1", None])
def test_a_factor_that_is_no_number(alpha: Any) -> None:
    with pytest.raises(ValueError, match="scale_branches: alpha is a finite number, got"):
        remedies.scale_branches(nn.Sequential(Block(linear())), X, alpha=alpha)
