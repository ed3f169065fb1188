"""RES901: nothing to see, or no longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from skipscope.names import counted
from skipscope.records import (
    HAVE_FORWARD,
    REASONS,
    ModuleClass,
    Parameter,
    Run,
    Severity,
    SiteMap,
    Unseen,
)
from skipscope.rule import Gate, Hit, NotMeasurable, listed, rule

Bits = npt.NDArray[np.uint8]
Steps = npt.NDArray[np.int64]

#: Skip connections that are no residual additions by design; a model of these is no blind spot.
_OTHER_KINDS = ("gate", "concatenation")
_BY_DESIGN = {*_OTHER_KINDS, "unrelated", "not watched", "left out"}


@rule(
    code="RES901",
    name="nothing-found",
    severity="warning",
    patience=3,
    explains_here=("RES104",),
)
def nothing_found(
    sites: SiteMap,
    captures: Steps,
    have: Bits,
    gate: Gate,
    why: Bits | None = None,
    modules: tuple[ModuleClass, ...] | None = None,
    parameters: tuple[Parameter, ...] | None = None,
    run: Run | None = None,
    *,
    gaps: float = 2.0,
) -> Iterator[Hit]:
    """The monitor sees no residual addition, no longer sees one, or is blind to part of the model.

    What it sees:
        * No site at all after the first capture: an information when gates or concatenations were
          seen instead (highway networks, U-Nets: connections of another kind), or when `sites` and
          `exclude` leave out all that there are; else a warning.
        * A site that stopped reporting: not called in the last `patience` captures, and for more
          than `gaps` times its longest absence before that.
        * A region without graph (under no_grad, in a compiled or reentrant-checkpointed part), and
          additions inside fused or stacked operations or transforms of `torch.func` (information):
          their sites, if any, are not measured. Regions whose parameters are all frozen are passed
          over.

    Example:
        One addition inside a region without graph, which a monitor cannot see, and
        one that it can.

            sick     ┌── no_grad ───────────┐
                     │ x ──┬───────(+)── y  │    no graph leads from y to x:
                     │     └── F ───┘       │    not found, not measured
                     └──────────────────────┘
            healthy    x ──┬───────(+)── y       y leads back to x on two ways:
                           └── F ───┘            found

    Why it matters:
        Silence about what was not measured is not health: hooks that never fire on compiled
        modules, or blocks that run without a graph, otherwise look like a network without a fault.
        Nothing else in the report speaks about these places.
    What to try:
        * name the modules to watch: `sites=[...]` takes module paths or class names; a named
          module is watched at block level, its output minus its input taken as the branch
        * use non-reentrant activation checkpointing, and keep no_grad out of the blocks
        * look at the list of what was seen and is not measured, below the profile
    When it is wrong:
        A plain network has no residual addition and none is missing; where an intervention made it
        plain, it is an information. Layers that are dropped for whole steps (LayerDrop) are absent
        by design: a site must stay away longer than `gaps` times its longest earlier absence. A
        block taken out of the model on purpose stops too.
    Thresholds:
        * gaps: a site is gone after so many times its longest earlier absence
    Source:
        Hooks that never fire after compilation: pytorch/pytorch issues 117758 and 173452.
        Checkpointing that reruns the forward: pytorch/pytorch issue 143573. A drawn skip line is
        no proof of a residual connection: U-Net, Highway (arXiv 1505.00387).
    """
    if not len(captures):
        raise NotMeasurable("needs a capture, has none")
    if not sites.sites:
        yield _nothing(sites, modules or (), captures, run.intervention if run else "")
    yield from _gone(sites, captures, have, why, gate, gaps)
    yield from _blind(sites.unseen, parameters or (), captures)


def _nothing(
    sites: SiteMap, modules: Sequence[ModuleClass], captures: Steps, intervention: str
) -> Hit:
    seen: Counter[str] = Counter()
    for unseen in sites.unseen:
        seen[unseen.what] += max(unseen.count, 1)
    by_design = set(seen) <= _BY_DESIGN
    other_kind = by_design and any(what in seen for what in _OTHER_KINDS)
    cause = "its connections are of another kind, which have no r" if other_kind else ""
    if by_design and "left out" in seen:
        cause = "sites= and exclude= leave out every residual addition of the model"
    if intervention:
        cause = f"an intervention took them: {intervention}"
    parts = [f"{count} x {what}" for what, count in seen.most_common()]
    instead = f"seen instead: {', '.join(parts)}" if parts else "no addition of any kind was seen"
    called = listed(sorted({module.name for module in modules}), 6)
    severity: Severity | None = "info" if cause else None
    return Hit(
        where=("model",),
        value=0.0,
        expectation="at least one addition of a shortcut and a branch that descends from it",
        message=f"no residual addition found; {instead}",
        first_step=int(captures[0]),
        last_step=int(captures[-1]),
        severity=severity,
        evidence={**{what: float(count) for what, count in seen.items()}, "modules": called},
        cause=cause,
    )


def _gone(
    sites: SiteMap, captures: Steps, have: Bits, why: Bits | None, gate: Gate, gaps: float
) -> Iterator[Hit]:
    """One hit for all sites that stopped together."""
    by_start: dict[tuple[int, str], list[int]] = {}
    for site in sites.sites:
        if site.index >= have.shape[1]:
            continue
        reported = np.flatnonzero(have[:, site.index] & HAVE_FORWARD)
        if not len(reported):
            continue
        absent = len(have) - 1 - int(reported[-1])
        longest = int(np.max(np.diff(reported), initial=1)) - 1
        if absent >= gate.patience and absent > gaps * longest:
            reason = REASONS[int(why[-1, site.index])] if why is not None else ""
            by_start.setdefault((int(reported[-1]) + 1, reason), []).append(site.index)
    for (row, reason), indices in by_start.items():
        gone = [sites.sites[index] for index in indices]
        yield Hit(
            where=tuple(dict.fromkeys(site.module or "model" for site in gone)),
            value=float(len(have) - row),
            expectation="a number from every site in every capture",
            message=f"{listed(site.name for site in gone)} stopped reporting: absent from the last "
            f"{counted(len(have) - row, 'capture')}",
            first_step=int(captures[row]),
            last_step=int(captures[-1]),
            evidence={"captures": float(len(have) - row)},
            cause=reason,
        )


def _blind(
    unseen: Sequence[Unseen], parameters: Sequence[Parameter], captures: Steps
) -> Iterator[Hit]:
    kinds: tuple[tuple[str, Severity | None], ...] = (
        ("no graph", None),
        ("fused", "info"),
        ("stack-sum", "info"),
        ("transform", "info"),
    )
    for what, severity in kinds:
        places = [u for u in unseen if u.what == what and not _frozen(u.where, parameters)]
        if not places:
            continue
        named = tuple(dict.fromkeys(u.where or "model" for u in places))
        sources = dict.fromkeys(u.source for u in places)
        reasons = list(dict.fromkeys(u.reason for u in places if u.reason))
        yield Hit(
            where=named,
            value=float(len(places)),
            expectation="every addition of a training step inside autograd's graph, on its own",
            message=f"{what}: additions in {listed(named)} are not measured ({listed(sources, 2)})",
            first_step=int(captures[0]),
            last_step=int(captures[-1]),
            severity=severity,
            evidence={"places": float(len(places))},
            cause=listed(reasons, 2),
        )


def _frozen(where: str, parameters: Sequence[Parameter]) -> bool:
    inside = [p for p in parameters if not where or p.name.startswith(where + ".")]
    return bool(inside) and not any(p.trainable for p in inside)
