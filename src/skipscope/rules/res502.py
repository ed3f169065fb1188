"""RES502: an addition that broadcasts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Severity, Site, SiteMap
from skipscope.rule import Hit, NotMeasurable, listed, rule, short
from skipscope.rule.shortcuts import column


@rule(code="RES502", name="broadcast-addition", severity="warning", explains=("RES103",))
def broadcast_addition(
    sites: SiteMap,
    captures: npt.NDArray[np.int64],
    branch_ratio: Table | None = None,
) -> Iterator[Hit]:
    """Shortcut and branch differ in shape, and broadcasting made the sum.

    What it sees:
        Residual additions whose operands have different shapes. One finding for each line of code;
        inside the branch of another site it is an information.

    Example:
        One addition in a net whose stream has B samples of T tokens of width D.

            sick     x (B, T, D) ──┬─────────────────────────(+)── y (B, T, D)
                                   └── F ── mean (B, 1, D) ───┘
                                       one row is added to all T tokens
            healthy  x (B, T, D) ──┬─────────────────────────(+)── y (B, T, D)
                                   └── F (B, T, D) ───────────┘
                                       each token has a row of its own

    Why it matters:
        (B, 1, D) + (B, T, D) is legal and silent: every token gets the same update, or every head
        the same shortcut, and the branch has T times fewer degrees of freedom than it seems. Tools
        that take the norm of the small operand also report a branch ratio that is too small, by
        sqrt(T); the ratio given here is that of the operands as expanded.
    What to try:
        * compare the shapes of x and of the branch's output at the line named
        * look for a mean or sum with keepdim=True, a missing transpose or a lost axis
        * if it is meant (a context vector for all positions), expand it in the code and allow it
          with `ignore`
    When it is wrong:
        Global-context and squeeze blocks broadcast on purpose and look the same. A positional
        embedding or a conditioning vector does not count: it does not descend from the shortcut.
    Thresholds:
        None: shapes agree or they do not.
    Source:
        dmlc/dgl PR 2867 (a residual of shape (N, 1, F) added to (N, H, F)); the loud sister, batch
        1 against batch 2, in kijai/ComfyUI-WanVideoWrapper issue 174.
    """
    if not len(captures) or not sites.sites:
        raise NotMeasurable("needs a residual addition")
    groups: dict[tuple[str, bool], list[Site]] = {}
    for site in sites.sites:
        if site.broadcast:
            groups.setdefault((site.source, site.nested), []).append(site)
    for (source, nested), found in groups.items():
        alike = sum(site.source == source and site.nested == nested for site in sites.sites)
        severity: Severity | None = "info" if nested else None
        ratio = _largest(branch_ratio, found)
        shape = "x".join(str(length) for length in found[0].shape)
        evidence: dict[str, float | str] = {"sum": shape, "sites": float(len(found))}
        if ratio is not None:
            evidence["r"] = ratio
        yield Hit(
            where=tuple(dict.fromkeys(site.name for site in found)),
            value=float(len(found)),
            expectation="operands of one shape at every addition",
            message=f"the operands differ in shape at {listed(site.name for site in found)} "
            f"({len(found)} of {alike} additions of {source}); the sum is {shape}"
            + (f", r {short(ratio)} as expanded" if ratio is not None else ""),
            first_step=int(captures[0]),
            last_step=int(captures[-1]),
            severity=severity,
            evidence=evidence,
            cause=f"{source}: of the additions made there only these broadcast"
            if len(found) < alike
            else "",
        )


def _largest(ratio: Table | None, found: list[Site]) -> float | None:
    """The largest r of these sites in the last capture that has one."""
    values = [column(ratio, site.name) for site in found]
    last = [v[np.isfinite(v)][-1] for v in values if v is not None and np.isfinite(v).any()]
    return float(max(last)) if last else None
