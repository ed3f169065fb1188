"""Unusual ways to write, call and run a model: the additions stay the same."""

from __future__ import annotations

import functools
import operator
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from skipscope.find import find_residuals
from skipscope.records import SiteMap
from tests.zoo.traps import Branch, Net, Step, method

D = 8


def kinds(found: SiteMap) -> list[str]:
    return [site.kind for site in found.block_level]


def find(step: Step, x: Tensor | None = None) -> SiteMap:
    return find_residuals(Net(step), torch.randn(2, 5, D) if x is None else x)


# ------------------------------------------------------------------ ways of writing the sum
def three(f: Branch, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = f.norm(x)
    return x, f.fc2(F.gelu(f.fc1(h))), torch.tanh(f.side(h))


WRITTEN: dict[str, Step] = {
    "iadd function": lambda f, x: torch.Tensor.__iadd__(f(x), x),
    "operator.add": lambda f, x: operator.add(x, f(x)),
    "operator.iadd": lambda f, x: operator.iadd(f(x), x),
    "reduce": lambda f, x: functools.reduce(operator.add, [x, f(x)]),
    "sum with start": lambda f, x: sum([f(x)], start=x),
    "out": lambda f, x: torch.add(x, f(x)).clone(),
    "alpha keyword": lambda f, x: x.add(f(x), alpha=0.3),
    "add_ with alpha": lambda f, x: f(x).add_(x, alpha=1),
    "negated twice": lambda f, x: x - (-f(x)),
    "rsub": lambda f, x: torch.rsub(f(x), x),
    "numpy style": lambda f, x: x.__add__(other=f(x)),
    "transposed": lambda f, x: (x.transpose(1, 2) + f(x).transpose(1, 2)).transpose(1, 2),
    "flattened": lambda f, x: (x.flatten(0, 1) + f(x).flatten(0, 1)).unflatten(0, x.shape[:2]),
    "rolled": lambda f, x: x.roll(1, 1) + f(x).roll(1, 1),
    "moved": lambda f, x: torch.movedim(torch.movedim(x, 0, 1) + f(x).movedim(0, 1), 1, 0),
    "permuted twice": lambda f, x: x.permute(2, 0, 1).permute(1, 2, 0) + f(x),
    "stacked once": lambda f, x: x + torch.stack([f(x)]).squeeze(0),
    "indexed": lambda f, x: x[:] + f(x)[...],
    "assigned": lambda f, x: assigned(f, x),
    "split and joined": lambda f, x: x + torch.cat(f(x).chunk(2, -1), -1),
    "padded and cut": lambda f, x: x + F.pad(f(x), (0, 0, 1, 1))[:, 1:-1],
    "double inside": lambda f, x: (x.double() + f(x).double()).float(),
    "where": lambda f, x: x + torch.where(torch.ones(5, 1) > 0, f(x), 0.0),
    "mask": lambda f, x: x + f(x).masked_fill(torch.zeros(5, 1) > 0, 0.0),
    "masked shortcut": lambda f, x: x.masked_fill(torch.zeros(5, 1) > 0, 0.0) + f(x),
    "mask with the type of x": lambda f, x: x + f(f(x) - 9.0 * torch.zeros(5, 1).type_as(x)),
    "mul in place": lambda f, x: x + f(x).mul_(0.5),
    "relu in place after": lambda f, x: F.relu_(x + f(x)),
    "complex": lambda f, x: x + f.fc2(torch.fft.ifft(torch.fft.fft(f(x), dim=1), dim=1).real),
    "einsum": lambda f, x: x + torch.einsum("bld,ed->ble", F.relu(x), f.fc1.weight),
    "matmul operator": lambda f, x: x + F.relu(x) @ f.fc1.weight,
    "func vmap": lambda f, x: x + torch.vmap(lambda row: F.relu(row @ f.fc1.weight))(x),
    "functional call": lambda f, x: (
        x + torch.func.functional_call(f, dict(f.named_parameters()), (x,))
    ),
    "jvp free autograd": lambda f, x: x + 0.1 * gradient(f, x),
}


def assigned(f: Branch, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:] = x + f(x)
    return out


def gradient(f: Branch, x: Tensor) -> Tensor:
    """An energy's gradient as the branch."""
    (slope,) = torch.autograd.grad(f(x).square().sum(), x, create_graph=True)
    return slope


@pytest.mark.parametrize("name", WRITTEN)
def test_written(name: str) -> None:
    assert kinds(find(WRITTEN[name])) == ["identity"] * 3


BRACKETS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "(x+a)+b": lambda x, a, b: (x + a) + b,
    "x+(a+b)": lambda x, a, b: x + (a + b),
    "(a+x)+b": lambda x, a, b: (a + x) + b,
    "a+(x+b)": lambda x, a, b: a + (x + b),
    "a+(b+x)": lambda x, a, b: a + (b + x),
    "(a+b)+x": lambda x, a, b: (a + b) + x,
    "sum": lambda x, a, b: sum([a, x, b]),
    "reduce": lambda x, a, b: functools.reduce(torch.add, [x, a, b]),
    "in place": lambda x, a, b: (a + x).add_(b),
}


@pytest.mark.parametrize("name", BRACKETS)
def test_three_way_sum_is_one_site(name: str) -> None:
    found = find(lambda f, x: BRACKETS[name](*three(f, x)))
    assert kinds(found) == ["identity"] * 3
    assert len(found.sites) == 3
    assert len(found.streams) == 1
    for site in found.sites:
        names = {parameter.split(".")[-2] for parameter in site.parameters}
        assert {"fc1", "fc2", "side"} <= names


def test_four_way_sum_is_one_site() -> None:
    found = find(lambda f, x: x + f(x) + torch.tanh(f.side(x)) + torch.sigmoid(f.fc1(x)))
    assert kinds(found) == ["identity"] * 3


def test_linear_third_term_belongs_to_the_branch() -> None:
    found = find(lambda f, x: x + f(x) + f.side(x))
    assert kinds(found) == ["identity"] * 3
    assert [site.parallel for site in found.sites] == [True] * 3
    assert len(found.sites) == 3


def test_parallel_branch_with_a_residual_inside() -> None:
    def step(f: Branch, x: Tensor) -> Tensor:
        h = f.fc1(x)
        return (x + torch.tanh(f.side(x))) + f.fc2(h + torch.relu(f.normed(h)))

    found = find(step)
    assert kinds(found) == ["identity"] * 3
    assert sum(site.nested for site in found.sites) == 3
    assert len(found.streams) == 1


# ------------------------------------------------------------------ ways of building a model
class Sub(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def sub() -> nn.Module:
    parts = [nn.LayerNorm(D), nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D)]
    return Sub(*parts)


class Recursive(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.branch = Branch()
        self.next = Recursive(depth - 1) if depth > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.branch(x)
        return y if self.next is None else self.next(y)


class Hidden(nn.Module):
    """Blocks called by `.forward` from plain functions, by a generator, or by recursion."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.stem, self.how = nn.Linear(D, D), how
        self.parts = nn.ModuleList(Branch() for _ in range(3))
        self.plain = [lambda x, p=p: x + p.forward(x) for p in self.parts]

    def states(self, x: Tensor) -> Iterator[Tensor]:
        for part in self.parts:
            x = x + part(x)
            yield x

    def recurse(self, x: Tensor, k: int) -> Tensor:
        return x if k == len(self.parts) else self.recurse(x + self.parts[k](x), k + 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.how == "generator":
            return list(self.states(x))[-1]
        if self.how == "recursion":
            return self.recurse(x, 0)
        return functools.reduce(lambda h, block: block(h), self.plain, x)


@dataclass
class Output:
    hidden: Tensor
    cache: Any = None


class Dataclasses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(D, D)
        self.parts = nn.ModuleList(Branch() for _ in range(3))

    def block(self, *, state: Output, part: nn.Module) -> Output:
        return Output(hidden=state.hidden + part(state.hidden))

    def forward(self, *, x: Tensor, extra: Any = None) -> Output:
        state = Output(self.stem(x))
        for part in self.parts:
            state = self.block(state=state, part=part)
        return state


class Iterated(nn.Module):
    """Control flow by data, and one cell called several times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.cell = nn.Linear(D, D), Branch()

    def forward(self, x: Tensor) -> Tensor:
        x, rounds = self.stem(x), 0
        while rounds < 3 or (x.norm() < 0 and rounds < 9):
            x, rounds = x + self.cell(x), rounds + 1
        return x


BUILT: dict[str, Callable[[], nn.Module]] = {
    "sequential subclass": lambda: nn.Sequential(nn.Linear(D, D), sub(), sub(), sub()),
    "recursive": lambda: nn.Sequential(nn.Linear(D, D), Recursive(3)),
    "functions": lambda: Hidden("functions"),
    "generator": lambda: Hidden("generator"),
    "recursion": lambda: Hidden("recursion"),
    "iterated": Iterated,
    "wrapped": lambda: nn.Sequential(nn.ModuleDict({"a": Net(method)})["a"]),
    "compiled part": lambda: nn.Sequential(
        nn.Linear(D, D), *[torch.compile(sub(), backend="eager") for _ in range(3)]
    ),
    "compiled": lambda: torch.compile(Net(method), backend="eager"),
    "frozen": lambda: Net(method).requires_grad_(False),
    "eval": lambda: Net(method).eval(),
    "spectral norm": lambda: parametrised(nn.utils.parametrizations.spectral_norm),
    "orthogonal": lambda: parametrised(nn.utils.parametrizations.orthogonal),
    "old weight norm": lambda: parametrised(nn.utils.weight_norm),
    "pruned": lambda: parametrised(lambda m: prune.l1_unstructured(m, "weight", 0.5)),
}


def parametrised(change: Callable[[nn.Module], Any]) -> nn.Module:
    model = Net(method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in model.blocks:
            change(block.branch.fc1)
            change(block.branch.fc2)
    return model


@pytest.mark.parametrize("name", BUILT)
def test_built(name: str) -> None:
    torch._dynamo.reset()
    found = find_residuals(BUILT[name](), torch.randn(2, 5, D))
    assert kinds(found) == ["identity"] * 3
    assert len(found.streams) == 1
    assert len({site.name for site in found.sites}) == 3


def test_keywords_only() -> None:
    assert kinds(find_residuals(Dataclasses(), x=torch.randn(2, 5, D))) == ["identity"] * 3


@pytest.mark.parametrize("shape", [(1, D), (7, D), (1, 1, D), (2, 3, 4, 5, D)])
def test_shapes(shape: tuple[int, ...]) -> None:
    assert kinds(find_residuals(Net(method), torch.randn(shape))) == ["identity"] * 3


def test_volumes() -> None:
    class Block3d(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv3d(4, 4, 3, padding=1), nn.BatchNorm3d(4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.norm(self.conv(F.relu(x)))

    model = nn.Sequential(nn.Conv3d(1, 4, 1), Block3d(), Block3d())
    x = torch.randn(2, 1, 4, 4, 4).to(memory_format=torch.channels_last_3d)
    assert kinds(find_residuals(model, x)) == ["identity"] * 2


@pytest.mark.parametrize("shape", [(4, D), (2, 5, D), (2, 3, 5, D)])
def test_projection_of_a_raw_input(shape: tuple[int, ...]) -> None:
    """`linear` of three axes is a view of a product: the data is missing below the view."""

    class Projecting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch, self.side = Branch(2 * D), nn.Linear(2 * D, 2 * D)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.cat([x, (x > 0).to(x.dtype)], -1)
            return self.branch(x) + self.side(x)

    assert kinds(find_residuals(Projecting(), torch.randn(shape))) == ["projection"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    found = find_residuals(Net(method).to(dtype), torch.randn(2, 5, D, dtype=dtype))
    assert kinds(found) == ["identity"] * 3
    assert found.sites[0].shortcut_dtype == str(dtype).removeprefix("torch.")


def test_autocast() -> None:
    model = Net(method)
    with torch.autocast("cpu", torch.bfloat16):
        found = find_residuals(model, torch.randn(2, 5, D))
    assert kinds(found) == ["identity"] * 3


def test_checkpoint_sequential() -> None:
    class Long(Net):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint_sequential(list(self.blocks), 2, self.stem(x), use_reentrant=False)

    assert kinds(find_residuals(Long(method), torch.randn(2, 5, D))) == ["identity"] * 3


def test_checkpointed_branch_counts() -> None:
    for reentrant in (True, False):
        found = find(lambda f, x, r=reentrant: x + checkpoint(f, x, use_reentrant=r))
        assert kinds(found) == ["identity"] * 3


def test_custom_function_as_branch() -> None:
    class Bespoke(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * grad

    assert kinds(find(lambda f, x: x + Bespoke.apply(x))) == ["identity"] * 3


def test_no_grad_call_from_outside() -> None:
    model = Net(method)
    with torch.no_grad():
        found = find_residuals(model, torch.randn(2, 5, D))
    assert kinds(found) == ["identity"] * 3


def test_inference_tensors_and_frozen_inputs() -> None:
    with torch.inference_mode():
        x = torch.randn(2, 5, D)
    found = find_residuals(Net(method, stem=False).requires_grad_(False), x)
    assert kinds(found) == ["identity"] * 3


def test_nested_tensor_does_not_fail() -> None:
    class Jagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.fc = nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return x + F.relu(self.fc(x))

    x = torch.nested.nested_tensor([torch.randn(3, D), torch.randn(5, D)], layout=torch.jagged)
    assert kinds(find_residuals(Jagged(), x)) == ["identity"]


def test_empty_and_integer_inputs() -> None:
    assert kinds(find_residuals(Net(method), torch.randn(0, 5, D))) == ["identity"] * 3


def test_complex_activations_do_not_fail() -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(D, D, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            z = torch.complex(x, x) @ self.weight
            return (z + torch.tanh(z @ self.weight)).abs()

    find_residuals(Complex(), torch.randn(2, 5, D))


def test_a_step_calls_its_model_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(method)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.net(a) - self.net(b)

    found = find_residuals(Twice(), torch.randn(2, 5, D), torch.randn(2, 5, D))
    assert len(found.block_level) == 6
    assert len(found.streams) == 2
    assert len({site.name for site in found.sites}) == 6


# ------------------------------------------------------------------ nothing is changed
class Stateful(nn.Module):
    """Draws from every generator, has norms with statistics, replaces a buffer by a larger one."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.norm = Net(method), nn.BatchNorm1d(5)
        self.register_buffer("cache", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.cache = torch.randn(3)
        noise = random.random() * np.random.rand()  # noqa: NPY002
        return self.net(self.norm(x) * noise)


def generators() -> tuple[Any, ...]:
    legacy = np.random.get_state()[1].tolist()  # noqa: NPY002
    return random.getstate(), legacy, torch.get_rng_state().tolist()


def test_random_state_and_buffers_stay() -> None:
    model = Stateful()
    model.net.stem.weight.grad = torch.ones(D, D)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(2, 5, D)
    states = generators()
    find_residuals(model, x)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert states == generators()
    assert torch.equal(model.net.stem.weight.grad, torch.ones(D, D))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "net.stem.weight")


def test_an_earlier_graph_can_still_go_backward() -> None:
    model = nn.Sequential(nn.BatchNorm1d(5), Net(method)).eval()
    x = torch.randn(2, 5, D)
    loss = model(x).sum()
    find_residuals(model, x)
    loss.backward()


# ------------------------------------------------------------------ what is listed and not measured
def listed(step: Step) -> set[str]:
    return {unseen.what for unseen in find(step).unseen}


def test_gates_are_listed() -> None:
    def highway(f: Branch, x: Tensor) -> Tensor:
        t = torch.sigmoid(f.side(x))
        return t * f(x) + (1 - t) * x

    assert listed(highway) == {"gate"}


def test_rotation_of_a_written_out_norm_is_no_gate() -> None:
    def rotated(f: Branch, x: Tensor) -> Tensor:
        q = f.fc1(x)
        q = f.weight * (q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + 1e-6))
        return x + f.fc2(q * 0.6 + q.roll(1, -1) * 0.8)

    assert listed(rotated) == set()


def test_indexed_sums_are_listed() -> None:
    def routed(f: Branch, x: Tensor) -> Tensor:
        chosen = torch.tensor([0, 2])
        return x.index_add(1, chosen, f(x[:, chosen]))

    assert listed(routed) == {"fused"}
