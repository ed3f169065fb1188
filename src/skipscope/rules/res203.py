"""RES203: late branches that hardly change the stream any more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from skipscope.history import Table
from skipscope.records import Group, Parameter
from skipscope.rule import Gate, Hit, Stage, rule, short
from skipscope.rule.decayed import decay_cause, decayed_scales
from skipscope.rule.medians import stage_medians
from skipscope.rule.siblings import of_branch


@rule(code="RES203", name="dilution", severity="info", patience=3, min_steps=1000)
def dilution(
    branch_ratio: Table,
    stages: tuple[Stage, ...],
    gate: Gate,
    parameters: tuple[Parameter, ...] | None = None,
    groups: tuple[Group, ...] | None = None,
    weight_norm: Table | None = None,
    *,
    level: float = 0.02,
    lasting: int = 1000,
    depth: int = 8,
    part: float = 1 / 3,
) -> Iterator[Hit]:
    """The last third of a stage hardly changes the stream any more.

    What it sees:
        The median of r = ||F(x)|| / ||s|| over the last `part` of the sites of a stage of `depth`
        sites or more stays below `level` for `lasting` steps, up to the last capture.

    Example:
        r along a pre-norm transformer of 12 blocks (24 sites) after 40 steps, with
        its branches times .015 and as they are; the rule waits until it has lasted
        (`python -m benchmarks.faults.draw RES203 --seed 1`).

                     r by site                   first smallest     last
            sick     ▂▁▁▁▁▁▂▁▂▂▁▁▂▂▂▁▂▁▂▁▂▁▂▁  0.00803  0.00587  0.00740
            healthy  █████▇█▇█▇▇▇▇▇▇▇▇▆▇▆▇▆▇▆    0.210   0.0869    0.113
            scale    0.00587 to 0.253, logarithmic
            found    median of the last third below 0.02 for 1000 steps

    Why it matters:
        A pre-norm stream grows with depth while its branches keep their size, so r falls like
        1/sqrt(k+1) and late blocks are close to the identity. Blocks that change nothing can be
        removed with little loss, which says that depth was paid for and not used.
    What to try:
        * fewer blocks, or the same ones with a branch scale that grows with depth
        * compare the quality with and without the last third before anything else
        * norm weights and branch scales in a group without weight decay, where the cause names them
    When it is wrong:
        Whether this costs anything is contested, so it is never more than an information. The law
        alone gives .03 at 1000 blocks, a scale of 1e-5 on the branches less at any depth. One
        branch that dominates (RES101) makes all later r small while the branches are as large as
        before; the finding then follows from that one.
    Thresholds:
        * level: median r of the last part
        * lasting: steps it must last
        * depth: sites needed in a stage
        * part: the share of the sites that is looked at
    Source:
        Curse of Depth (arXiv 2502.05795); layers that can be left out: ShortGPT (2403.03853),
        Gromov 2024 (2403.17887). Contested: pre-norm streams of healthy released models grow 5 to
        2747 times. Argued, not scored.
    """
    for seen in stage_medians(branch_ratio, stages, depth, part):
        shown = (seen.values < level)[:, None]
        for streak in gate.streaks(branch_ratio.steps, shown, np.isnan(seen.column)):
            lasted = streak.steps[1] - streak.steps[0]
            last = np.flatnonzero(~np.isnan(seen.values))[-1]
            if lasted < lasting or streak.last < last:
                continue
            value = float(seen.values[streak.last])
            branches = [p for site in seen.sites for p in of_branch(site, parameters or ())]
            yield Hit(
                where=(seen.stage.where,),
                value=value,
                expectation=f"median r of the last part above {short(level)} (law 1/sqrt(k+1): "
                f"{short(1 / np.sqrt(len(seen.stage.sites)))} at this depth)",
                message=f"median r {short(value)} over the last {len(seen.sites)} of "
                f"{len(seen.stage.sites)} sites of {seen.stage.name}, for {lasted} steps",
                first_step=streak.steps[0],
                last_step=streak.steps[1],
                evidence={"stage": seen.stage.name, "steps": float(lasted)},
                cause=decay_cause(decayed_scales(branches, groups or (), weight_norm)),
            )
