"""RES201: a stream that grows with depth, or with time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.names import counted
from skipscope.records import Run, Severity, Site
from skipscope.rule import Gate, Hit, NotMeasurable, Stage, Warmup, either, rule, short
from skipscope.rule.gates import after_warmup, deep_enough

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_HALF_MAX = 65504.0
_LAW = "at most sqrt(2) while variance is linear in depth"


@rule(
    code="RES201",
    name="activation-growth",
    severity="warning",
    patience=3,
    explains=("RES202", "RES205"),
    explains_overall=("RES101", "RES105", "RES202", "RES205", "RES301"),
    signed=("flat",),
)
def activation_growth(
    rms_sum: Table,
    stages: tuple[Stage, ...],
    run: Run,
    gate: Gate,
    stage_half_depth_growth_without_largest: Table | None = None,
    total_growth: Table | None = None,
    max_sum: Table | None = None,
    loss: Table | None = None,
    warmup: Warmup | None = None,
    *,
    initial: float = 2.5,
    training: float = 10.0,
    later: float = 2.5,
    own_rise: float = 2.0,
    baseline: int = 20,
    flat: float = 0.05,
    rise_in_time: float = 3.0,
    back: int = 5,
    loss_rise: float = 1.5,
    half_warning: float = 3e4,
    half_info: float = 6e3,
    depth: int = 8,
) -> Iterator[Hit]:
    """The residual stream grows faster than its law allows, with depth or with time.

    What it sees:
        H' = RMS(x_L) / RMS(x_{L/2}) over the largest single growth in that half, per stage of
        `depth` sites or more, so that one dominating branch (RES101) does not count. L/2 is half of
        the sites that add something: a frozen or dead branch of 0 is no depth. Six arms:

        * at step 0 of a fresh run: H' above `initial`
        * in training: H' above `training` for `patience` captures in a row
        * not finite: a sum with NaN or infinity, or beyond float16's 65504, at once; the first site
          is named. Where the loss broke before, RES902 tells of it alone
        * later: H' above `later` and above `own_rise` times its median over the first `baseline`
          captures after warm-up, unless the stream hardly grew then (ln H' under `flat`)
        * in time: RMS of the last sum above `rise_in_time` times that of `back` steps before, while
          the loss is above `loss_rise` times its minimum; only where all of these steps were
          captured
        * float16: the largest element of a float16 stream nears 65504

        On sparse captures the in-time arm does not look, and the later arm waits for its
        captures. If one arm could look and found nothing, the rule has passed.

    Example:
        The stream at step 0 along an un-normalised MLP of 24 blocks, its branches
        without their factor of 1/sqrt(24) (1.02 instead), and with it
        (`python -m benchmarks.faults.draw RES201 --seed 1`).

                     RMS by site                 first  largest     last       H'
            sick     ▁▂▂▂▂▃▃▃▄▄▄▄▅▅▅▆▆▆▇▇▇███    0.979 1.24e+05 1.24e+05      261
            healthy  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂▂    0.578     1.67     1.55     1.33
            scale    0.578 to 1.24e+05, logarithmic
            found    H' above 2.5, at step 0

    Why it matters:
        Independent normalised branches add their variances: the RMS of the stream grows like the
        square root of depth and H' is at most sqrt(2); perfectly aligned constant branches give
        2. Above 2.5 each block multiplies the stream instead, so total growth is exponential
        in depth: 48 un-normalised blocks of 1.75 each gave 4.8e11 and a first loss of 1.7e11.
        Measured H at initialisation: 1.0 to 1.45 in healthy nets; un-normalised He blocks 3.7 at
        9 blocks and 14.5 at 27.
    What to try:
        * for the next run, scale each branch by 1/sqrt(depth):
          skipscope.remedies.depth_scaled_init(model, x) or
          skipscope.remedies.scale_branches(model, x, alpha=...), or start its last layer at 0:
          skipscope.remedies.zero_init_branches(model, x)
        * normalise the input of each branch (pre-norm)
        * if it grows in time: a longer warm-up, a lower learning rate, gradient clipping
    When it is wrong:
        Total growth has no limit of its own: 5 to 2747 times in 43 healthy released language
        models, 51 times in one first block behind a small embedding. H' is a ratio of halves and
        does not see it. LayerScale and zero-initialised nets start flat and then grow by large
        factors relative to nothing: the later arm leaves them out. Massive tokens raise a maximum,
        not an RMS; only float16 overflow asks for maxima.
    Thresholds:
        * initial: at step 0: H'
        * training: while training: H'
        * later: later: H' itself
        * own_rise: later: times its own median
        * baseline: later: captures after warm-up that make this median
        * flat: later: ln of this median below which the arm does not look
        * rise_in_time: in time: RMS of the last sum against `back` steps before
        * back: in time: steps to look back
        * loss_rise: in time: loss against its minimum
        * half_warning: float16: largest element, warning
        * half_info: float16: largest element, information
        * depth: sites needed in a stage for H'
    Source:
        Linear law: De & Smith 2020 (arXiv 2002.10444), Fixup (1901.09321), Hanin & Rolnick 2018
        (1803.01719). Depth without residual scale: JiahuiYu/wdsr_ntire2018 issue 21. Overflow at
        the sum in float16: huggingface/transformers issue 12225 and PR 19229. The arms at step 0,
        in training and later were scored on 22 healthy and 7 sick small runs without a false
        alarm or a miss; the others are argued.
    """
    halves = _Halves(stage_half_depth_growth_without_largest, stages, depth, total_growth)
    drift = _Drift(later, own_rise, baseline, flat)
    hits = either(
        _not_finite(rms_sum, max_sum, stages, loss),
        _at_start(halves, run, initial, training),
        _while_training(halves, gate, training),
        _later(halves, gate, warmup, drift),
        _in_time(rms_sum, stages, gate, loss, (rise_in_time, back, loss_rise)),
        _half_precision(max_sum, stages, gate, half_warning, half_info),
    )
    yield from _once_a_stage(hits)


@dataclass(frozen=True)
class _Drift:
    level: float
    own_rise: float
    baseline: int
    flat: float


@dataclass(frozen=True)
class _Halves:
    """H' of the stages that are deep enough."""

    table: Table | None
    stages: tuple[Stage, ...]
    depth: int
    total: Table | None

    def chosen(self) -> tuple[Table, list[tuple[Stage, int]]]:
        """The table, and the deep stages with their columns.

        Raises:
            NotMeasurable: there is none.
        """
        deep = deep_enough(self.stages, self.depth)
        if self.table is None:
            raise NotMeasurable("needs the RMS of the sums of a whole stage")
        return self.table, [(stage, self.table.columns.index(stage.name)) for stage in deep]


def _growth_hit(
    halves: _Halves,
    stage: Stage,
    value: float,
    steps: tuple[int, int],
    limit: float,
    arm: str,
    severity: Severity,
) -> Hit:
    per_site = value ** (1 / max(len(stage.sites) // 2 - 1, 1)) if np.isfinite(value) else np.inf
    total = _total_growth(halves.total, stage, steps[0] if arm == "at step 0" else steps[1])
    evidence: dict[str, float | str] = {"H'": value, "arm": arm, "stage": stage.name}
    grown = "" if total is None else f"; over its whole depth the stream grows {short(total)}x"
    return Hit(
        where=(stage.where,),
        value=value,
        expectation=f"H' below {short(limit)}: {_LAW}",
        message=f"H' {short(value)} {arm} over {len(stage.sites)} sites, "
        f"about {short(per_site)}x a site{grown}",
        first_step=steps[0],
        last_step=steps[1],
        severity=severity,
        evidence=evidence if total is None else {**evidence, "total growth": total},
        cause="no single site: every block multiplies the stream" if arm == "at step 0" else "",
    )


def _total_growth(total: Table | None, stage: Stage, step: int) -> float | None:
    name = f"stream {stage.stream}"
    if total is None or name not in total.columns or step not in total.steps:
        return None
    return float(total.values[total.steps == step, total.columns.index(name)][-1])


def _once_a_stage(hits: Iterator[Hit]) -> Iterator[Hit]:
    """The arms that look at H' come from the gravest on; a stage that one named is named once."""
    held: dict[str, Hit] = {}
    for hit in hits:
        stage = str(hit.evidence.get("stage", id(hit)))
        known = held.get(stage)
        last = hit.last_step if known is None else max(hit.last_step, known.last_step)
        held[stage] = replace(known or hit, last_step=last)
    yield from held.values()


def _at_start(halves: _Halves, run: Run, limit: float, grave: float) -> Iterator[Hit]:
    table, deep = halves.chosen()
    if not run.fresh or not len(table.steps) or table.steps[0] != 0:
        raise NotMeasurable("at step 0: needs a capture of step 0 of a fresh run")
    for stage, column in deep:
        values = table.values[:, column]
        if values[0] > limit:
            below = np.flatnonzero(~(values > limit))
            last = int(table.steps[below[0] - 1 if len(below) else -1])
            severity: Severity = "error" if values[0] > grave else "warning"
            yield _growth_hit(
                halves, stage, float(values[0]), (0, last), limit, "at step 0", severity
            )


def _while_training(halves: _Halves, gate: Gate, limit: float) -> Iterator[Hit]:
    table, deep = halves.chosen()
    for stage, column in deep:
        values, missing = table.values[:, column], table.missing[:, [column]]
        for streak in gate.streaks(table.steps, (values > limit)[:, None], missing):
            value = float(values[streak.last])
            yield _growth_hit(halves, stage, value, streak.steps, limit, "in training", "error")


def _later(halves: _Halves, gate: Gate, warmup: Warmup | None, drift: _Drift) -> Iterator[Hit]:
    table, deep = halves.chosen()
    if warmup is None:
        raise NotMeasurable("later: needs the learning rate of each step")
    rows = np.flatnonzero(table.steps >= after_warmup(warmup))
    if len(rows) <= drift.baseline:
        raise NotMeasurable(
            f"later: needs more than {drift.baseline} captures after warm-up, has {len(rows)}"
        )
    for stage, column in deep:
        first = table.values[rows[: drift.baseline], column]
        usual = float(np.median(first[np.isfinite(first)])) if np.isfinite(first).any() else 0.0
        if usual <= np.exp(drift.flat):
            continue
        rest = rows[drift.baseline :]
        values = table.values[rest, column]
        limit = max(drift.level, drift.own_rise * usual)
        missing = table.missing[rest][:, [column]]
        for streak in gate.streaks(table.steps[rest], (values > limit)[:, None], missing):
            value = float(values[streak.last])
            arm = f"against {short(usual)} after warm-up"
            yield _growth_hit(halves, stage, value, streak.steps, limit, arm, "warning")


def _not_finite(
    rms: Table, largest: Table | None, stages: Sequence[Stage], loss: Table | None
) -> Iterator[Hit]:
    """The first site by step, then by depth, whose sum is not finite or exceeds float16.

    A stream that breaks after the loss did is no growth: the weights are broken by then.
    """
    sites = [site for stage in stages for site in stage.sites if site.name in rms.columns]
    columns = [rms.columns.index(site.name) for site in sites]
    bad = ~np.isfinite(rms.values[:, columns]) & ~rms.missing[:, columns]
    if largest is not None:
        half = np.array([_is_half(site) for site in sites], dtype=bool)
        bad |= (largest.values[:, columns] > _HALF_MAX) & half
    rows = np.flatnonzero(bad.any(axis=1))
    if not len(rows):
        return
    row = int(rows[0])
    at = int(np.flatnonzero(bad[row])[0])
    value = float(rms.values[row, columns[at]])
    overflow = np.isfinite(value)
    if not overflow and _loss_broke_before(loss, int(rms.steps[row])):
        return
    what = "overflows float16" if overflow else "is not finite"
    yield Hit(
        where=(sites[at].name,),
        value=value,
        expectation="a finite sum" + (f" (float16 ends at {_HALF_MAX:.0f})" if overflow else ""),
        message=f"the sum at {sites[at].name} {what}, first seen at step {rms.steps[row]}",
        first_step=int(rms.steps[row]),
        last_step=int(rms.steps[rows[-1]]),
        severity="error",
        evidence={"RMS of the sum": value, "sites": float(bad[row].sum())},
    )


def _loss_broke_before(loss: Table | None, step: int) -> bool:
    if loss is None:
        return False
    broken = ~np.isfinite(loss.values[:, 0]) & ~loss.missing[:, 0]
    return bool(broken[loss.steps < step].any())


def _in_time(
    rms: Table,
    stages: Sequence[Stage],
    gate: Gate,
    loss: Table | None,
    limits: tuple[float, int, float],
) -> Iterator[Hit]:
    rise, back, loss_rise = limits
    rows = np.arange(back, len(rms.steps))
    rows = rows[rms.steps[rows] - rms.steps[rows - back] == back]
    if not len(rows) or loss is None:
        raise NotMeasurable(f"in time: needs the loss, and {back + 1} steps in a row captured")
    raised = _loss_raised(loss, rms.steps[rows], loss_rise)
    last_sites = {stage.stream: stage for stage in stages}  # the last stage of each stream
    for stage in last_sites.values():
        site = stage.sites[-1]
        column = rms.columns.index(site.name)
        with np.errstate(all="ignore"):
            times = rms.values[rows, column] / rms.values[rows - back, column]
        shown = ((times > rise) & raised)[:, None]
        for streak in gate.streaks(rms.steps[rows], shown, np.isnan(times)[:, None]):
            value = float(times[streak.last])
            yield Hit(
                where=(stage.where,),
                value=value,
                expectation=f"RMS of the last sum below {short(rise)}x that of {back} steps before "
                "(the run's own history)",
                message=f"RMS at {site.name} {short(value)}x that of {back} steps before, while "
                f"the loss is above {short(loss_rise)}x its minimum",
                first_step=streak.steps[0],
                last_step=streak.steps[1],
                severity="warning",
                evidence={"rise": value, "RMS": float(rms.values[rows[streak.last], column])},
            )


def _loss_raised(loss: Table, steps: npt.NDArray[np.int64], times: float) -> Mask:
    values = np.where(np.isfinite(loss.values[:, 0]), loss.values[:, 0], np.inf)
    if not len(values):
        return np.zeros(len(steps), dtype=bool)
    lowest = np.minimum.accumulate(values)
    at = np.clip(np.searchsorted(loss.steps, steps), 0, len(values) - 1)
    known = (loss.steps[at] == steps) & ~loss.missing[at, 0] & (lowest[at] > 0)
    raised: Mask = known & (values[at] > times * lowest[at])
    return raised


def _half_precision(
    largest: Table | None, stages: Sequence[Stage], gate: Gate, warning: float, info: float
) -> Iterator[Hit]:
    half = [site for stage in stages for site in stage.sites if _is_half(site)]
    if largest is None or not half:
        return  # what is not float16 cannot overflow it
    columns = [largest.columns.index(site.name) for site in half]
    values, missing = largest.values[:, columns], largest.missing[:, columns]
    for limit, severity in ((warning, "warning"), (info, "info")):
        found = gate.streaks(largest.steps, values > limit, missing)
        if not found:
            continue
        worst = max(found, key=lambda streak: values[streak.last, streak.column])
        value = float(values[worst.last, worst.column])
        chosen: Severity = "warning" if severity == "warning" else "info"
        yield Hit(
            where=(half[worst.column].name,),
            value=value,
            expectation=f"largest element below {limit:.0f} (float16 ends at {_HALF_MAX:.0f})",
            message=f"largest element of the float16 stream {short(value)} at "
            f"{half[worst.column].name}, {counted(len(found), 'site')} above {limit:.0f}",
            first_step=worst.steps[0],
            last_step=worst.steps[1],
            severity=chosen,
            evidence={"largest": value, "sites": float(len(found))},
        )
        return


def _is_half(site: Site) -> bool:
    """Whether the sum is formed in float16: both operands are."""
    return all(d.rpartition(".")[2] == "float16" for d in (site.shortcut_dtype, site.branch_dtype))
