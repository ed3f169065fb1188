"""RES101: branches that drown their shortcut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Parameter, Site
from skipscope.rule import (
    Gate,
    Hit,
    NotMeasurable,
    Stage,
    Streak,
    Warmup,
    either,
    listed,
    rule,
    short,
)
from skipscope.rule.gates import deep_enough
from skipscope.rule.medians import row_medians
from skipscope.rule.outliers import Limits, Place, dominating, expected, places
from skipscope.rule.outliers import siblings as siblings_of
from skipscope.rule.siblings import of_branch, parameter_role

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_NEAR_ZERO = 1e-3
_LOOK = (
    "look at the last weights of the branch (its output matrix, or the scale of its last norm): an "
    "initialisation, a loaded or converted weight, or a factor applied twice"
)
_STAGE_ADVICE = (
    (
        "for the next run, start the last layers smaller (1/sqrt(depth)): "
        "skipscope.remedies.depth_scaled_init(model, x)"
    ),
    "or start each branch at 0: skipscope.remedies.zero_init_branches(model, x)",
    "a longer warm-up or a lower learning rate",
)


@rule(
    code="RES101",
    name="branch-dominance",
    severity="warning",
    patience=3,
    explains=("RES103", "RES105", "RES201", "RES202", "RES203", "RES205", "RES301", "RES401"),
    explains_overall=("RES105", "RES203", "RES301"),
    signed=("slope",),
)
def branch_dominance(
    branch_ratio: Table,
    stages: tuple[Stage, ...],
    gate: Gate,
    warmup: Warmup | None = None,
    growth: Table | None = None,
    weight_rms: Table | None = None,
    parameters: tuple[Parameter, ...] | None = None,
    *,
    above: float = 6.0,
    smallest: float = 0.05,
    woken: float = 1.0,
    reach: int = 6,
    siblings: int = 3,
    level: float = 2.5,
    level_error: float = 5.0,
    slope: float = -0.25,
    flood: float = 2.0,
    depth: int = 8,
    deep: int = 100,
    own_rise: float = 3.0,
) -> Iterator[Hit]:
    """A branch is so much larger than its shortcut that what the stream held is drowned.

    What it sees:
        r = ||F(x)|| / ||s||, the size of the branch over that of its shortcut, on the same batch
        and before the addition, for `patience` captures in a row (a site that was not called in a
        capture is passed over). Three arms:

        * one site: r above `smallest` and above `above` times the median of its siblings, at least
          `siblings` sites of the same role (same line of code, same norm placement, same branch,
          same position in the block) at most `reach` places away in the same stream; half of so
          many must have a branch that is not 0, and the median is theirs. Where the
          stage of the site has too few of them, those of the neighbouring stages count too, their r
          carried over by the law 1/sqrt(k+1), k being the position in the stage. The largest site
          is judged first; the others are then compared with siblings on their own side of it only,
          because everything after it looks weak. A site that is as those before it, where there
          are enough of them, is not meant: there one half differs from the other. Branches that
          started near 0 have no common size: where most r of the stream were below .001 in its
          first capture, r must be above `woken`, the branch larger than its shortcut. A site
          that was above `smallest` already then did not start near 0, and needs only that. With two
          siblings, of the three or more, r must be above `above` times each of them, and `above`.
        * a whole stage, of `depth` sites or more: the median of r*sqrt(k+1) without the first site
          is above `level` (error above `level_error`) and r does not decay with depth (slope of ln
          r over ln(k+1) above `slope`). In stages of `deep` sites or more the median after warm-up
          is compared with its own value at the end of warm-up instead (`own_rise` times).
        * the fall-back, on such a stage: r above `flood` on half of the sites.

        A finding of the first arm names that site alone: the growth of the stream there and the
        weak branches after it follow from it.

    Example:
        r along a pre-norm transformer of 12 blocks (24 sites) after 40 steps, with
        the last matrix of one branch 80 times as large and as it was made
        (`python -m benchmarks.faults.draw RES101 --seed 1`).

                     r by site                   first  largest     last
            sick     ▄▄▄▄▄▄▄▄▄▄▄█▂▁▂▂▂▁▂▁▂▁▁▂    0.208     9.79   0.0253
            healthy  ▄▄▄▄▄▄▄▄▄▄▄▄▄▃▄▃▄▃▄▃▄▃▃▃    0.210    0.253    0.113
            scale    0.0144 to 9.79, logarithmic
            found    one site above 6 times the median of its siblings

    Why it matters:
        The shortcut preserves a path, not a proportion: a branch many times larger than x turns
        what all blocks before it computed into a small correction, and every later branch, whose
        size has not changed, adds next to nothing in proportion. Under normalised branches r falls
        like 1/sqrt(k+1) (27 batch-norm blocks at initialisation: 1.54, then .42, .26, .18); healthy
        pre-norm transformers train with r between .02 and .8. An r that is large early in training
        says that the branch's initialisation or the learning rate is too aggressive.
    What to try:
        * look at the last weights of the branch (its output matrix, or the scale of its last
          norm): an initialisation, a loaded or converted weight, or a factor applied twice
        * one site: for the next run, multiply that branch by expected r / measured r:
          skipscope.remedies.scale_branches(model, x, sites=["..."], alpha=...), where the finding
          fills both in; a factor for all branches, as depth_scaled_init has without `sites`, leaves
          this one as far from its siblings as it was
        * a whole stage: for the next run, start the last layers smaller (1/sqrt(depth)):
          skipscope.remedies.depth_scaled_init(model, x)
        * a longer warm-up or a lower learning rate
    When it is wrong:
        Projections, the first site of a stream or stage and the whole first block behind an
        embedding are never judged: r = 51 there is by design with an embedding of standard
        deviation .02. Post-norm stages and those that scale the stream, as (x + F)/sqrt(2) does,
        where r is of order 1 at every depth, and stages under `depth` sites are judged site by site
        only. Stochastic depth raises r by
        1/sqrt(keep probability), far below the threshold. A block that is meant to rewrite the
        stream is reported all the same: allow it with `ignore`.
    Thresholds:
        * above: one site: times the median of its siblings
        * smallest: one site: r below this is never too large
        * woken: one site: the same for a branch that started near 0, as most did
        * reach: one site: siblings stand at most so many places away
        * siblings: one site: so many are needed
        * level: stage: median of r*sqrt(k+1), warning
        * level_error: stage: the same, error
        * slope: stage: a steeper decay of ln r over ln(k+1) is healthy
        * flood: fall-back: r on half of the sites
        * depth: stage and fall-back: sites needed in a stage
        * deep: stages of so many sites are compared with themselves after warm-up
        * own_rise: the factor for those
    Source:
        Law of r with depth: De & Smith 2020 (arXiv 2002.10444). Scale of branches: He 2015
        (1512.03385), Fixup (1901.09321), Brock 2021 (2101.08692). The stage arm was scored on 22
        healthy and 7 sick small runs (and 10 + 3 held out) without a false alarm or a miss; the
        one-site arm is argued from single blocks seen in converted weights (ROCm/hip-ep PR 168,
        huggingface/transformers issue 27179). No published absolute limit of r exists.
    """
    seen = _Seen(branch_ratio, growth, weight_rms, parameters or ())
    limits = Limits(above, smallest, reach, siblings, flood)
    law = _Law(level, level_error, slope, flood, depth, deep, own_rise)
    yield from either(
        _one_site(seen, stages, gate, limits, woken),
        _whole_stage(seen, stages, gate, warmup, law),
    )


@dataclass(frozen=True)
class _Seen:
    ratio: Table
    growth: Table | None
    weights: Table | None
    parameters: tuple[Parameter, ...]

    def of(self, sites: Sequence[Site]) -> Floats:
        """R of the sites, NaN where not measured. Shape: (rows, sites)."""
        at = {name: column for column, name in enumerate(self.ratio.columns)}
        return self.ratio.values[:, [at[site.name] for site in sites]]


@dataclass(frozen=True)
class _Law:
    level: float
    level_error: float
    slope: float
    flood: float
    depth: int
    deep: int
    own_rise: float


def _one_site(
    seen: _Seen, stages: tuple[Stage, ...], gate: Gate, asked: Limits, woken: float
) -> Iterator[Hit]:
    most = 0
    alone: list[str] = []
    for line in places(stages).values():
        judged = [at for at, place in enumerate(line) if place.judged]
        most = max([most, *(len(siblings_of(line, at, asked)[0]) for at in judged)])
        values = seen.of([place.site for place in line])
        limits = replace(asked, smallest=_smallest(values, asked.smallest, woken))
        shown, wanted = dominating(values, line, limits)
        alone += [
            line[at].site.name
            for at in judged
            if len(siblings_of(line, at, limits)[0]) >= limits.siblings
            and (values[:, at] > 0).any()
            and np.isnan(wanted[:, at]).all()
        ]
        for streak in gate.streaks(seen.ratio.steps, shown, np.isnan(values)):
            at, row = streak.column, streak.last
            ahead, factors = siblings_of(line, at, limits, (-1, at))  # not drowned by this site
            own = expected(values[row : row + 1], ahead, factors, 1)[0] if ahead else np.nan
            if len(ahead) >= asked.siblings and values[row, at] <= limits.above * own:
                continue  # as those before it: the first half of the stage differs, not this site
            usual = float(own if np.isfinite(own) else wanted[row, at])
            yield _site_hit(seen, line, values, usual, streak)
        yield from _beside_few(seen, line, values, gate, asked)
    if most < asked.siblings:
        raise NotMeasurable(
            f"one site: needs {asked.siblings} siblings within {asked.reach} places, has {most}"
        )
    if alone:
        raise NotMeasurable(
            f"one site: needs {asked.siblings} siblings with a value, half of them above 0, not "
            f"there at {listed(alone)}"
        )


def _beside_few(
    seen: _Seen, line: Sequence[Place], values: Floats, gate: Gate, limits: Limits
) -> Iterator[Hit]:
    """The sites with two siblings, but fewer than asked for: too few for what is usual here.

    So each of them stands in, and the most that the law allows: r = 1, at the stream's start.
    """
    shown, usual = np.zeros(values.shape, dtype=bool), np.full(values.shape, np.nan)
    for at, place in enumerate(line):
        chosen, factors = siblings_of(line, at, limits)
        if not place.judged or not 2 <= len(chosen) < limits.siblings:
            continue
        theirs = values[:, chosen] * factors
        awake = (theirs > 0).all(axis=1) & np.isfinite(values[:, at])
        shown[:, at] = awake & (values[:, at] > limits.above * np.maximum(theirs.max(axis=1), 1))
        usual[awake, at] = np.median(theirs[awake], axis=1)
    for streak in gate.streaks(seen.ratio.steps, shown, np.isnan(values)):
        yield _site_hit(seen, line, values, float(usual[streak.last, streak.column]), streak)


def _smallest(values: Floats, smallest: float | Floats, woken: float) -> Floats:
    """What r must be above at each place. Shape: `values` (rows, places); the result (places,).

    Where most branches started near 0 their sizes are what training made of each: one scalar may
    pass through 0 beside one that is needed, and six times a median says nothing. What is left of
    the rule is its meaning, a branch larger than what it is added to.
    """
    least = np.full(values.shape[1], smallest, float)
    started = values[:1]  # no row where nothing was captured
    known = started[~np.isnan(started)]
    if len(known) and np.median(known) < _NEAR_ZERO:
        waking = ~(started[0] > least)
        least[waking] = np.maximum(least[waking], woken)
    return least


def _site_hit(
    seen: _Seen, line: Sequence[Place], values: Floats, wanted: float, streak: Streak
) -> Hit:
    site, row = line[streak.column].site, streak.last
    r = float(values[row, streak.column])
    role = line[streak.column].role
    alike = [at for at, p in enumerate(line) if p.judged and p.role == role and at != streak.column]
    before = _range(values[row, [at for at in alike if at < streak.column]])
    behind = [at for at in alike if at > streak.column and line[at].site.stage == site.stage]
    after = _range(values[row, behind])
    evidence: dict[str, float | str] = {"site": site.name, "r": r, "expected": wanted}
    consequences = []
    if seen.growth is not None and site.name in seen.growth.columns:
        grown = float(seen.growth.values[row, seen.growth.columns.index(site.name)])
        evidence["growth"] = grown
        consequences.append(f"after it the stream is {short(grown)}x larger")
    for label, found in (("before", before), ("after", after)):
        if found:
            evidence[f"r {label}, lowest"], evidence[f"r {label}, highest"] = found
    if after and after[1] < 0.5 * wanted:
        consequences.append(f"later branches look weak (r {short(after[0])} to {short(after[1])})")
    cause, weights = _heavy_weight(seen, site)
    spread = f"; those before it {short(before[0])} to {short(before[1])}" if before else ""
    return Hit(
        where=(site.name,),
        value=r,
        expectation=f"r about {short(wanted)} (median of its siblings, law 1/sqrt(k+1){spread})",
        message=f"r {short(r)} at {site.name}, {short(r / wanted)}x that of its siblings"
        + "".join(f"; {text}" for text in consequences),
        first_step=streak.steps[0],
        last_step=streak.steps[1],
        evidence={**evidence, **weights},
        cause=cause,
        advice=site_advice(site.name, wanted / r),
    )


def site_advice(site: str, alpha: float) -> tuple[str, ...]:
    """What to try where one site dominates; `alpha` is expected r / measured r."""
    at, factor = f'model, x, sites=["{site}"]', short(alpha)
    return (
        _LOOK,
        (
            "for the next run, multiply this branch by expected r / measured r: "
            f"skipscope.remedies.scale_branches({at}, alpha={factor}), or its last weights: "
            f"skipscope.remedies.depth_scaled_init({at}, factor={factor})"
        ),
        "a longer warm-up or a lower learning rate for this block",
    )


def _range(values: Floats) -> tuple[float, float] | None:
    found = values[np.isfinite(values) & (values > 0)]
    return (float(found.min()), float(found.max())) if len(found) else None


def _heavy_weight(seen: _Seen, site: Site) -> tuple[str, dict[str, float | str]]:
    """The weight of the branch that is more than 3x those of its siblings, the heaviest."""
    if seen.weights is None:
        return "", {}
    last = {
        name: column[~gone][-1]
        for name, column, gone in zip(
            seen.weights.columns, seen.weights.values.T, seen.weights.missing.T, strict=True
        )
        if not gone.all()
    }
    own = of_branch(site, seen.parameters)
    found = []
    for parameter in own:
        role = parameter_role(parameter)
        theirs = [
            last.get(other.name, np.nan)
            for other in seen.parameters
            if other not in own and parameter_role(other) == role
        ]
        typical = float(np.nanmedian(theirs)) if np.isfinite(theirs).any() else 0.0
        rms = float(last.get(parameter.name, np.nan))
        if typical > 0 and rms > 3 * typical:
            found.append((len(parameter.shape) > 1, rms / typical, parameter.name, rms, typical))
    if not found:
        return "", {}
    _, times, name, rms, typical = max(found)
    text = f"RMS of {name} {short(rms)}, of its siblings {short(typical)} ({short(times)}x)"
    return text, {"weight": name, "weight RMS": rms, "weight RMS of siblings": typical}


def _whole_stage(
    seen: _Seen, stages: tuple[Stage, ...], gate: Gate, warmup: Warmup | None, law: _Law
) -> Iterator[Hit]:
    for stage in deep_enough(stages, law.depth):
        if stage.rescaled or len(stage.judged) < 2:
            continue
        values = seen.of([site for _, site in stage.judged])
        measured = (~np.isnan(values)).sum(axis=1)
        positions = np.array([k for k, _ in stage.judged])
        level, slope = _profile(values, positions)
        limit = np.full(len(level), law.level)
        if len(stage.sites) >= law.deep and warmup is not None and warmup.end is not None:
            later = seen.ratio.steps >= warmup.end
            own = level[later & np.isfinite(level)][:1]
            limit[later] = law.own_rise * own[0] if len(own) else np.inf
        rising: Mask = np.logical_and(level > limit, slope > law.slope)
        flooded: Mask = 2 * (values > law.flood).sum(axis=1) >= np.maximum(measured, 1)
        shown: Mask = np.stack([rising | flooded], axis=1)
        for streak in gate.streaks(seen.ratio.steps, shown, np.stack([measured == 0], axis=1)):
            yield _stage_hit(seen, stage, level, slope, values, streak, law, limit)


def _profile(values: Floats, positions: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Median of r*sqrt(k+1) and slope of ln r over ln(k+1), in each row."""
    usable = np.isfinite(values) & (values > 0)
    logs = np.where(usable, np.log(np.where(usable, values, 1.0)), np.nan)
    depth = np.where(usable, np.log(positions + 1.0), np.nan)
    level, slope = np.full(len(values), np.nan), np.full(len(values), np.nan)
    rows = usable.sum(axis=1) >= 2
    level[rows] = np.exp(row_medians(logs[rows] + 0.5 * depth[rows]))
    x = depth[rows] - np.nanmean(depth[rows], axis=1, keepdims=True)
    slope[rows] = np.nansum(x * logs[rows], axis=1) / np.nansum(x * x, axis=1)
    return level, slope


def _stage_hit(
    seen: _Seen,
    stage: Stage,
    level: Floats,
    slope: Floats,
    values: Floats,
    streak: Streak,
    law: _Law,
    limit: Floats,
) -> Hit:
    row = streak.last
    allowed = float(limit[row]) if np.isfinite(limit[row]) else law.level
    typical = float(np.nanmedian(values[row]))
    by_law = level[row] > limit[row] and slope[row] > law.slope
    severe = by_law and level[row] > max(law.level_error, limit[row])
    value = float(level[row]) if by_law else typical
    what = f"median r*sqrt(k+1) {short(value)}" if by_law else f"r above {short(law.flood)} on half"
    return Hit(
        where=(stage.where,),
        value=value,
        expectation=f"median of r*sqrt(k+1) about 1, below {short(allowed)}, "
        "and r falling with depth (law 1/sqrt(k+1))",
        message=f"{what} over {len(stage.sites)} sites of {stage.name}: median r {short(typical)}, "
        f"slope of ln r over ln(k+1) {short(float(slope[row]))}",
        first_step=streak.steps[0],
        last_step=streak.steps[1],
        severity="error" if severe else None,
        evidence={
            "stage": stage.name,
            "median r": typical,
            "median r*sqrt(k+1)": float(level[row]),
            "slope": float(slope[row]),
        },
        advice=_STAGE_ADVICE,
    )
