"""RES402: steps too small to change anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Parameter, Run, Severity
from skipscope.rule import Gate, Hit, NotMeasurable, either, listed, rule, short
from skipscope.rule.branch_updates import running
from skipscope.rule.matrices import columns, matrices, of_own_size
from skipscope.rule.medians import row_medians

Floats = npt.NDArray[np.float64]


@rule(
    code="RES402",
    name="update-too-cold",
    severity="warning",
    patience=3,
    after_warmup=True,
    explains_overall=("RES001", "RES205"),
)
def update_too_cold(
    update_ratio: Table,
    parameters: tuple[Parameter, ...],
    run: Run,
    lr: Table,
    gate: Gate,
    block_update_ratio: Table | None = None,
    skipped: Table | None = None,
    weight_rms: Table | None = None,
    *,
    cold: float = 1e-6,
    cool: float = 1e-5,
    lasting: int = 100,
    debug: int = 20,
    rise: float = 1.5,
    share: float = 0.01,
) -> Iterator[Hit]:
    """The optimizer's steps are so small that the weights stay where they are.

    What it sees:
        The median of u = ||dW|| / ||W|| over all trainable matrices and convolutions, at the
        recorded optimizer steps after warm-up. Matrices that start at 0, or so small that u is
        held against .1/sqrt(fan_in) instead, are left out, unless there are no others.

        * below `cold` in all of them, over `lasting` steps (`debug` with the debug preset), and not
          waking up: per learning rate its last third is less than `rise` times its first, or not
          even the fastest matrix passes `cool` in that third
        * below `cool` in the same way, over `lasting` steps: information
        * one block (or several) below `share` of the median block over `lasting` steps:
          information, which RES301 explains where gradients are out of balance

        A run that was warmer once, at a larger learning rate or before it converged, is silent.

    Example:
        The median u over all matrices in the first 36 steps of a pre-norm transformer
        of 12 blocks (24 sites), with AdamW at a learning rate of 1e-8 and of .001
        (`python -m benchmarks.faults.draw RES402 --seed 1`).

                     median u by step                        first smallest     last
            sick     ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ 1.03e-07 6.68e-08 6.83e-08
            healthy  █████████▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇  0.00983  0.00175  0.00200
            scale    6.68e-08 to 0.00983, logarithmic
            found    below 1e-06 for 100 steps (20 with the debug preset)

    Why it matters:
        Nothing else shows it: in a run with a learning rate of 1e-6 the branch ratio, the growth
        and the gradient ratio were perfect and u was 3e-7. At that rate a weight needs millions of
        steps to change by its own size, and in 16-bit weights most such steps round to nothing.
    What to try:
        * raise the learning rate: by about .001 / u
        * look for a factor that is applied twice: in a schedule, a loss scale or a mean over a mean
        * if it is one block only, look at its gradient first (RES301)
    When it is wrong:
        Warm-up and steps with learning rate 0 are left out. Fine-tuning at small rates stays above
        1e-5 (AdamW at 1e-5 on weights of .02: about 1e-4). Branches behind a gate that starts at 0
        move slowly at first under SGD: u then rises by factors. Such a rise is silent where the
        matrices before no gate, as the head, already move: it is theirs that tells the rate.
    Thresholds:
        * cold: median u, warning
        * cool: median u, information
        * lasting: steps
        * debug: steps with the debug preset, for the warning
        * rise: last third of u / lr over its first: at least this is waking up
        * share: one block against the median block
    Source:
        Measured in small nets: cold 3e-7, healthy minimum of the median from step 2 on 2.5e-5; a
        SkipInit ResNet under SGD rose from 6e-8 to 6e-6 in 57 steps and learned, hence `rise`.
        Gates that start at 0 let u rise in cold nets too (adaLN-zero at a learning rate of 3e-8:
        1e-7 to 2e-7 in 100 steps). In 12 such nets the fastest matrix came to 4.5e-7 at most, in 17
        healthy nets with a rise to 4.9e-4 at least; the medians alone do not tell them apart: a
        zero-gamma ResNet of 48 blocks under SGD rose from 2.4e-7 to 4.3e-7 in 50 steps.
        AdamW's update: Kosson 2023 (arXiv 2305.17212); CS231n notes give 1e-3 as usual.
    """
    chosen = of_own_size(matrices(parameters), weight_rms)
    real = lr.steps[running(lr, skipped).any(axis=1)]
    rows = (update_ratio.steps >= gate.start) & np.isin(update_ratio.steps, real)
    steps = update_ratio.steps[rows]
    each = columns(update_ratio, chosen)[rows]
    rates = lr.values[np.searchsorted(lr.steps, steps)].max(axis=1)
    yield from either(
        _whole(steps, each, rates, run, (cold, cool, lasting, debug), rise, gate),
        _blocks(block_update_ratio, parameters, gate, lasting, share),
    )


def _wakes(each: Floats, per_rate: Floats, rise: float, moving: float) -> bool:
    """Whether the median u rises, in a net of which some matrix moves already.

    Per learning rate: a schedule that ends takes u down with it, and wakes nothing.
    """
    third = max(len(per_rate) // 3, 1)
    first, last = float(np.median(per_rate[:third])), float(np.median(per_rate[-third:]))
    return last > rise * first and float(np.nanmax(row_medians(each[-third:].T))) > moving


def _whole(
    steps: npt.NDArray[np.int64],
    each: Floats,
    rates: Floats,
    run: Run,
    limits: tuple[float, float, int, int],
    rise: float,
    gate: Gate,
) -> Iterator[Hit]:
    cold, cool, lasting, debug = limits
    known = ~np.isnan(each).all(axis=1)
    steps, each, rates = steps[known], each[known], rates[known]
    u = row_medians(each)
    span = int(steps[-1] - steps[0] + 1) if len(steps) else 0
    enough = debug if run.preset == "debug" else lasting
    if span < enough or len(u) < gate.patience:
        raise NotMeasurable(f"needs {enough} steps after warm-up with an update, has {span}")
    if _wakes(each, u / rates, rise, cool):
        return
    severity: Severity | None = None
    if u.max() >= cold:
        if u.max() >= cool or span < lasting:
            return
        severity = "info"
    value = float(np.median(u))
    yield Hit(
        where=("model",),
        value=value,
        expectation=f"median u above {short(cool)} (usual: .001 to .02)",
        message=f"median u {short(value)} over {span} steps, never above {short(float(u.max()))}",
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        severity=severity,
        evidence={"median u": value, "largest median u": float(u.max())},
    )


def _blocks(
    table: Table | None,
    parameters: tuple[Parameter, ...],
    gate: Gate,
    lasting: int,
    share: float,
) -> Iterator[Hit]:
    if table is None:
        raise NotMeasurable("needs updates by block")
    frozen = {p.block for p in parameters if not p.trainable}
    at = [k for k, name in enumerate(table.columns) if name not in frozen]
    values = table.values[:, at]
    usual = row_medians(values)[:, None]
    with np.errstate(invalid="ignore"):
        shown = (values < share * usual) & (values > 0)
    wanted = replace(gate, patience=max(gate.patience, 5))
    streaks = [
        streak
        for streak in wanted.streaks(table.steps, shown, np.isnan(values))
        if streak.steps[1] - streak.steps[0] + 1 >= lasting and streak.last == len(values) - 1
    ]
    if streaks:
        names = [table.columns[at[streak.column]] for streak in streaks]
        least = min(float(values[s.last, s.column] / usual[s.last, 0]) for s in streaks)
        yield Hit(
            where=tuple(names),
            value=least,
            expectation=f"u of a block above {short(share)} of the median block",
            message=f"u at {listed(names)} down to {short(least)} of the median block's",
            first_step=min(streak.steps[0] for streak in streaks),
            last_step=max(streak.steps[1] for streak in streaks),
            severity="info",
            evidence={"share of the median block": least, "blocks": float(len(names))},
        )
