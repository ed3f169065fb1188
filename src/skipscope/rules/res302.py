"""RES302: a post-norm stack whose gradients collapse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Group, Parameter, Run
from skipscope.rule import Gate, Hit, NotMeasurable, Stage, Streak, either, rule, short
from skipscope.rule.gradients import GradientProfile, profiles
from skipscope.rule.matrices import columns, matrices
from skipscope.rule.medians import row_medians

Floats = npt.NDArray[np.float64]


@rule(
    code="RES302",
    name="post-norm-collapse",
    severity="error",
    patience=3,
    explains=("RES103", "RES402"),
    explains_overall=("RES001", "RES202", "RES205", "RES301", "RES401", "RES402", "RES504"),
    whole_stream=True,
    signed=("aligned",),
)
def post_norm_collapse(
    grad_sum_norm: Table,
    cosine: Table,
    stages: tuple[Stage, ...],
    run: Run,
    gate: Gate,
    lr: Table | None = None,
    groups: tuple[Group, ...] | None = None,
    parameters: tuple[Parameter, ...] | None = None,
    update_ratio: Table | None = None,
    *,
    ratio: float = 1e-3,
    aligned: float = 0.4,
    early: int = 500,
    named: float = 100.0,
    depth: int = 8,
    deep: int = 12,
    hot: float = 1e-2,
    watched: int = 10,
) -> Iterator[Hit]:
    """A post-norm stack collapses: its branches align with the stream and its gradients vanish.

    What it sees:
        * in stages of `depth` sites or more whose sums are followed by a norm: G (gradient at the
          first sum over that at the last) below `ratio` for `patience` captures in a row, within
          the first `early` steps, with a median cosine of shortcut and branch above `aligned`:
          error
        * where that has not happened, an information: `deep` sites or more, an Adam-type optimizer
          whose median update ratio at step 0 is above `hot`, and a learning rate that does not rise
          in the first `watched` steps

    Example:
        The gradient at each sum along a post-norm transformer of 14 blocks (28 sites)
        after 60 steps of AdamW, at a learning rate of .006 without warm-up and of
        .0003 with it (`python -m benchmarks.faults.draw RES302 --seed 1`).

                     gradient by site                first smallest     last        G
            sick     ▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂▃▃▃▄▄▅▅▅▆▆▇▇ 1.07e-06 9.51e-07   0.0138 7.75e-05
            healthy  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇█████████████   0.0111   0.0111   0.0359    0.311
            scale    9.51e-07 to 0.0359, logarithmic
            found    G below 0.001 for 3 captures, cosine above 0.4

    Why it matters:
        With a norm behind every sum the identity path passes through all norms. When large steps
        let the branches point along the stream, each sum grows and the norm behind it scales the
        identity path down, site after site: in 24 layers at a learning rate of 3e-3 without
        warm-up the ratio of parameter gradients fell from .43 at step 0 below .01 at step 6 and to
        1e-5 at step 30, and the loss stayed at chance. The same stack with the norm inside the
        branch kept its gradient. Shortcuts are intact all the while, and r is .2 to .8.
    What to try:
        * warm the learning rate up over the first hundreds of steps, to a lower peak
        * move the norm into the branch (pre-norm), with one norm behind the last block
        * scale shortcuts up and initialisation down with depth (DeepNorm), or profile branches
          first (Admin)
    When it is wrong:
        Post-norm itself is no fault: with warm-up, or at 2e-4 without, it trains (G .07 to 1.6,
        median cosine under .4). Stages whose shortcut is scaled (DeepNorm, Admin) are left out,
        and so is a run that goes on from a checkpoint, where the collapse would lie behind it.
    Thresholds:
        * ratio: G below this
        * aligned: median cosine of shortcut and branch above this
        * early: steps from the start
        * named: sums with so many times less gradient than the last are counted
        * depth: sites with a gradient needed in a stage
        * deep: information: sites needed
        * hot: information: median update ratio at step 0
        * watched: information: steps without a rise of the learning rate
    Source:
        Xiong 2020 (arXiv 2002.04745), Admin (2004.08249), DeepNet (2203.00555); pytorch/pytorch
        issue 55270. The error was scored on 22 healthy and 7 sick small runs without a false alarm
        or a miss.
    """
    if not run.fresh:
        raise NotMeasurable("needs a fresh run: this one goes on from a checkpoint")
    chosen = tuple(stage for stage in stages if stage.post_norm and not _scaled(stage))
    if stages and not chosen:
        return
    heat = _Start(lr, groups or (), parameters or (), update_ratio)
    collapsed: set[str] = set()
    limits = ratio, aligned, early, named, depth
    for hit in either(
        _collapsed(grad_sum_norm, cosine, chosen, gate, limits),
        _at_risk(chosen, heat, (deep, hot, watched), collapsed),
    ):
        collapsed.add(str(hit.evidence["stage"]))
        yield hit


def _scaled(stage: Stage) -> bool:
    """Whether most shortcuts are scaled on purpose."""
    return 2 * sum(site.kind == "scaled" for site in stage.sites) > len(stage.sites)


def _collapsed(
    gradient: Table,
    cosine: Table,
    stages: Sequence[Stage],
    gate: Gate,
    limits: tuple[float, float, float, float, int],
) -> Iterator[Hit]:
    ratio, aligned, early, named, depth = limits
    for profile in profiles(gradient, stages, int(depth)):
        at = [cosine.columns.index(site.name) for site in profile.sites]
        angles = row_medians(cosine.values[:, at])
        missing = np.isnan(profile.ratio)[:, None]
        with np.errstate(invalid="ignore"):
            gone = (profile.ratio < ratio) & (profile.steps <= early)
        for streak in gate.streaks(profile.steps, gone[:, None], missing):
            before = angles[: streak.last + 1]
            if np.isfinite(before).any() and float(np.nanmax(before)) > aligned:
                yield _hit(profile, float(np.nanmax(before)), streak, ratio, named)


def _hit(profile: GradientProfile, angle: float, streak: Streak, ratio: float, named: float) -> Hit:
    value = float(profile.ratio[streak.last])
    return Hit(
        where=profile.early,
        value=value,
        expectation=f"G above {short(ratio)} (post-norm in training: .07 to 1.6)",
        message=f"post-norm: gradient at the first of {len(profile.sites)} sums is {short(value)}x "
        f"that at the last, branches aligned with the stream (median cosine up to {short(angle)}); "
        f"{profile.beyond(streak.last, named)}",
        first_step=streak.steps[0],
        last_step=streak.steps[1],
        evidence={"G": value, "median cosine": angle, "stage": profile.stage.name},
        cause="a norm behind every sum, and steps large enough to align the branches",
    )


class _Start:
    """Learning rate and update ratio of the first steps."""

    def __init__(
        self,
        lr: Table | None,
        groups: Sequence[Group],
        parameters: Sequence[Parameter],
        update_ratio: Table | None,
    ) -> None:
        self.lr, self.ratio, self.parameters = lr, update_ratio, parameters
        self.adaptive = any("beta2" in group.options for group in groups)

    def heat(self, steps: int) -> float | None:
        """The median u at step 0 under an adaptive optimizer whose lr does not rise, else None.

        Raises:
            NotMeasurable: these steps are not recorded.
        """
        if self.lr is None or self.ratio is None:
            raise NotMeasurable("needs learning rates and update ratios")
        first = self.lr.values[self.lr.steps < steps]
        if len(first) < steps or not len(self.ratio.steps) or self.ratio.steps[0] != 0:
            raise NotMeasurable(f"needs the first {steps} steps of the run")
        if not self.adaptive or (first[1:] > 1.01 * first[0]).any():
            return None
        return float(row_medians(columns(self.ratio, matrices(self.parameters))[:1])[0])


def _at_risk(
    stages: Sequence[Stage],
    start: _Start,
    limits: tuple[int, float, int],
    collapsed: Set[str],
) -> Iterator[Hit]:
    deep, hot, steps = limits
    heat = start.heat(steps)
    for stage in stages:
        if heat is None or not heat > hot or len(stage.sites) < deep or stage.name in collapsed:
            continue
        yield Hit(
            where=(stage.where,),
            value=heat,
            expectation=f"a rising learning rate, or median u at step 0 below {short(hot)}",
            message=f"post-norm with {len(stage.sites)} sites starts without warm-up at median "
            f"u {short(heat)}",
            first_step=steps - 1,  # not known before
            last_step=steps - 1,
            stands=True,
            severity="info",
            evidence={"u at step 0": heat, "stage": stage.name},
        )
