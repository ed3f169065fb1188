"""RES902: the first NaN or infinity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Site, SiteMap
from skipscope.rule import Gate, Hit, NotMeasurable, rule, short

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Steps = npt.NDArray[np.int64]

#: From these magnitudes on a number is rounded to infinity.
_OVERFLOW = {
    "float16": 65520.0,
    "bfloat16": (1 - 2.0**-9) * 2.0**128,
    "float32": (1 - 2.0**-25) * 2.0**128,
}


@rule(code="RES902", name="non-finite", severity="error", patience=3, explains=("RES201",))
def non_finite(
    sites: SiteMap,
    gate: Gate,
    max_shortcut: Table | None = None,
    max_branch: Table | None = None,
    max_sum: Table | None = None,
    grad_sum_norm: Table | None = None,
    loss: Table | None = None,
    skipped: Table | None = None,
    loss_scale: Table | None = None,
) -> Iterator[Hit]:
    """NaN or infinity in the forward, the loss or the backward, and where it comes from.

    What it sees:
        The first captured step with a number that is not finite, and the first place in it:

        * in the forward, by depth: the shortcut (it came in with x), the branch, or the sum of two
          finite operands (their sum, formed in float64, is beyond the range of their dtype)
        * a loss that is not finite although every sum is
        * in the backward, from the end: a gradient that is not finite although the forward is

        One finding, at once, never delayed by warm-up. Everything after the first place follows.

    Example:
        The largest element of each sum along a pre-norm transformer of 12 blocks (24
        sites) in the first step that is not finite, with a NaN from one branch and
        without (`python -m benchmarks.faults.draw RES902 --seed 4`).

                     largest |y| by site         first  largest     last
            sick     ▂▂▃▂▁▁▃▃▂▃▃▃▄▅▅·········     4.61     7.20      NaN
            healthy  ▂▂▃▂▁▁▃▃▂▃▃▃▄▅▅▆▆▆▇▇▇███     4.61     9.81     9.63
            scale    4.29 to 9.81, logarithmic
            found    the first number that is not finite (a point)

    Why it matters:
        One NaN in a forward is in every weight one step later. Which operand had it first tells
        what to look at: the stem, one branch, or the range of float16, in which 64000 + 4000 is
        infinite although both are finite and every sublayer alone looks healthy.
    What to try:
        * the sum: keep the stream in float32 or bfloat16, or scale the branches down
        * the branch: look for a division by zero, a log or root of 0, a softmax over nothing
        * the shortcut or the gradient: check the batch and the loss, lower the learning rate
    When it is wrong:
        Steps that an AMP scaler skipped are part of its search for a loss scale: at those, and for
        gradients under a loss scale, `patience` captures in a row are needed. With sparse captures
        the first step named is the first one captured, not the first that was.
    Thresholds:
        None: a number is finite or it is not.
    Source:
        huggingface/transformers issue 12225 and PR 19229, vllm-project/vllm PR 13232, ROCm/hip-ep
        PR 168 (58820 + 33760 at layer 35). Ranges: IEEE 754, round to nearest: float16 ends at
        65504 and becomes infinite from 65520 on.
    """
    if max_shortcut is None or max_branch is None or max_sum is None:
        extremes = None
        if loss is None:
            raise NotMeasurable("needs a residual addition or the loss")
    else:
        extremes = _Extremes(_in_order(sites, max_sum), max_shortcut, max_branch, max_sum)
    excused = _skipped(skipped)
    hits = [_loss(loss, extremes, excused, gate)]
    if extremes is not None:
        scaled = excused | _scaled(loss_scale)
        hits = [
            _forward(extremes, excused, gate),
            *hits,
            _backward(grad_sum_norm, extremes.sites, scaled, gate),
        ]
    found = [hit for hit in hits if hit is not None]
    if found:
        yield min(found, key=lambda hit: hit.first_step)  # of one step: the forward first


def _in_order(sites: SiteMap, table: Table) -> tuple[Site, ...]:
    """The sites as the forward passes them; those inside a branch come before its addition."""
    known = [site for site in sites.sites if site.name in table.columns]
    return tuple(sorted(known, key=lambda s: (s.stream, s.depth, not s.nested, s.index)))


def _skipped(table: Table | None) -> frozenset[int]:
    """Steps without an optimizer step."""
    if table is None:
        return frozenset()
    return frozenset(table.steps[table.values[:, 0] > 0].tolist())


def _scaled(table: Table | None) -> frozenset[int]:
    """Steps whose loss was scaled, or may have been."""
    if table is None:
        return frozenset()
    return frozenset(table.steps[table.values[:, 0] != 1].tolist())


def _first(bad: Mask, steps: Steps, excused: frozenset[int], patience: int) -> int | None:
    """The first row that counts; one of an excused step counts when it is not alone."""
    for row in np.flatnonzero(bad).tolist():
        lasting = len(bad) - row >= patience and bool(bad[row : row + patience].all())
        if lasting or int(steps[row]) not in excused:
            return int(row)
    return None


@dataclass(frozen=True)
class _Extremes:
    """Largest magnitudes of the operands and of the sum. Shape of each: (rows, sites)."""

    sites: tuple[Site, ...]
    shortcut: Table
    branch: Table
    total: Table

    def of(self, table: Table) -> Floats:
        at = [table.columns.index(site.name) for site in self.sites]
        return table.values[:, at]

    @property
    def bad(self) -> Mask:
        """Where the sum, as the model formed it, is not finite."""
        measured = ~self.total.missing[:, [self.total.columns.index(s.name) for s in self.sites]]
        limits = np.array([_limit(site) for site in self.sites])
        beyond = self.of(self.total) >= limits
        parts = [~np.isfinite(self.of(t)) for t in (self.shortcut, self.branch, self.total)]
        result: Mask = measured & (beyond | np.logical_or.reduce(parts))
        return result


def _limit(site: Site) -> float:
    """From where on the sum of two numbers of these dtypes is infinite."""
    left, right = (d.rpartition(".")[2] for d in (site.shortcut_dtype, site.branch_dtype))
    if "float64" in (left, right):
        return np.inf
    return _OVERFLOW.get(left if left == right else "float32", np.inf)


def _forward(extremes: _Extremes, excused: frozenset[int], gate: Gate) -> Hit | None:
    bad, steps = extremes.bad, extremes.total.steps
    row = _first(np.logical_or.reduce(bad, axis=1), steps, excused, gate.patience)
    if row is None:
        return None
    at = int(np.flatnonzero(bad[row])[0])
    site = extremes.sites[at]
    s, f, y = (float(extremes.of(t)[row, at])
               for t in (extremes.shortcut, extremes.branch, extremes.total))  # fmt: skip
    origin, text = _origin(site, s, f, y)
    return Hit(
        where=(site.name,),
        value=y,
        expectation="finite numbers everywhere",
        message=f"not finite at {site.name}, first seen at step {steps[row]}; origin: {text}",
        first_step=int(steps[row]),
        last_step=int(steps[np.flatnonzero(bad.any(axis=1))[-1]]),
        evidence={
            "origin": origin,
            "site": site.name,
            "largest |shortcut|": s,
            "largest |branch|": f,
            "largest |sum|": y,
            "sites": float(bad[row].sum()),
        },
        cause=f"{origin} at {site.source}" if site.source else origin,
    )


def _origin(site: Site, s: float, f: float, y: float) -> tuple[str, str]:
    if not np.isfinite(s):
        return "the shortcut", "the shortcut: it came in with x, before the first addition seen"
    if not np.isfinite(f):
        return "the branch", f"the branch, while the shortcut is finite (largest {short(s)})"
    dtype = site.shortcut_dtype.rpartition(".")[2]
    together = f"{s:.6g} and {f:.6g} at most, {y:.6g} together, beyond {dtype}"
    return "the sum", f"the sum of two finite operands: {together}"


def _loss(
    loss: Table | None, extremes: _Extremes | None, excused: frozenset[int], gate: Gate
) -> Hit | None:
    if loss is None:
        return None
    bad: Mask = ~np.isfinite(loss.values[:, 0]) & ~loss.missing[:, 0]
    row = _first(bad, loss.steps, excused, gate.patience)
    if row is None:
        return None
    step = int(loss.steps[row])
    captured = extremes is not None and step in extremes.total.steps
    place = "after the last addition, in the head or the loss" if captured else "not known"
    return Hit(
        where=("model",),
        value=float(loss.values[row, 0]),
        expectation="a finite loss",
        message=f"the loss is {loss.values[row, 0]} at step {step}; origin: {place}",
        first_step=step,
        last_step=int(loss.steps[np.flatnonzero(bad)[-1]]),
        evidence={"origin": place},
        cause=place if captured else "",
    )


def _backward(
    gradient: Table | None, ordered: Sequence[Site], excused: frozenset[int], gate: Gate
) -> Hit | None:
    if gradient is None:
        return None
    at = [gradient.columns.index(site.name) for site in ordered]
    bad: Mask = ~np.isfinite(gradient.values[:, at]) & ~gradient.missing[:, at]
    row = _first(np.logical_or.reduce(bad, axis=1), gradient.steps, excused, gate.patience)
    if row is None:
        return None
    last = int(np.flatnonzero(bad[row])[-1])
    site = ordered[last]
    from_end = last == len(ordered) - 1
    origin = "the head or the loss" if from_end else f"between {site.name} and the next sum"
    return Hit(
        where=(site.name,),
        value=float(gradient.values[row, at[last]]),
        expectation="a finite gradient where the forward is finite",
        message=f"the gradient at the sum of {site.name} is not finite at step "
        f"{gradient.steps[row]}, while the forward is; origin: the backward of {origin}",
        first_step=int(gradient.steps[row]),
        last_step=int(gradient.steps[np.flatnonzero(bad.any(axis=1))[-1]]),
        evidence={"origin": f"the backward of {origin}", "sites": float(bad[row].sum())},
        cause=f"the backward of {origin}",
    )
