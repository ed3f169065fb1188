"""RES103: branches that add nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Group, Parameter, Severity, Site, SiteMap
from skipscope.rule import Gate, Hit, NotMeasurable, Stage, Warmup, either, listed, rule, short
from skipscope.rule.branch_updates import BranchUpdates, real_steps, running
from skipscope.rule.dead_advice import dead_advice, is_bias
from skipscope.rule.decayed import decay_cause, decayed_scales
from skipscope.rule.gates import after_warmup
from skipscope.rule.siblings import of_branch

Floats = npt.NDArray[np.float64]

#: Kinds of cause, in words; the first ones are those of the exact arm.
_CAUSES = {
    "frozen": "every parameter of the branch is frozen ({blamed})",
    "in no optimizer group": "{blamed}: in no optimizer group, so never updated",
    "lr 0": "{blamed}: in an optimizer group with lr 0, so never updated",
    "both factors zero": "{blamed}: 0 together, so every gradient is exactly 0",
    "no gradient": "every gradient is exactly 0: what the branch computes is cut off or times 0",
    "unknown": "",
    "starved": "insufficient optimisation: gradients and updates of the whole branch are far below "
    "its siblings'",
    "low contribution": "gradients are normal: a small coefficient, or a block the task can spare",
    "spared": "gradients are normal and the loss has fallen: a block that the task can spare",
    "held small": "gradients are normal and the loss has not fallen: limited capacity, a "
    "coefficient that keeps the branch small",
}
#: What a branch with normal gradients is called.
_LOW = ("low contribution", "spared", "held small")
#: A loss that has lost less than this share of its first value has not fallen.
_FALLEN = 0.1


@rule(
    code="RES103",
    name="dead-branch",
    severity="warning",
    patience=3,
    explains=("RES203",),
    explains_here=("RES104", "RES404"),
    signed=("rise",),
)
def dead_branch(
    branch_ratio: Table,
    sites: SiteMap,
    stages: tuple[Stage, ...],
    parameters: tuple[Parameter, ...],
    lr: Table,
    gate: Gate,
    skipped: Table | None = None,
    warmup: Warmup | None = None,
    gradient_norm: Table | None = None,
    update_norm: Table | None = None,
    weight_norm: Table | None = None,
    groups: tuple[Group, ...] | None = None,
    loss: Table | None = None,
    *,
    real: int = 10,
    unseen_captures: int = 10,
    weak: float = 1e-3,
    share_of_median: float = 0.05,
    share_of_siblings: float = 0.01,
    rise: float = 0.05,
    captures: int = 5,
    settled: int = 500,
) -> Iterator[Hit]:
    """A branch adds nothing, or next to nothing, to its stream.

    What it sees:
        Two arms; the finding says which.

        * exact: r = ||F(x)|| / ||s|| is 0 on every capture up to the last one, `patience` captures
          or more, over at least `real` optimizer steps whose learning rate is above 0 in a group of
          the branch. Steps that an optimizer skipped, and steps with learning rate 0, do not count.
          The other sites play no part (all may be dead), nor do moving weights (weight decay moves
          them). The captures need not be dense: those of steps 0, 1, 2, 4, 8 and 16 are enough at
          step 16.
        * starved: in the last `captures` captures, `settled` steps or more past warm-up, r is below
          `weak`, and below `share_of_median` of the median of its stage or that median is below
          `weak` too; ln r is not rising; and gradient and update of every parameter of the branch
          are under `share_of_siblings` of those of the same parameter of sibling blocks, or of
          their own at the end of warm-up. The same small r with normal gradients is an information,
          "low contribution". The cause then says what it looks like: insufficient optimisation
          where the branch is starved; with normal gradients a block that the task can spare where
          the loss has fallen by a tenth or more, and limited capacity where it has not.

        The cause is named where the records show it: a parameter in no optimizer group, a
        group with learning rate 0, gradients that are exactly 0, frozen parameters (information),
        a norm weight or branch scale that weight decay has more than halved.
        If only one arm could look and found nothing, the rule has passed.

    Example:
        r of one attention branch over the first 36 steps of a ReZero transformer of
        12 blocks, its gate in no optimizer group and in one
        (`python -m benchmarks.faults.draw RES103 --seed 1`).

                     r by step                               first  largest     last
            sick     ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁        0        0        0
            healthy  ▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▂▂▂▃▃▃▃▄▄▄▄▄▅▅▅▆▆▇▇██        0   0.0200   0.0195
            scale    0 to 0.0200, linear
            found    r is 0 to the end, over 10 optimizer steps or more

    Why it matters:
        A block whose branch is 0 costs time and memory and computes the identity. Branches that
        start at 0 on purpose (zero-initialised last layer, ReZero, adaLN-zero) wake up within one
        to three steps, because the last factor has a gradient as long as the others are not 0;
        when that factor is in no optimizer group, or when two factors are 0 at once, no step
        changes anything and the loss still falls, which hides the fault. Too small a coefficient
        starves a branch: 24 blocks with a factor of 1e-4 ended at the loss of a factor of 0
        (.1038 and .1037; with 1/sqrt(depth) .023).
    What to try:
        * put every parameter of the branch into an optimizer group (a name or shape filter often
          leaves scalars out), with a learning rate above 0
        * start exactly one factor of the branch at 0: the last one, and not the one before a ReLU
          or in front of a gate that is 0 as well; where two are 0, draw the earlier one again.
          skipscope.remedies.zero_init_branches(model, x) makes such a start of a live branch
        * if r is small and not 0, raise the branch's coefficient to about 1/sqrt(depth), or its
          learning rate
    When it is wrong:
        Zero-initialised branches at step 0 and stochastic depth are silent: a dropped branch is
        known by other captures where it was not 0 and by parameters that receive gradients and
        updates between the captures; without update records `unseen_captures` captures of 0 are
        asked for. A branch that is frozen on purpose is an information. A small r is no fault by
        itself: the task may not need the block, and after one dominating branch (RES101) every
        later r is small while the branch is as large as before.
    Thresholds:
        * real: exact: optimizer steps with a learning rate above 0
        * unseen_captures: exact: captures of 0 asked for where no parameter of the branch is
          recorded
        * weak: starved: r below this
        * share_of_median: starved: r below this share of the median of its stage
        * share_of_siblings: starved: gradient and update below this share of the siblings'
        * rise: starved: a rise of ln r by more than this is waking up
        * captures: starved: captures in a row
        * settled: starved: steps past warm-up
    Source:
        Both factors 0: Guitaricet/relora issue 18, KU-VGI/LFS-GAN issue 2. Gates that stay 0:
        majumderb/rezero issue 16. Healthy zero-initialisation: ReZero (arXiv 2003.04887), Fixup
        (1901.09321), tensorpack issue 420. Small r judged with gradients and updates only:
        epsilon-ResNet (1804.01661). Argued and tried on these cases, not scored on a benchmark.
    """
    seen = _Seen(
        branch_ratio, sites, parameters, lr, running(lr, skipped), gate.patience, groups or ()
    )
    flow = BranchUpdates(parameters, gradient_norm, update_norm, weight_norm)
    limits = _Limits(weak, share_of_median, share_of_siblings, rise, captures, settled)
    yield from either(
        _exact(seen, flow, real, unseen_captures),
        _starved(seen, flow, stages, warmup, limits, loss),
    )


@dataclass(frozen=True)
class _Seen:
    ratio: Table
    sites: SiteMap
    parameters: tuple[Parameter, ...]
    lr: Table
    running: npt.NDArray[np.bool_]  #: (steps, groups): a step with a learning rate above 0
    patience: int
    groups: tuple[Group, ...]

    def rows(self, site: Site) -> npt.NDArray[np.int64]:
        """The captures in which the site was measured."""
        if site.name not in self.ratio.columns:
            return np.zeros(0, dtype=np.int64)
        column = self.ratio.columns.index(site.name)
        return np.flatnonzero(~self.ratio.missing[:, column])

    def r(self, site: Site) -> Floats:
        """Its r in these captures."""
        rows = self.rows(site)
        if not len(rows):
            return np.zeros(0)
        values: Floats = self.ratio.values[rows, self.ratio.columns.index(site.name)]
        return values


@dataclass(frozen=True)
class _Limits:
    weak: float
    share_of_median: float
    share_of_siblings: float
    rise: float
    captures: int
    settled: int


@dataclass(frozen=True)
class _Dead:
    """One site that one of the arms names."""

    site: Site
    first: int
    last: int
    r: float
    kind: str  #: sites of one kind make one finding; see _CAUSES
    blamed: tuple[str, ...]  #: parameters
    evidence: dict[str, float | str]


def _exact(seen: _Seen, flow: BranchUpdates, real: int, unseen: int) -> Iterator[Hit]:
    most, dead = 0, []
    for site in seen.sites.sites:
        rows = seen.rows(site)
        alive = np.flatnonzero(seen.r(site) != 0)
        zeros = rows[alive[-1] + 1 :] if len(alive) else rows
        branch = of_branch(site, seen.parameters)
        most = max(most, _real(seen, branch, rows))
        steps = _real(seen, branch, zeros)
        if steps < real or len(zeros) < seen.patience:
            continue
        first, last = (int(step) for step in seen.ratio.steps[zeros[[0, -1]]])
        recorded = flow.recorded(branch, first, last)
        if flow.flowing(branch, first, last) or (not recorded and len(zeros) < unseen):
            continue
        kind, blamed, gradient = _cause(seen, flow, branch, first, last)
        evidence: dict[str, float | str] = {"r": 0.0, "optimizer steps": float(steps)}
        if gradient is not None:
            evidence["largest gradient"] = gradient
        dead.append(_Dead(site, first, last, 0.0, kind, tuple(blamed), evidence))
    if most < real:
        raise NotMeasurable(
            f"exact: needs {real} optimizer steps with lr > 0 between captures, has {most}"
        )
    yield from _together(
        seen,
        dead,
        "r = 0 on every capture over {steps} optimizer steps at {names}",
        "r above 0 within 1 to 3 steps (zero-initialised branches wake up)",
    )


def _real(seen: _Seen, branch: Sequence[Parameter], rows: npt.NDArray[np.int64]) -> int:
    """Optimizer steps that could move the branch, between the first and last of these captures."""
    if len(rows) < 2:
        return 0
    first, last = (int(step) for step in seen.ratio.steps[rows[[0, -1]]])
    groups = {p.group for p in branch if p.group is not None and p.trainable}
    return real_steps(seen.lr.steps, seen.running, groups, first, last)


def _cause(
    seen: _Seen, flow: BranchUpdates, branch: Sequence[Parameter], first: int, last: int
) -> tuple[str, list[str], float | None]:
    """What keeps the branch at 0: the kind, whom to blame, and their largest gradient."""
    trainable = [p for p in branch if p.trainable]
    if branch and not trainable:
        return "frozen", [p.name for p in branch], None
    gradients = {p.name: flow.largest("gradient", p, first, last) for p in trainable}
    known = [value for value in gradients.values() if value is not None]
    wanting = [p for p in trainable if gradients[p.name] != 0]  # unknown ones too
    for kind, blamed in (
        ("in no optimizer group", [p.name for p in wanting if p.group is None]),
        ("lr 0", [p.name for p in wanting if not _moves(seen, p, first, last)]),
    ):
        if blamed:
            theirs = [value for name in blamed if (value := gradients[name]) is not None]
            return kind, blamed, max(theirs, default=None)
    if not known or max(known) > 0:
        return "unknown", [], None
    weights = [(p, flow.largest("weight", p, first, last)) for p in trainable]
    zero = [p.name for p, weight in weights if weight == 0 and not is_bias(p.name)]
    return ("both factors zero", zero, 0.0) if len(zero) > 1 else ("no gradient", [], 0.0)


def _moves(seen: _Seen, parameter: Parameter, first: int, last: int) -> bool:
    groups = {parameter.group} if parameter.group is not None else set()
    return real_steps(seen.lr.steps, seen.running, groups, first, last) > 0


def _together(seen: _Seen, dead: Sequence[_Dead], message: str, expectation: str) -> Iterator[Hit]:
    """One hit for all sites with the same kind of cause."""
    kinds = list(dict.fromkeys(one.kind for one in dead))
    matrices = {p.name for p in seen.parameters if len(p.shape) > 1}
    for kind in kinds:
        group = [one for one in dead if one.kind == kind]
        blamed = dict.fromkeys(name for one in group for name in one.blamed)
        severity: Severity | None = "info" if kind in ("frozen", *_LOW) else None
        names = listed(one.site.name for one in group)
        largest = max(one.r for one in group)
        steps = int(max(float(one.evidence.get("optimizer steps", 0.0)) for one in group))
        yield Hit(
            where=tuple(dict.fromkeys(one.site.name for one in group)),
            value=largest,
            expectation=expectation,
            message=message.format(names=names, r=short(largest), steps=steps),
            first_step=min(one.first for one in group),
            last_step=max(one.last for one in group),
            severity=severity,
            evidence={**group[0].evidence, "kind": kind, "sites": float(len(group))},
            cause=_cause_of(kind, tuple(blamed)),
            advice=dead_advice(kind, [one.blamed for one in group], matrices),
        )


def _cause_of(kind: str, blamed: tuple[str, ...]) -> str:
    if kind in ("starved", *_LOW) and blamed:
        return decay_cause(blamed)
    return _CAUSES[kind].format(blamed=listed(blamed))


def _starved(
    seen: _Seen,
    flow: BranchUpdates,
    stages: tuple[Stage, ...],
    warmup: Warmup | None,
    limits: _Limits,
    loss: Table | None,
) -> Iterator[Hit]:
    if warmup is None:
        raise NotMeasurable("starved: needs the learning rate of each step")
    start = after_warmup(warmup, limits.settled)
    if not flow.known:
        raise NotMeasurable("starved: needs gradients and updates, which are not recorded")
    dead = []
    for stage in stages:
        for _, site in stage.judged:
            one = _weak_site(seen, flow, stage, site, start, limits)
            if one is not None:
                dead.append(one)
    starved = [one for one in dead if one.kind == "starved"]
    low = [replace(one, kind=_reading(loss)) for one in dead if one.kind != "starved"]
    wanted = f"r above {short(limits.weak)} or rising, {limits.settled} steps past warm-up"
    yield from _together(
        seen,
        starved,
        "starved: r {r} and not rising at {names}",
        wanted,
    )
    yield from _together(
        seen, low, "low contribution: r {r} at {names}, with normal gradients", wanted
    )


def _reading(loss: Table | None) -> str:
    """What a branch with normal gradients that adds little looks like, by what the run achieved."""
    if loss is None:
        return "low contribution"
    values = loss.values[~loss.missing[:, 0], 0]
    values = values[np.isfinite(values)]
    if not len(values) or not np.median(values[:5]) > 0:
        return "low contribution"
    fallen = np.median(values[-50:]) < (1 - _FALLEN) * np.median(values[:5])
    return "spared" if fallen else "held small"


def _weak_site(
    seen: _Seen, flow: BranchUpdates, stage: Stage, site: Site, start: int, limits: _Limits
) -> _Dead | None:
    rows = seen.rows(site)
    rows = rows[seen.ratio.steps[rows] >= start]
    r = seen.r(site)[-len(rows) :] if len(rows) else np.zeros(0)
    rows, r = rows[r != 0], r[r != 0]  # 0: dropped by chance; the exact arm knows the dead
    if len(r) < limits.captures or not np.all(r[-limits.captures :] < limits.weak):
        return None
    others = [theirs[-1] for s in stage.sites if s != site and len(theirs := seen.r(s))]
    median = float(np.median(others)) if others else np.inf
    if not (r[-1] < limits.share_of_median * median or median < limits.weak):
        return None
    above = np.flatnonzero(r >= limits.weak)
    since = int(above[-1]) + 1 if len(above) else 0
    trend = np.log(r[since:])
    third = max(len(trend) // 3, 1)
    if np.median(trend[-third:]) - np.median(trend[:third]) > limits.rise:
        return None
    branch = [p for p in of_branch(site, seen.parameters) if p.trainable]
    share = limits.share_of_siblings
    starved = bool(branch) and all(flow.small(p, branch, start, share) for p in branch)
    kind = "starved" if starved else "low contribution"
    evidence: dict[str, float | str] = {"r": float(r[-1]), "median r of its stage": median}
    first_step, last_step = (int(seen.ratio.steps[row]) for row in (rows[since], rows[-1]))
    shrunk = decayed_scales(branch, seen.groups, flow.weight)
    return _Dead(site, first_step, last_step, float(r[-1]), kind, shrunk, evidence)
