"""What the start of a stage's branches tells: do they shrink in a deeper net, or stay as they are?

At one depth every curve is one under both. They differ in how the deeper net is made, and three
things of its start show that: a coefficient of the sums, the `branch_scale` of
`remedies.scale_branches`, and the size of the branches' last matrices against the others. A factor
that the code multiplies with is in none of them. Whether there can be one shows in r, which no
branch brings above what its matrices make of their input; behind a norm r shows nothing of it, and
what is seen decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skipscope.extrapolation.laws import Start
from skipscope.history import History
from skipscope.records import Parameter, Site
from skipscope.rule.siblings import Stage, of_branch, parameter_role

SAME = 0.05  #: factors that differ by less are one
DRAWN = 0.1  #: RMS of a drawn matrix against the standard deviation asked for (cut tails)
SIGMAS = 4.0  #: standard deviations of its sampling that the RMS of a matrix may be off besides
#: r^2 may be so many times what the matrices account for: biases, chance
SLACK = 2.0
#: Norms that leave the branch's input as it is; behind others r is not that of the matrices.
OUTSIDE = ("none", "post-norm", "post-activation")


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix or kernel of a branch, as it started."""

    role: str
    last: bool  #: of its branch
    rms: float
    inputs: int  #: of one output
    entries: int

    @property
    def error(self) -> float:
        """How far its RMS may be off by chance, as a logarithm: 1/sqrt(2n) for n normal entries."""
        return DRAWN + SIGMAS / math.sqrt(2 * self.entries)

    @property
    def gain(self) -> float:
        """By how much it multiplies a mean square: entries drawn around 0 do so on average."""
        return self.inputs * self.rms**2


def told(history: History, stage: Stage, sums: Sequence[int]) -> tuple[Start | None, str]:
    """How the branches of a deeper net start, and by what that is told; None, and why it is not.

    Args:
        history: what was recorded.
        stage: whose branches.
        sums: indices of the sites whose r counts.
    """
    depths = _depths(history, stage)
    start = _start(history)
    held = [_matrices(site, history.parameters, start) for site in stage.sites]
    factor = _factor(stage, history.parameters, start)
    if factor is None:
        return None, "the branches have factors of several sizes"
    for depth in depths:
        if _is(factor, 1 / math.sqrt(depth)) and "scaled" not in _sizes(held, depth):
            return "scaled", f"a factor on the branches starts at 1/sqrt({depth})"
    if not _is(factor, 1.0):
        return None, (
            f"a factor on the branches starts at {factor:.3g}, which is not 1/sqrt({depths[0]})"
        )
    sizes = {depth: _sizes(held, depth) for depth in depths}
    for depth, found in sizes.items():
        if found == {"scaled"}:
            return "scaled", f"last matrices start at 1/sqrt({depth}) of the others"
    if any(found != {"plain"} for found in sizes.values()):
        return None, "the weights at the start do not show whether the branches are scaled"
    same = "last matrices start at the size of the others"
    if any(site.norm_placement not in OUTSIDE for site in stage.sites):
        return "plain", f"{same}; behind a norm a factor in the code would not show"
    if not _accounts(history, stage, held, sums):
        return None, f"{same}, but r leaves room for a factor of 1/sqrt({depths[0]}) in the code"
    return "plain", f"{same}, and r at what they make"


def _depths(history: History, stage: Stage) -> tuple[int, ...]:
    """The L that 1/sqrt(L) may mean: sites of the stage, or of the whole stream."""
    stream = sum(site.stream == stage.stream for site in history.sites.block_level)
    return tuple(dict.fromkeys((len(stage.sites), stream)))


def _start(history: History) -> dict[str, float]:
    """Parameter to its RMS at the start of a fresh run; 0 and unknown ones are left out."""
    table = history.table("weight_rms")
    if not history.run.fresh or not len(table.steps) or table.steps[0] != 0:
        return {}
    start = zip(table.columns, table.values[0], strict=True)
    return {name: float(value) for name, value in start if np.isfinite(value) and value > 0}


def _factor(stage: Stage, parameters: Sequence[Parameter], start: dict[str, float]) -> float | None:
    """What multiplies every branch, as far as the history holds it; None: not one number.

    Several `branch_scale` of one site belong to branches that run in parallel.
    """
    found = []
    for site in stage.sites:
        names = [one.name for one in of_branch(site, parameters)]
        own = [start[n] for n in names if n.rpartition(".")[2] == "branch_scale" and n in start]
        found += [abs(site.alpha) * value for value in own or [1.0]]
    middle = float(np.median(found))
    return middle if all(_is(one, middle) for one in found) else None


def _is(value: float, wanted: float) -> bool:
    return abs(value - wanted) < SAME * wanted


def _matrices(
    site: Site, parameters: Sequence[Parameter], start: dict[str, float]
) -> tuple[Matrix, ...]:
    held = [one for one in of_branch(site, parameters) if len(one.shape) > 1 and one.name in start]
    held = sorted((one for one in held if one.owner != "Embedding"), key=lambda one: one.index)
    return tuple(
        Matrix(
            role=parameter_role(one),
            last=one is held[-1],
            rms=start[one.name],
            inputs=math.prod(one.shape[1:]),
            entries=math.prod(one.shape),
        )
        for one in held
    )


def _sizes(held: Sequence[Sequence[Matrix]], depth: int) -> set[str]:
    """How the last matrices start against the others: "plain", "scaled" with depth, or neither.

    They are compared by RMS, and by RMS times sqrt(inputs), which is one number where a start
    follows the number of inputs; where the two disagree, both answers are given.
    """
    every = [one for branch in held for one in branch]
    answers: set[str] = set()
    for power in (0.0, 0.5):
        last, others = (
            {one: one.rms * one.inputs**power for one in every if one.last is wanted}
            for wanted in (True, False)
        )
        if not last or not others:
            continue
        usual = _pooled(others)
        if not _all_near(others, usual):
            continue
        if _all_near(last, usual):
            answers.add("plain")
        if _all_near(last, usual / math.sqrt(depth)):
            answers.add("scaled")
    return answers


def _pooled(sizes: dict[Matrix, float]) -> float:
    """One size from all entries together; a matrix has its say by how many it holds."""
    entries = sum(one.entries for one in sizes)
    return math.sqrt(sum(one.entries * size**2 for one, size in sizes.items()) / entries)


def _all_near(sizes: dict[Matrix, float], wanted: float) -> bool:
    """Whether each matrix, and each role together, has a size up to its sampling."""
    roles: dict[str, dict[Matrix, float]] = {}
    for one, size in sizes.items():
        if abs(math.log(size / wanted)) > one.error:
            return False
        roles.setdefault(one.role, {})[one] = size
    for held in roles.values():
        error = DRAWN + SIGMAS / math.sqrt(2 * sum(one.entries for one in held))
        if abs(math.log(_pooled(held) / wanted)) > error:
            return False
    return True


def _accounts(
    history: History, stage: Stage, held: Sequence[Sequence[Matrix]], sums: Sequence[int]
) -> bool:
    """Whether r at the start is too large for a factor of 1/sqrt(L) that nothing else shows.

    A branch makes of a mean square at most the product of its matrices' gains; one that may not be
    on the way counts where it enlarges. Activations only take away.
    """
    table = history.table("branch_ratio")
    if not len(table.steps) or table.steps[0] != 0:
        return False
    squares = table.values[0, list(sums)] ** 2
    most = [
        math.prod(one.gain if one.last else max(one.gain, 1.0) for one in branch)
        for branch in held
        if branch
    ]
    limit = SLACK * float(np.median(most)) / len(stage.sites)
    known = squares[np.isfinite(squares)]
    return bool(len(known)) and float(np.median(known)) > limit
