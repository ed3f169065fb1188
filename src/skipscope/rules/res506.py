"""RES506: the shortcut, not the branch, is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Site, SiteMap
from skipscope.rule import Gate, Hit, NotMeasurable, listed, rule, short
from skipscope.rule.shortcuts import before, carried, column

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@rule(
    code="RES506",
    name="dropped-shortcut",
    severity="warning",
    patience=3,
    explains=("RES101", "RES105", "RES201", "RES205", "RES301", "RES304"),
)
def dropped_shortcut(
    zero_shortcut_share: Table,
    rms_shortcut: Table,
    rms_sum: Table,
    sites: SiteMap,
    gate: Gate,
    adapter_ratio: Table | None = None,
    *,
    tolerance: float = 0.002,
) -> Iterator[Hit]:
    """The shortcut is zero for a share of the samples that the stream before it was not.

    What it sees:
        Samples in which every element of the shortcut is 0, on `patience` captures (not in a row:
        it is chance), while RMS(shortcut) / RMS(what came into the block) differs from its usual
        value by more than `tolerance`. The second condition tells a shortcut that was dropped from
        a stream that is zero for that sample already. At an identity the usual value is 1; at a
        scaled shortcut the ratio must move from capture to capture by more than `tolerance`.

    Example:
        One addition with stochastic depth: on its shortcut, and on its branch.

            sick     x ──┬────── drop ──(+)── y    a dropped sample keeps F(x) and
                         └── F ──────────┘         loses x
            healthy  x ──┬──────────────(+)── y    a dropped sample keeps x
                         └── F ── drop ──┘

    Why it matters:
        Stochastic depth drops the branch and keeps the shortcut: a dropped block is the identity.
        With the two operands mixed up, the sample loses everything that all earlier blocks made of
        it, and over 12 blocks with rate .2 only 7 % of the samples keep an unbroken path.
    What to try:
        * put the mask on the branch: `x + drop_path(branch(x))`
        * look at the order of the arguments where both operands pass one helper
    When it is wrong:
        Samples that are zero by themselves (padding, a stream behind a dead ReLU) are told apart
        only where the sum before, or x itself, was measured; the first site of a stream is not
        judged where it was not, and projections never are.
    Thresholds:
        * tolerance: how far the ratio may be from its usual value
    Source:
        Stochastic depth (Huang 2016, arXiv 1603.09382) drops the branch. He 2016 (arXiv
        1603.05027), table 1: dropout of .5 on the shortcut of ResNet-110 did not converge to a good
        result (test error above 20 %). .8^12 = .069. The tolerance is argued: rounding a sum to
        bfloat16 moves its RMS by less than 1e-4.
    """
    earlier = before(sites)
    judged = 0
    sources: dict[str, list[_Dropped]] = {}
    for site in sites.block_level:
        share = column(zero_shortcut_share, site.name)
        if share is None or site.kind == "projection":
            continue
        ratio = carried(site, earlier, rms_shortcut, rms_sum, adapter_ratio)
        judged += bool(np.isfinite(ratio).any())
        zero = np.nan_to_num(share) > 0
        if zero.any():
            rows = zero & _off(site, ratio, tolerance)
            one = _Dropped(site, share, rows, bool(np.isfinite(ratio).any()))
            sources.setdefault(site.source, []).append(one)
    if not judged:
        raise NotMeasurable("needs what came into a block: the sum before it, or its input")
    for group in sources.values():
        if any(one.rows.sum() >= gate.patience for one in group):
            # Where one addition of a line drops its shortcut, its siblings need no proof each.
            found = [one for one in group if one.rows.any() or not one.judged]
            yield _hit(found, zero_shortcut_share.steps)


@dataclass(frozen=True)
class _Dropped:
    """A site whose shortcut is zero for some samples."""

    site: Site
    share: Floats  #: of the samples, by capture
    rows: Mask  #: captures in which it was dropped for certain
    judged: bool


def _off(site: Site, ratio: Floats, tolerance: float) -> Mask:
    """Where the shortcut is not what it is when nothing is dropped."""
    known = ratio[np.isfinite(ratio)]
    if not len(known):
        return np.zeros(len(ratio), dtype=bool)
    if site.kind == "identity":
        away: Mask = np.abs(ratio - 1) > tolerance
        return away
    moves = known.max() - known.min() > tolerance * known.max()
    gone: Mask = np.isfinite(ratio) & (moves | (ratio == 0))
    return gone


def _hit(found: list[_Dropped], steps: npt.NDArray[np.int64]) -> Hit:
    shares = [float(np.nanmean(one.share)) for one in found]
    share = float(np.mean(shares))
    unbroken = float(np.prod([1 - one for one in shares]))
    shown = np.flatnonzero(np.logical_or.reduce([one.rows for one in found]))
    return Hit(
        where=tuple(dict.fromkeys(one.site.name for one in found)),
        value=share,
        expectation="no sample without its shortcut (stochastic depth drops the branch)",
        message=f"the shortcut is zero for {100 * share:.0f} % of the samples at "
        f"{listed(one.site.name for one in found)}, where the stream before it is not",
        first_step=int(steps[shown[0]]),
        last_step=int(steps[shown[-1]]),
        evidence={"share": share, "largest share": max(shares), "unbroken": unbroken},
        cause=f"a mask on the shortcut at {found[0].site.source}: if each site drops on its own, "
        f"{short(100 * unbroken)} % of the samples keep every shortcut",
    )
