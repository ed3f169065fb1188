"""RES501: a shortcut that changes what it carries although nothing asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Severity, Site, SiteMap
from skipscope.rule import Gate, Hit, Stage, listed, rule, short
from skipscope.rule.shortcuts import MATRICES, RESAMPLERS, before, carried

Floats = npt.NDArray[np.float64]

#: (x + F)/sqrt(2) keeps the variance of the stream: its shortcut is scaled by this.
_KEEPS_VARIANCE = 2**-0.5
#: A constant, learned or not, changes by less than this share from capture to capture.
_STEADY = 0.01


@rule(
    code="RES501",
    name="needless-projection",
    severity="warning",
    patience=3,
    explains=("RES101", "RES103", "RES105", "RES201", "RES205", "RES301", "RES302", "RES304"),
)
def needless_projection(
    sites: SiteMap,
    stages: tuple[Stage, ...],
    gate: Gate,
    rms_shortcut: Table,
    rms_sum: Table,
    adapter_ratio: Table | None = None,
    *,
    info: int = 10,
    warning: int = 20,
    low: float = 0.4,
    high: float = 2.5,
    near: float = 0.05,
    share: float = 0.5,
    several: int = 3,
) -> Iterator[Hit]:
    """A shortcut is no identity although its shapes agree.

    What it sees:
        * Shortcuts with a constant far from 1: below `low`, or above `high` on a stream without
          norms, for `patience` captures, on `several` sites and a share of `share` of the stream.
          The constant is RMS(shortcut) / RMS(input), and it compounds: .1 over 8 blocks is 1e-8.
        * Blocks of one stream whose shortcut holds a convolution or linear map, or a constant that
          differs from 1 by more than `near`, although the stream has the same shape before and
          after: from `info` such blocks on an information, from `warning` on a warning.

    Example:
        Two of many blocks: with a matrix W on each shortcut (a constant such as .1 in
        its place is alike), and with the identity.

            sick     x ──┬── W ──(+)──┬── W ──(+)── y    what x holds has passed
                         └── F ───┘   └── F ───┘         every W on its way to y
            healthy  x ──┬───────(+)──┬───────(+)── y    what x holds is in y
                         └── F ───┘   └── F ───┘         as it was

    Why it matters:
        The identity is what lets the signal and its gradient pass any number of blocks unchanged;
        whatever stands on it is multiplied with itself once per block. ResNet-110 on CIFAR-10,
        test error: identity 6.61 %, x and F both times .5 12.35 %, 1x1 convolutions 12.22 %. In a
        shallow net the price is small or none: at 34 layers on ImageNet, projections everywhere
        were slightly better (top-5 error 7.40 % against 7.46 % with those between stages only).
    What to try:
        * add x itself where shapes agree; keep the projection where they change
        * put the constant on the branch instead of the shortcut
        * if both are to be scaled, use (x + F)/sqrt(2), which keeps the variance
    When it is wrong:
        Projections where a stage begins are needed and not counted; so are DeepNorm's constants
        above 1 (its norm takes the scale away), (x + F)/sqrt(2) and scales on the branch
        (LayerScale). A gate is no residual addition and never counted (highway networks). Dropout
        on the shortcut leaves no trace in its path and is not seen here. In nets of fewer than
        `info` such blocks the rule is silent by design.
    Thresholds:
        * info: blocks with a needless projection or constant, information
        * warning: the same, warning
        * low: a constant below this is far from 1
        * high: a constant above this is far from 1
        * near: a constant that differs from 1 by no more counts as 1
        * share: of a stream's sites that have a constant far from 1
        * several: sites with a constant far from 1
    Source:
        He 2016 (arXiv 1603.05027), table 1; He 2015 (arXiv 1512.03385), table 3. DeepNorm:
        arXiv 2203.00555. The limits .4 and 2.5 are argued: .5 is left to the count, because the
        mean of x and F is in use. That the rows become one (RES205) follows: a LayerScale
        transformer of 16 sites with shortcuts times .1 kept 1e-16 of its input, and what was left
        were the biases (squared mean 8.5e6 times the variance). Counts are those of the depths at
        which both papers measured.
    """
    earlier = before(sites)
    factors = {
        site.index: carried(site, earlier, rms_shortcut, rms_sum, adapter_ratio)
        for site in sites.block_level
        if site.kind == "scaled"
    }
    steps = rms_shortcut.steps
    for line in _by_stream(stages):
        far = _far(line, factors, gate, steps, (low, high))
        if len(far) >= max(several, share * len(line)):
            yield _far_hit(far, factors, gate, steps, len(line))
        else:
            found = _needless(line, factors, near)
            if len(found) >= info:
                yield _count_hit(found, len(line), steps, info, warning)


def _by_stream(stages: Sequence[Stage]) -> list[list[tuple[int, Site]]]:
    """Position in the stage and site, stream by stream."""
    lines: dict[int, list[tuple[int, Site]]] = {}
    for stage in stages:
        lines.setdefault(stage.stream, []).extend(enumerate(stage.sites))
    return list(lines.values())


def _takes_scale_away(site: Site) -> bool:
    return site.norm_placement == "post-norm" or "norm" in site.link


def _far(
    line: Sequence[tuple[int, Site]],
    factors: dict[int, Floats],
    gate: Gate,
    steps: npt.NDArray[np.int64],
    limits: tuple[float, float],
) -> list[Site]:
    """The sites whose constant is far from 1 for long enough."""
    low, high = limits
    found = []
    for _, site in line:
        if site.index not in factors:
            continue
        values = factors[site.index][:, None]
        with np.errstate(invalid="ignore"):
            shown = (values < low) | ((values > high) & (not _takes_scale_away(site)))
        if gate.streaks(steps, shown, np.isnan(values)):
            found.append(site)
    return found


def _far_hit(
    far: Sequence[Site],
    factors: dict[int, Floats],
    gate: Gate,
    steps: npt.NDArray[np.int64],
    count: int,
) -> Hit:
    values = np.array([np.nanmedian(factors[site.index]) for site in far])
    compounded = float(np.prod(values))
    typical = float(np.median(values))
    return Hit(
        where=tuple(dict.fromkeys(site.name for site in far)),
        value=typical,
        expectation="an identity: RMS(shortcut) / RMS(input) of 1, whose product over depth is 1",
        message=f"the shortcut is multiplied by {short(typical)} at {len(far)} of {count} sites "
        f"({listed(site.name for site in far)}): {short(compounded)} over all of them",
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        evidence={"constant": typical, "product": compounded, "sites": float(len(far))},
        cause="a constant on the shortcut: " + listed(dict.fromkeys(s.source for s in far), 2),
    )


def _needless(
    line: Sequence[tuple[int, Site]], factors: dict[int, Floats], near: float
) -> list[Site]:
    """The sites after the first of their stage that map or scale their shortcut."""
    found = []
    for k, site in line:
        path, link = set(site.shortcut_path), set(site.link)
        if k == 0 or site.broadcast or (path | link) & RESAMPLERS or link & MATRICES:
            continue
        maps = site.kind == "projection" and bool(path & MATRICES)
        if maps or _is_constant(site, factors.get(site.index), near):
            found.append(site)
    return found


def _is_constant(site: Site, values: Floats | None, near: float) -> bool:
    """Whether the shortcut is scaled by something that is neither 1 nor of the exempt kinds."""
    known = values[np.isfinite(values)] if values is not None else np.zeros(0)
    if not len(known):
        return False
    value = float(np.median(known))
    if len(known) > 1 and np.median(np.abs(np.diff(known))) > _STEADY * value:
        return False  # a mask, not a constant
    exempt = abs(value - _KEEPS_VARIANCE) < 0.01 or (value > 1 and _takes_scale_away(site))
    return abs(value - 1) > near and not exempt


def _count_hit(
    found: Sequence[Site], count: int, steps: npt.NDArray[np.int64], info: int, warning: int
) -> Hit:
    severity: Severity | None = "info" if len(found) < warning else None
    ways = listed(dict.fromkeys("+".join(site.shortcut_path) or "scale" for site in found), 3)
    return Hit(
        where=tuple(dict.fromkeys(site.name for site in found)),
        value=float(len(found)),
        expectation=f"fewer than {info} of them where the shape of the stream does not change",
        message=f"{len(found)} of {count} shortcuts change x although shapes agree ({ways})",
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        severity=severity,
        evidence={"blocks": float(len(found)), "sites": float(count), "path": ways},
    )
