"""The independent arithmetic: what the monitor must show, computed by hand in float64.

A *walk* redoes a model's forward out of place and calls `Walk.add` for every residual addition. The
operands are copied as float64 before the addition; gradients come from `torch.autograd.grad` on the
walk's own graph. Nothing here imports the package's arithmetic.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from skipscope.history import History
from skipscope.monitor import Monitor

BAR = 1e-4  #: of design decision 3
FORWARD = (
    "branch_ratio branch_ratio_median cosine growth block_influence "
    "rms_shortcut rms_branch rms_sum rms_input mean_shortcut mean_branch mean_sum mean_input "
    "std_shortcut std_branch std_sum std_input max_shortcut max_branch max_sum max_input"
).split()
BACKWARD = (
    "grad_sum_norm grad_input_norm gradient_gain branch_gradient identity_gradient "
    "gradient_branch_ratio gradient_cosine shortcut_presence"
).split()
PARAMETER = ("weight_norm", "gradient_norm", "update_norm", "update_ratio")

#: What a table must hold: a number, or None where it must be marked missing.
Numbers = dict[str, float | None]


@dataclass
class Tap:
    """One residual addition of a walk."""

    module: str | None
    x: Tensor
    short: Tensor  #: the shortcut as it is added
    branch: Tensor  #: the branch as it is added
    y: Tensor
    rows: Literal["token", "sample"]
    kind: str
    scale: float | None  #: s = scale * x; None where no scalar does it
    forward: Numbers
    nested: bool = False


@dataclass
class Walk:
    """Collects the additions of a walk, in order."""

    taps: list[Tap] = field(default_factory=list)

    def add(
        self,
        module: str | None,
        x: Tensor,
        s: Tensor,
        f: Tensor,
        *,
        how: Callable[[Tensor, Tensor], Tensor] = torch.add,
        factors: tuple[float, float] = (1.0, 1.0),
        y: Tensor | None = None,
        **tells: Any,
    ) -> Tensor:
        """`how(s, f)`, which is `factors[0]*s + factors[1]*f`; `y` where it was added already."""
        copies = [t.detach().double().clone() for t in (x, s, f)]
        made = how(s, f) if y is None else y
        self.note(module, x, s, f, made, copies, factors, **tells)
        return made

    def note(
        self,
        module: str | None,
        x: Tensor,
        s: Tensor,
        f: Tensor,
        y: Tensor,
        copies: Sequence[Tensor],
        factors: tuple[float, float],
        *,
        rows: Literal["token", "sample"] = "token",
        kind: str = "identity",
        scale: float | None = 1.0,
        nested: bool = False,
    ) -> None:
        short, branch = (
            torch.broadcast_to(t if c == 1 else t * c, y.shape).to(y.dtype)
            for t, c in zip((s, f), factors)
        )
        x64, s64, f64 = copies
        forward = forward_numbers(x64, s64 * factors[0], f64 * factors[1], rows, kind)
        self.taps.append(Tap(module, x, short, branch, y, rows, kind, scale, forward, nested))


def norm(t: Tensor) -> float:
    return float(t.detach().double().square().sum().sqrt())


def quotient(a: float, b: float) -> float | None:
    """a/b; infinite where only b is 0, missing where both are."""
    if b == 0:
        return None if a == 0 else math.copysign(math.inf, a)
    return a / b


def levels(name: str, t: Tensor) -> Numbers:
    mean = t.mean()
    return {
        f"rms_{name}": float(t.square().mean().sqrt()),
        f"mean_{name}": float(mean),
        f"std_{name}": float((t - mean).square().mean().sqrt()),
        f"max_{name}": float(t.abs().max()),
    }


def by_rows(t: Tensor, rows: str) -> Tensor:
    return t.reshape(-1, t.shape[-1]) if rows == "token" else t.reshape(t.shape[0], -1)


def forward_numbers(x: Tensor, s: Tensor, f: Tensor, rows: str, kind: str) -> Numbers:
    """Every forward measure, from float64 operands with their factors applied."""
    s, f = torch.broadcast_tensors(s, f)
    y = s + f
    start = s if kind == "identity" else x  # of the same elements, perhaps in another shape
    numbers: Numbers = {
        "branch_ratio": quotient(norm(f), norm(s)),
        "growth": quotient(norm(y), norm(s)),
        "cosine": quotient(float((s * f).sum()), norm(s) * norm(f)),
        "branch_ratio_median": median_ratio(by_rows(s, rows), by_rows(f, rows)),
        "block_influence": influence(start, y, rows),
    }
    for name, t in (("shortcut", s), ("branch", f), ("sum", y), ("input", x)):
        numbers |= levels(name, t)
    return numbers


def median_ratio(s: Tensor, f: Tensor) -> float | None:
    if not f.any():
        return 0.0
    lengths = [t.square().sum(1).sqrt() for t in (f, s)]
    held = (lengths[0] > 0) & (lengths[1] > 0)
    ratios = sorted((lengths[0][held] / lengths[1][held]).tolist())
    if not ratios:
        return None if all(bool(t.isfinite().all()) for t in (s, f)) else math.nan
    half = len(ratios) // 2
    return ratios[half] if len(ratios) % 2 else (ratios[half - 1] + ratios[half]) / 2


def influence(x: Tensor, y: Tensor, rows: str) -> float | None:
    """1 - mean cosine as half the squared distance of directions, which does not cancel."""
    if x.shape != y.shape:
        return None
    a, b = by_rows(x, rows), by_rows(y, rows)
    sizes = a.norm(dim=1), b.norm(dim=1)
    held = (sizes[0] > 0) & (sizes[1] > 0)
    apart = a[held] / sizes[0][held, None] - b[held] / sizes[1][held, None]
    return float(apart.square().sum() / 2 / len(a))


def backward_numbers(taps: Sequence[Tap], loss: Tensor) -> list[Numbers]:
    """Every backward measure of every tap, by `autograd.grad` on the walk's graph."""
    ends = gradients(loss, [t for tap in taps for t in (tap.y, tap.x)])
    return [_backward(*given) for given in zip(taps, ends[::2], ends[1::2])]


def gradients(loss: Tensor, tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradient at each tensor; None where none arrives."""
    held = [t for t in tensors if t.requires_grad]
    found = torch.autograd.grad(loss, held, retain_graph=True, allow_unused=True) if held else ()
    by_id = {id(t): g for t, g in zip(held, found)}
    return [by_id.get(id(t)) for t in tensors]


def _backward(tap: Tap, gy: Tensor | None, gx: Tensor | None) -> Numbers:
    numbers: Numbers = dict.fromkeys(BACKWARD)
    if gy is None:
        return numbers
    numbers["grad_sum_norm"] = norm(gy)
    if gx is None:
        return numbers
    parts = [_part(t, tap.x, gy) for t in (tap.short, tap.branch)]
    gi, gb, gx, gy = (t.detach().double() for t in (*parts, gx, gy))
    numbers |= {
        "grad_input_norm": norm(gx),
        "gradient_gain": quotient(norm(gx), norm(gy)),
        "branch_gradient": norm(gb),
        "identity_gradient": norm(gi),
        "gradient_branch_ratio": quotient(norm(gb), norm(gi)),
        "gradient_cosine": quotient(float((gi * gb).sum()), norm(gi) * norm(gb)),
    }
    if tap.kind != "projection" and tap.scale is not None and gx.shape == gy.shape:
        presence = quotient(float((gx * gy).sum()), norm(gy) ** 2)
        numbers["shortcut_presence"] = None if presence is None else presence / tap.scale
    return numbers


def _part(output: Tensor, x: Tensor, gy: Tensor) -> Tensor:
    """What flows from `output` to x when gy arrives; 0 where nothing does."""
    if not output.requires_grad:
        return torch.zeros_like(x)
    (part,) = torch.autograd.grad(output, x, gy, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if part is None else part


# ---------------------------------------------------------------------- one step, twice
@dataclass
class Case:
    """A net, its data, and its walk. `walk(model, taps, *args)` returns what the model returns."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    walk: Callable[..., Any]
    call: Callable[..., Any] = lambda model, *args: model(*args)
    loss: Callable[[Any], Tensor] = lambda out: (out.float() * _weights(out)).sum()
    autocast: torch.dtype | None = None
    lr: float = 0.05
    excused: Mapping[str, str] = field(default_factory=dict)  #: measure -> why it is left out


def _weights(out: Tensor) -> Tensor:
    """A fixed direction, so that no gradient vanishes by symmetry (as a norm's mean does)."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(out.shape, generator=generator) / out.shape[0]


@dataclass
class Outcome:
    """What both forwards gave."""

    history: History
    walk: Walk
    loss: Tensor
    expected: list[Numbers]  #: one a tap
    parameters: dict[str, Numbers]


def run(case: Case, seed: int = 0) -> Outcome:
    """The walk on a copy, then one real training step under the monitor."""
    torch.manual_seed(seed)
    model = case.build().train()
    args = case.inputs()
    other = copy.deepcopy(model)
    walk = Walk()
    torch.manual_seed(seed + 1)
    with autocast(case):
        loss = case.loss(case.walk(other, walk, *copied(args)))
    walk.taps.sort(key=lambda tap: tap.nested)  # the registry counts the block level first
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=case.lr)
    monitor = Monitor(model, optimizer, preset="debug", on_error="raise")
    before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    torch.manual_seed(seed + 1)
    with monitor.step():
        with autocast(case):
            own = case.loss(case.call(model, *args))
        own.backward()
        optimizer.step()
    assert torch.allclose(own, loss, rtol=1e-6, equal_nan=True), "the walk is not the model"
    return Outcome(
        monitor.history,
        walk,
        loss,
        expected_numbers(walk, loss),
        parameter_numbers(model, other, before, loss),
    )


def expected_numbers(walk: Walk, loss: Tensor) -> list[Numbers]:
    backward = backward_numbers(walk.taps, loss)
    return [{**tap.forward, **numbers} for tap, numbers in zip(walk.taps, backward)]


def copied(args: Sequence[Any]) -> list[Any]:
    return [a.clone() if isinstance(a, Tensor) else a for a in args]


def autocast(case: Case) -> torch.autocast:
    return torch.autocast("cpu", dtype=case.autocast, enabled=case.autocast is not None)


def parameter_numbers(
    model: nn.Module, other: nn.Module, before: Mapping[str, Tensor], loss: Tensor
) -> dict[str, Numbers]:
    """Weights, gradients of the walk, and the real difference of the weights."""
    numbers: dict[str, Numbers] = {}
    arrived = gradients(loss, list(other.parameters()))
    for (name, p), gradient in zip(model.named_parameters(), arrived):
        w = before[name]
        moved = norm(p.detach().double() - w)
        floor = 0.1 * math.sqrt(w.numel() / math.prod(w.shape[1:]))
        held = p.requires_grad  # else it is in no optimizer
        numbers[name] = {
            "weight_norm": norm(w) if held else None,
            "gradient_norm": None if gradient is None else norm(gradient),
            "update_norm": moved if held else None,
            "update_ratio": moved / max(norm(w), floor) if held else None,
        }
    return numbers


# ---------------------------------------------------------------------- comparing
def error(name: str, got: float, wanted: float, numbers: Numbers) -> float:
    """How far off, in units of the bar's own scale."""
    if not math.isfinite(wanted):
        return 0.0 if got == wanted or (math.isnan(got) and math.isnan(wanted)) else math.inf
    scale = abs(wanted)
    if name.startswith("mean_"):
        scale = numbers[name.replace("mean_", "rms_")] or 0.0
    elif name in ("cosine", "gradient_cosine"):
        scale = 1.0
    if got == wanted:
        return 0.0
    return abs(got - wanted) / scale if scale else math.inf


def errors(outcome: Outcome, step: int = -1) -> dict[tuple[str, str], float]:
    """(measure, site or parameter) -> error; infinite where one has a number and the other none."""
    history = outcome.history
    sites = history.sites.sites
    assert len(sites) == len(outcome.walk.taps), f"found\n{history.sites}"
    for site, tap in zip(sites, outcome.walk.taps):
        assert tap.module is None or site.module == tap.module, f"{site.module} is not {tap.module}"
        assert (site.kind, site.nested) == (tap.kind, tap.nested), site
    found: dict[tuple[str, str], float] = {}
    for name in (*FORWARD, *BACKWARD):
        table = history.table(name)
        for column, numbers in enumerate(outcome.expected):
            got = None if table.missing[step, column] else float(table.values[step, column])
            found[name, table.columns[column]] = _difference(name, got, numbers[name], numbers)
    for name in PARAMETER:
        table = history.table(name)
        for column, parameter in enumerate(table.columns):
            numbers = outcome.parameters[parameter]
            got = None if table.missing[step, column] else float(table.values[step, column])
            found[name, parameter] = _difference(name, got, numbers[name], numbers)
    return found


def _difference(name: str, got: float | None, wanted: float | None, numbers: Numbers) -> float:
    if got is None or wanted is None:
        return 0.0 if got is wanted else math.inf
    return error(name, got, wanted, numbers)


def check(case: Case, outcome: Outcome | None = None) -> Outcome:
    """Asserts that every measure of every site and parameter is within the bar."""
    outcome = run(case) if outcome is None else outcome
    off = {
        key: value
        for key, value in errors(outcome).items()
        if not value <= BAR and key[0] not in case.excused
    }
    assert not off, "\n".join(describe(outcome, *key, value) for key, value in off.items())
    return outcome


def describe(outcome: Outcome, name: str, column: str, value: float) -> str:
    table = outcome.history.table(name)
    at = table.columns.index(column)
    wanted = outcome.parameters[column][name] if name in PARAMETER else outcome.expected[at][name]
    got = "missing" if table.missing[-1, at] else table.values[-1, at]
    return f"{name} at {column}: {got}, should be {wanted} (error {value:.2g})"
