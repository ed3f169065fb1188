"""RES403: steps that 16-bit weights round away."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from skipscope.history import Table
from skipscope.names import counted
from skipscope.records import Parameter
from skipscope.rule import Gate, Hit, listed, rule, short
from skipscope.rule.branch_updates import running
from skipscope.rule.matrices import columns, matrices
from skipscope.rule.medians import row_medians

_HALF = ("float16", "bfloat16")


@rule(
    code="RES403",
    name="lost-updates",
    severity="warning",
    patience=3,
    after_warmup=True,
    explains_overall=("RES001", "RES402"),
)
def lost_updates(
    changed_share: Table,
    parameters: tuple[Parameter, ...],
    lr: Table,
    gate: Gate,
    gradient_norm: Table | None = None,
    skipped: Table | None = None,
    *,
    changed: float = 0.5,
) -> Iterator[Hit]:
    """Weights in 16 bits lose most of their updates to rounding.

    What it sees:
        In trainable matrices whose own data type is float16 or bfloat16 (no float32 copy is what
        the optimizer moves): the share of elements that a step changed at all. Found where its
        median over these matrices is below `changed` for `patience` recorded steps in a row, after
        warm-up, at a learning rate above 0; matrices whose gradient is 0 are left out.

    Example:
        The share of elements that a step changed, median over all matrices, in the
        first 36 steps of a pre-norm transformer of 12 blocks (24 sites) at a learning
        rate of 3e-5, with its weights in bfloat16 and in float32
        (`python -m benchmarks.faults.draw RES403 --seed 1`).

                     share that moved                        first smallest     last
            sick     ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁   0.0444   0.0310   0.0312
            healthy  ████████████████████████████████████     1.00     1.00     1.00
            scale    0 to 1.00, linear
            found    below 0.5 for 3 steps

    Why it matters:
        bfloat16 keeps 8 bits of a number: a relative update under 2^-9 is always rounded away, and
        up to 2^-8 it depends on the number. At u of .001, which is usual, most elements do not
        move, and those that do move too far. The loss falls at first, because large steps survive,
        and stops early.
    What to try:
        * keep float32 weights and compute in bfloat16 (autocast), or an optimizer with a float32
          master copy
        * stochastic rounding or Kahan summation where memory forbids that
        * a larger learning rate only if u is below .001
    When it is wrong:
        With stochastic rounding few elements change in a step as well, and their mean is right:
        allow the finding with `ignore`. Elements whose gradient is exactly 0 (rows of dead units)
        count as unchanged. Weights in float32 are never judged.
    Thresholds:
        * changed: median share of elements that a step changed
    Source:
        Zamirai 2020 (arXiv 2010.06192) on bfloat16 training and its remedies; the limits 2^-9 and
        2^-8 are arithmetic. Tried on a 12-block MLP in bfloat16 over 60 steps:
        AdamW changed 1.3 % of the elements a step at a learning rate of 1e-5, 10 to 16 % at 1e-4
        and 72 to 96 % at 1e-2; SGD at 1e-2 19 to 44 %.
    """
    half = [p for p in matrices(parameters) if p.dtype in _HALF]
    if not half:
        return
    share = columns(changed_share, half)
    if gradient_norm is not None:
        gradient = columns(gradient_norm, half)
        share = np.where(np.nan_to_num(gradient) > 0, share, np.nan)
    real = lr.steps[running(lr, skipped).any(axis=1)]
    usual = row_medians(share)
    usual[~np.isin(changed_share.steps, real)] = np.nan
    shown, missing = (usual < changed)[:, None], np.isnan(usual)[:, None]
    for streak in gate.streaks(changed_share.steps, shown, missing):
        value = float(usual[streak.last])
        least = [p.name for p, v in zip(half, share[streak.last], strict=True) if v < changed]
        yield Hit(
            where=("model",) if len(least) > len(half) // 2 else tuple(least),
            value=value,
            expectation="nearly every element changed by a step",
            message=f"a step changes {short(100 * value)} % of the elements (median of "
            f"{counted(len(half), 'matrix', 'matrices')} in "
            f"{listed(sorted({p.dtype for p in half}))})",
            first_step=streak.steps[0],
            last_step=streak.steps[1],
            evidence={"changed share": value, "matrices": float(len(half))},
            cause="the update is smaller than the spacing of the numbers that hold the weights",
        )
