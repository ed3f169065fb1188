"""RES304: a shortcut that passes no gradient back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from skipscope.history import Table
from skipscope.records import Site
from skipscope.rule import Gate, Hit, Stage, listed, rule, short


@rule(
    code="RES304",
    name="detached-shortcut",
    severity="warning",
    patience=3,
    explains=("RES301", "RES402"),
)
def detached_shortcut(
    stages: tuple[Stage, ...],
    branch_ratio: Table,
    gate: Gate,
    shortcut_presence: Table | None = None,
    *,
    present: float = 0.2,
    largest_r: float = 1.0,
) -> Iterator[Hit]:
    """A shortcut is added in the forward pass and cut off in the backward pass.

    What it sees:
        * certain: the shortcut has no graph although it shares its memory with the block's input,
          which has one: x.detach(), x.data, or a copy made under no_grad
        * by numbers, for the sites that this leaves open: presence of the shortcut in the gradient
          a = <g_x, alpha*g_y> / ||alpha*g_y||^2 below `present` while r is below `largest_r`, for
          `patience` captures in a row. Intact shortcuts have a about 1 whatever the branch adds.

        All such sites make one finding.

    Example:
        One addition whose shortcut is cut off from the gradient, and an intact one.

            sick     x ──┬── detach ──(+)── y    forward: x + F(x)
                         └──── F ──────┘         backward: through F alone
            healthy  x ──┬────────────(+)── y    forward: x + F(x)
                         └──── F ──────┘         backward: through x and through F

    Why it matters:
        The forward pass is that of a residual net, so outputs, r and growth look right, and the
        backward pass is that of a plain one: dy/dx = J_F without I. At initialisation J_F is a few
        tenths, and the gradient shrinks by that factor at every such site: what residual
        connections are there for is gone.
    What to try:
        * take detach(), .data, no_grad or a copy through numpy out of the shortcut's path
        * if it is meant (blocks trained one by one), allow it with `ignore`
    When it is wrong:
        Projections, gates and scaled shortcuts (RES501 tells of those) are not judged by numbers,
        nor the first site of a stage (its x may be small or
        have no graph) and the first block behind an embedding. A branch that really cancels the
        shortcut in the backward pass (a near -1 times x) looks the same by numbers; r below
        `largest_r` all but excludes it. Blocks behind frozen layers have no gradient at x and are
        not measured.
    Thresholds:
        * present: presence of the shortcut in the gradient below this
        * largest_r: only where r is below this
    Source:
        Algebra: g_x = alpha*g_y + J_F^T g_y, so a = 1 + (branch part along g_y). Measured in small
        nets: healthy minimum .57 over 47 runs, detached .01. He 2016 (arXiv 1603.05027) on what a
        changed shortcut costs.
    """
    limits = present, largest_r
    certain = [s for stage in stages for s in stage.sites if s.shortcut_source == "detached"]
    if certain:
        yield _together(
            certain,
            "the shortcut is cut from the graph at {names}: no gradient passes it",
            (int(branch_ratio.steps[0]), int(branch_ratio.steps[-1])),
            {"kind": "certain"},
        )
    if shortcut_presence is not None:
        known = {site.name for site in certain}
        others = [
            s
            for stage in stages
            for _, s in stage.judged
            if s.name not in known and s.kind == "identity"
        ]
        yield from _by_numbers(others, shortcut_presence, branch_ratio, gate, limits)


def _by_numbers(
    sites: Sequence[Site], presence: Table, ratio: Table, gate: Gate, limits: tuple[float, float]
) -> Iterator[Hit]:
    present, largest_r = limits
    columns = [presence.columns.index(site.name) for site in sites]
    a, r = presence.values[:, columns], ratio.values[:, columns]
    missing = np.isnan(a) | np.isnan(r)
    with np.errstate(invalid="ignore"):
        shown = (a < present) & (r < largest_r)
    streaks = gate.streaks(presence.steps, shown, missing)
    if streaks:
        least = min(float(a[streak.last, streak.column]) for streak in streaks)
        yield _together(
            [sites[streak.column] for streak in streaks],
            "next to no gradient passes the shortcut at {names}: presence a " + short(least),
            (min(s.steps[0] for s in streaks), max(s.steps[1] for s in streaks)),
            {"kind": "by numbers"},
            least,
        )


def _together(
    sites: Sequence[Site],
    message: str,
    steps: tuple[int, int],
    evidence: dict[str, float | str],
    value: float = 0.0,
) -> Hit:
    """One finding for all sites of one kind."""
    return Hit(
        where=tuple(dict.fromkeys(site.name for site in sites)),
        value=value,
        expectation="presence of the shortcut in the gradient about 1 (g_x = g_y + J^T g_y)",
        message=message.format(names=listed(site.name for site in sites)),
        first_step=steps[0],
        last_step=steps[1],
        evidence={**evidence, "sites": float(len(sites))},
    )
