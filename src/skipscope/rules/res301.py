"""RES301: early blocks get far less, or far more, gradient than late ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from skipscope.history import Table
from skipscope.records import Severity
from skipscope.rule import Gate, Hit, Stage, Streak, rule, short
from skipscope.rule.gradients import GradientProfile, profiles


@rule(
    code="RES301",
    name="gradient-imbalance",
    severity="warning",
    patience=3,
    explains=("RES402",),
    explains_overall=("RES001", "RES402"),
    whole_stream=True,
)
def gradient_imbalance(
    grad_sum_norm: Table,
    stages: tuple[Stage, ...],
    gate: Gate,
    *,
    decades: float = 2.5,
    decades_error: float = 4.0,
    named: float = 100.0,
    depth: int = 8,
) -> Iterator[Hit]:
    """The first blocks of a stage get a gradient orders of magnitude from that of the last.

    What it sees:
        G = gradient at the first sum over gradient at the last sum of one stage, for stages of
        `depth` sites or more (of one stream and one shape, so that the first site and what stands
        before it stay out). Found where log10 G is beyond plus or minus `decades` for `patience`
        captures in a row, an error beyond `decades_error`. Named are the blocks of the first
        quarter; the message counts all sums with `named` times less (or more) than the last.

    Example:
        The gradient at each sum along a pre-norm transformer of 12 blocks (24 sites)
        after 40 steps, with the gradient times 1e-5 at the entry of one block and as
        it is (`python -m benchmarks.faults.draw RES301 --seed 1`).

                     gradient by site            first smallest     last        G
            sick     ▁▁▁▁▁▁██████████████████ 1.61e-07 1.41e-07   0.0113 1.43e-05
            healthy  ████████████████████████   0.0167   0.0115   0.0115     1.45
            scale    1.41e-07 to 0.0167, logarithmic
            found    log10 G beyond +-2.5 for 3 captures

    Why it matters:
        dy/dx = I + J keeps a path open and promises no size: products of I + J amplify, shrink or
        cancel, and whatever stands on the main path (a norm, a projection) changes the direct path
        too. 24 intact shortcuts with a norm behind each, trained without warm-up, left the first
        site 1.25e-7 of the last one's gradient. Early blocks then keep the weights they started
        with, or, in the other direction, take all of the step.
    What to try:
        * shrinking under post-norm: a longer warm-up, a lower learning rate, or pre-norm
        * growing: scale each branch by 1/sqrt(depth), or normalise its input
        * look for one site between the named blocks and the rest: a detached shortcut (RES304), a
          projection, a scale
    When it is wrong:
        Only gradients of one stream are compared, never with a threshold of their own: batch,
        reduction and loss scale cancel. Where the last gradient is 0 (a head of zeros at step 0)
        there is no ratio; frozen blocks before the first trained one are left out. Healthy runs
        reach G = 43 (batch norm), 37 (pre-norm, 48 sites), 75 (200 sites), and .56 (post-norm).
        Under Adam a small gradient still makes full-sized updates: RES402 tells whether the first
        blocks move.
    Thresholds:
        * decades: absolute log10 of G, warning
        * decades_error: the same, error
        * named: sums with so many times less (or more) gradient than the last are counted
        * depth: sites with a gradient needed in a stage
    Source:
        Hanin & Rolnick 2018 (arXiv 1803.01719), Xiong 2020 (2002.04745), Yang 2019 (1902.08129).
        Post-norm at depth: pytorch/pytorch issue 55270. The limit of 2.5 decades was scored on 22
        healthy and 7 sick small runs without a false alarm or a miss, and holds on 34 further
        healthy ones (largest absolute log10 G 1.3). A second limit per block (factor outside .75 to
        1.3 beyond 2 decades) was left out: it differs from the first at 20 to 22 sites only.
    """
    for profile in profiles(grad_sum_norm, stages, depth):
        missing = np.isnan(profile.ratio)[:, None]
        shown = (np.abs(profile.decades) > decades)[:, None] & ~missing
        for streak in gate.streaks(profile.steps, shown, missing):
            yield _hit(profile, streak, decades, decades_error, named)


def _hit(
    profile: GradientProfile, streak: Streak, decades: float, grave: float, named: float
) -> Hit:
    ratio = float(profile.ratio[streak.last])
    severity: Severity = "error" if abs(profile.decades[streak.last]) > grave else "warning"
    per_site = ratio ** (1 / max(len(profile.sites) - 1, 1))
    start = float(profile.ratio[np.flatnonzero(~np.isnan(profile.ratio))[0]])
    return Hit(
        where=profile.early,
        value=ratio,
        expectation=f"G within 10^-{short(decades)} and 10^{short(decades)} (healthy at depth: "
        f".05 to 75); about {short(per_site)}x a site here",
        message=f"gradient at the first of {len(profile.sites)} sums is {short(ratio)}x that at "
        f"the last; {profile.beyond(streak.last, named)}",
        first_step=streak.steps[0],
        last_step=streak.steps[1],
        severity=severity,
        evidence={
            "G": ratio,
            "G at first": start,
            "factor per site": per_site,
            "stage": profile.stage.name,
        },
    )
