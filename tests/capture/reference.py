"""The independent arithmetic: what the monitor must show, computed by hand in float64.

A *walk* redoes a model's forward out of place and calls `Walk.add` for every residual addition. The
operands are copied as float64 before the addition; gradients come from `torch.autograd.grad` on the
walk's own graph. Nothing here imports the package's arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

BAR = 1e-4  #: of design decision 3
FORWARD = (
    "branch_ratio",
    "branch_ratio_median",
    "cosine",
    "growth",
    "block_influence",
    "row_alignment",
    "rms_shortcut",
    "rms_branch",
    "rms_sum",
    "rms_input",
    "mean_shortcut",
    "mean_branch",
    "mean_sum",
    "mean_input",
    "std_shortcut",
    "std_branch",
    "std_sum",
    "std_input",
    "max_shortcut",
    "max_branch",
    "max_sum",
    "max_input",
)
BACKWARD = (
    "grad_sum_norm",
    "grad_input_norm",
    "gradient_gain",
    "branch_gradient",
    "identity_gradient",
    "gradient_branch_ratio",
    "gradient_cosine",
    "shortcut_presence",
)

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
            for t, c in zip((s, f), factors, strict=True)
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
        "row_alignment": alignment(y, rows),
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


def alignment(y: Tensor, rows: str) -> float | None:
    """Mean cosine of two tokens of one sample, or of two samples, by every pair there is."""
    cosines = []
    for group in y if rows == "token" and y.dim() > 2 else [y]:
        unit = [row / row.norm() for row in by_rows(group, rows) if row.norm() != 0]
        cosines += [float(a @ b) for k, a in enumerate(unit) for b in unit[:k]]
    return sum(cosines) / len(cosines) if cosines else None


def backward_numbers(taps: Sequence[Tap], loss: Tensor) -> list[Numbers]:
    """Every backward measure of every tap, by `autograd.grad` on the walk's graph."""
    ends = gradients(loss, [t for tap in taps for t in (tap.y, tap.x)])
    return [_backward(*given) for given in zip(taps, ends[::2], ends[1::2], strict=True)]


def gradients(loss: Tensor, tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradient at each tensor; None where none arrives."""
    held = [t for t in tensors if t.requires_grad]
    found = torch.autograd.grad(loss, held, retain_graph=True, allow_unused=True) if held else ()
    by_id = {id(t): g for t, g in zip(held, found, strict=True)}
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
