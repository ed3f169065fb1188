"""What a site map says about a net beyond the number of its additions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skipscope.find import find_residuals
from skipscope.monitor import Monitor
from skipscope.records import Site, SiteMap
from tests.capture import image_nets, nets, odd_nets
from tests.capture.image_nets import ConvNet
from tests.capture.nets import D, Encoder, Parallel, Residual, Sandwich, Shared, Stack
from tests.capture.steps import Case
from tests.zoo.parts import Mlp


def x() -> Tensor:
    return torch.randn(2, 6, D)


def stack(combine: Callable[[Tensor, Tensor], Tensor], **options: Any) -> Stack:
    return Stack(lambda k: Residual(combine, **options))


def every(found: SiteMap, **facts: Any) -> bool:
    """Whether each site has these facts."""
    for name, value in facts.items():
        assert [getattr(site, name) for site in found.sites] == [value] * len(found.sites), name
    return bool(found.sites)


# ---------------------------------------------------------------------- the addition
@pytest.mark.parametrize(
    ("combine", "kind", "alpha"),
    [
        (torch.add, "identity", 1),
        (lambda x, f: f + x, "identity", 1),
        (lambda x, f: x.clone().add_(f), "identity", 1),
        (lambda x, f: f.add_(x), "identity", 1),
        (lambda x, f: torch.add(x, f, alpha=0.25), "identity", 0.25),
        (lambda x, f: torch.add(input=x, other=f, alpha=0.25), "identity", 0.25),
        (lambda x, f: x - f, "identity", -1),
        (lambda x, f: torch.sub(x, f, alpha=0.5), "identity", -0.5),
        (lambda x, f: torch.rsub(f, x), "identity", -1),
        (lambda x, f: f - x, "scaled", 1),
        (lambda x, f: torch.add(f, x, alpha=3), "scaled", 1),
        (lambda x, f: 0.5 * x + f, "scaled", 1),
        (lambda x, f: x / 2 + f, "scaled", 1),
        (lambda x, f: x + 0.1 * f, "identity", 1),
    ],
    ids=range(14),
)
def test_form_of_the_addition(
    combine: Callable[[Tensor, Tensor], Tensor], kind: str, alpha: float
) -> None:
    assert every(find_residuals(stack(combine), x()), kind=kind, alpha=pytest.approx(alpha))


@pytest.mark.parametrize(
    ("combine", "source"),
    [
        (torch.add, "same"),
        (lambda x, f: x.detach() + f, "detached"),
        (lambda x, f: x.data + f, "detached"),
    ],
    ids=["same", "detach", "data"],
)
def test_detached_shortcut(combine: Callable[[Tensor, Tensor], Tensor], source: str) -> None:
    assert every(find_residuals(stack(combine), x()), shortcut_source=source)


def test_rewritten_shortcut() -> None:
    found = find_residuals(Stack(lambda k: odd_nets.Rewriting()), x())
    assert every(found, shortcut_source="rewritten", kind="identity")


def test_in_place_relu_in_the_branch_rewrites_nothing() -> None:
    assert every(find_residuals(ConvNet(), torch.randn(2, 3, 8, 8)), shortcut_source="same")


def test_broadcast() -> None:
    found = find_residuals(Stack(lambda k: odd_nets.Pooled(torch.add)), x())
    assert every(found, broadcast=True, shape=(2, 6, D))
    assert every(find_residuals(stack(torch.add), x()), broadcast=False)


def test_dtypes() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (first, *_) = find_residuals(stack(torch.add), x()).sites
    assert first.branch_dtype == "bfloat16"


# ---------------------------------------------------------------------- names and identity
def test_names_are_unique_paths() -> None:
    found = find_residuals(Stack(lambda k: Sandwich()), x())
    names = [site.name for site in found.sites]
    assert names == [f"blocks.{k}/{part}" for k in range(3) for part in ("attention", "mlp")]
    assert [site.module for site in found.sites] == [f"blocks.{k}" for k in (0, 0, 1, 1, 2, 2)]
    assert [site.index for site in found.sites] == list(range(6))
    assert all(site.source.startswith("nets.py:") for site in found.sites)


def test_calls_of_one_module_are_sites_of_their_own() -> None:
    found = find_residuals(Shared(), x())
    assert [site.occurrence for site in found.sites] == [0, 0, 1, 1, 2, 2]
    assert len({site.name for site in found.sites}) == 6
    assert [site.depth for site in found.sites] == list(range(6))


def test_parameters_of_a_branch() -> None:
    (site, *_) = find_residuals(stack(torch.add), x()).sites
    names = {
        "norm.weight",
        "norm.bias",
        "mlp.fc1.weight",
        "mlp.fc1.bias",
        "mlp.fc2.weight",
        "mlp.fc2.bias",
    }
    assert set(site.parameters) == {f"blocks.0.{name}" for name in names}


def test_parallel_branches_are_one_site() -> None:
    for inner_first in (True, False):
        found = find_residuals(Stack(lambda k, first=inner_first: Parallel(first)), x())
        assert len(found.sites) == 3
        assert every(found, parallel=not inner_first, nested=False)
        (site, *_) = found.sites
        parts = {name.split(".")[2] for name in site.parameters}
        assert parts == {"norm", "attention", "mlp"}


# ---------------------------------------------------------------------- streams and stages
def test_stages_by_shape() -> None:
    found = find_residuals(ConvNet("projection"), torch.randn(2, 3, 8, 8))
    assert [site.kind for site in found.sites] == ["identity", "projection", "identity"]
    assert [site.stage for site in found.sites] == [0, 1, 1]
    assert [site.depth for site in found.sites] == [0, 1, 2]
    assert len(found.streams) == 1


@pytest.mark.parametrize(
    ("factory", "placement", "link", "pure"),
    [
        (partial(Encoder, True), "pre-norm", (), True),
        (partial(Encoder, False), "post-norm", ("norm",), False),
    ],
    ids=["pre", "post"],
)
def test_encoder(
    factory: Callable[[], nn.Module], placement: str, link: tuple[str, ...], pure: bool
) -> None:
    found = find_residuals(factory(), torch.randint(0, 12, (2, 6)))
    assert [site.norm_placement for site in found.sites] == [placement] * 6
    assert [site.link for site in found.sites] == [(), *[link] * 5]
    assert [stream.pure for stream in found.streams] == [pure]
    assert found.streams[0].embedding_fed
    assert found.streams[0].sites == tuple(range(6))


@pytest.mark.parametrize(
    ("block", "placement"),
    [
        (lambda k: Sandwich(), "sandwich"),
        (lambda k: Residual(torch.add), "pre-norm"),
        (lambda k: Residual(torch.add, norm=False), "none"),
    ],
    ids=["sandwich", "pre", "none"],
)
def test_norm_placement(block: Callable[[int], nn.Module], placement: str) -> None:
    assert every(find_residuals(Stack(block, 2), x()), norm_placement=placement)


def test_post_activation() -> None:
    found = find_residuals(ConvNet(), torch.randn(2, 3, 8, 8))
    assert every(found, norm_placement="post-activation")
    assert [site.link for site in found.sites[1:]] == [("activation",), ("activation",)]


def test_two_towers_are_two_streams() -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (
                nn.ModuleList(Residual(torch.add) for _ in range(2)) for _ in range(2)
            )
            self.stem = nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.stem(x), self.stem(x.flip(0))
            for one, other in zip(self.a, self.b, strict=True):
                a, b = one(a), other(b)
            return a * b

    found = find_residuals(Towers(), x())
    by_stream = [[found.sites[i].module for i in stream.sites] for stream in found.streams]
    assert sorted(by_stream) == [["a.0", "a.1"], ["b.0", "b.1"]]


def test_nested_addition() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner, self.out = nn.LayerNorm(D), Residual(torch.add), nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.out(F.relu(self.inner(self.norm(x))))

    found = find_residuals(Stack(lambda k: Outer(), 2), x())
    nested = {site.module: site.nested for site in found.sites}
    assert nested == {
        "blocks.0": False,
        "blocks.0.inner": True,
        "blocks.1": False,
        "blocks.1.inner": True,
    }
    assert [site.module for site in found.block_level] == ["blocks.0", "blocks.1"]


# ---------------------------------------------------------------------- rows
@pytest.mark.parametrize(
    ("factory", "example", "rows"),
    [
        (partial(stack, torch.add), x, "token"),
        (ConvNet, partial(torch.randn, 2, 3, 8, 8), "sample"),
        (partial(stack, torch.add), partial(torch.randn, 2, D), "sample"),
        (partial(stack, torch.add), partial(torch.randn, 2, 3, 4, D), "token"),
        (partial(Encoder, True), partial(torch.randint, 0, 12, (2, 6)), "token"),
    ],
    ids=["tokens", "images", "vectors", "NHWC", "attention"],
)
def test_rows(factory: Callable[[], nn.Module], example: Callable[[], Tensor], rows: Site) -> None:
    assert every(find_residuals(factory(), example()), rows=rows)


def test_rows_of_a_token_mixer() -> None:
    assert every(find_residuals(Stack(lambda k: odd_nets.TokenMixer()), x()), rows="sample")


# ---------------------------------------------------------------------- not additions
def test_what_is_no_residual_addition() -> None:
    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bias = nn.Linear(D, D), nn.Parameter(torch.zeros(2, 6, D))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) + self.bias

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(D, D), Mlp(D)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x.flip(0)) + self.b(x.roll(1, 0)) * 0 + torch.randn_like(x)

    for model in (Bias(), nn.Sequential(nn.Linear(D, D), nn.GELU())):
        assert find_residuals(model, x()).sites == ()
    assert len(find_residuals(Sum(), x()).sites) <= 1  # two images of x: a projection at most


def test_inventory() -> None:
    found = find_residuals(stack(torch.add), x())
    rows = {row.name: (row.paths, row.additions) for row in found.modules}
    assert rows["Residual"] == (("blocks.0", "blocks.1", "blocks.2"), (1, 1, 1))
    assert rows["Mlp"][1] == (0, 0, 0)
    assert "Stack" in rows


def test_table_as_text() -> None:
    text = str(find_residuals(stack(torch.add), x()))
    assert "blocks.1" in text
    assert len(text.splitlines()) == 4


# ---------------------------------------------------------------------- leaves all as it was
def test_nothing_changes() -> None:
    model = ConvNet().train()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    find_residuals(model, torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert list(grads) == ["head.weight"]
    assert (grads["head.weight"] == 1).all()
    assert model.training


def test_a_shortcut_that_is_activated_first_is_no_identity() -> None:
    found = find_residuals(stack(lambda x, f: x.relu() + f), x())
    assert every(found, kind="projection", shortcut_path=("activation",))


def test_works_under_no_grad_and_in_eval_mode() -> None:
    model = Encoder(True).eval()
    with torch.no_grad():
        found = find_residuals(model, torch.randint(0, 12, (2, 6)))
    assert len(found.sites) == 6
    assert not model.training


# ---------------------------------------------------------------------- the monitor's own finding
SAME = [
    pytest.param(case, id=case.name)
    for case in (*image_nets.CASES, *nets.CASES)
    if case.name in ("in-place ResNet", "pre-norm", "post-norm", "sandwich norm", "ALBERT-shared")
]


@pytest.mark.parametrize("case", SAME)
def test_the_monitor_finds_the_same(case: Case) -> None:
    """In a training step, on the same input: every fact of every site."""
    model, args = case.build().train(), case.inputs()
    monitor = Monitor(model, preset="debug", on_error="raise")
    found = find_residuals(
        model, *[a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    )
    with monitor.step():
        case.loss(model(*args)).backward()
    captured = monitor.history.sites
    assert captured.sites == found.sites
    assert captured.streams == found.streams
