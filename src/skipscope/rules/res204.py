"""RES204: branches that can only add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Site
from skipscope.rule import Gate, Hit, NotMeasurable, Streak, listed, rule, short
from skipscope.rule.shape import channels
from skipscope.rule.siblings import Stage

Floats = npt.NDArray[np.float64]

#: What on the stream, behind a sum, takes a drift of the mean away, or has it by design.
_RESETS = frozenset({"norm", "activation", "linear", "convolution"})


@rule(
    code="RES204",
    name="one-sided-branch",
    severity="warning",
    patience=3,
    explains_overall=("RES202", "RES205"),
    whole_stream=True,
)
def one_sided_branch(
    min_branch: Table,
    max_branch: Table,
    mean_branch: Table,
    rms_branch: Table,
    stages: tuple[Stage, ...],
    gate: Gate,
    mean_sum: Table | None = None,
    std_sum: Table | None = None,
    *,
    below: float = 0.1,
    mean: float = 0.3,
    least: int = 8,
    depth: int = 3,
) -> Iterator[Hit]:
    """A branch can only add to the stream, never take away, so the mean of the stream drifts.

    What it sees:
        In `patience` captures in a row the smallest element of the branch, as added, is 0 or more,
        or negative by no more than `below` times its largest magnitude, and its mean is above
        `mean` times its RMS. A ReLU of a normal variable has a mean of .56 times its RMS and a
        GELU one of .43; a branch that ends in a matrix has about 0 and is as negative as positive.

    Example:
        The mean of the branch over its RMS along a pre-norm transformer of 12 blocks
        (24 sites) after 40 steps, with a ReLU behind each branch and without
        (`python -m benchmarks.faults.draw RES204 --seed 3`).

                     mean / RMS of branch        first  largest     last
            sick     ▇█▇█▇▇▇▇█▇█▇▇▇██▇█▇███▇█    0.566    0.634    0.612
            healthy  ▂▂▃▅▂▃▅▁▃▁▂▂▃▂▄▃▄▂▃▄▅▄▃▄  -0.0610    0.269    0.127
            scale    -0.218 to 0.634, linear
            found    no negative element, and above 0.3

    Why it matters:
        What such a branch writes no later branch of its kind can take back: the mean of the stream
        grows with every block and the branches can represent half of the changes only. He 2016
        moved the ReLU in front of the addition: ResNet-110 got worse, 7.84 instead of 6.61 % test
        error on CIFAR-10.
    What to try:
        * end the branch in its matrix, convolution or norm: activation first, then the last weight
        * put the activation behind the addition (post-activation) or in front of the branch
          (pre-activation)
    When it is wrong:
        Where the stream itself passes an activation, a norm or a matrix behind the sum
        (post-activation, post-norm) nothing drifts, and the rule is silent, as it is in a stream of
        fewer than `depth` sites. A stream of fewer than `least` channels, an image say, can be
        one-sided by its bias alone: not judged. Set Transformer blocks end in a ReLU by design.
        Branches that only take away are not seen, as captures keep the largest magnitude without
        its sign.
    Thresholds:
        * below: negative elements up to this share of the largest magnitude are no second side
        * mean: mean of the branch over its RMS
        * least: fewer channels are not judged
        * depth: fewer sites in the stream are not judged
    Source:
        He 2016 (arXiv 1603.05027), table 2: ReLU before addition 7.84 %, original 6.61 %, full
        pre-activation 6.37 % (ResNet-110). Smallest over largest magnitude, measured in 27 healthy
        small runs: .18 to 1 at every site and step, .26 to 1 where the mean passed .3 of the RMS.
        Argued, not scored.
    """
    tables = (min_branch, max_branch, mean_branch, rms_branch)
    judged = [stage for stage in stages if _candidates(stage, stages, least, depth)]
    if not judged:
        raise NotMeasurable(
            f"needs a stream of {depth} sites and {least} channels, with nothing between its sums"
        )
    for stage in judged:
        sites = _candidates(stage, stages, least, depth)
        lowest, largest, average, rms = (_columns(table, sites) for table in tables)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = average / rms
            shown = (lowest >= -below * largest) & (share > mean)
        streaks = gate.streaks(min_branch.steps, shown, np.isnan(share))
        if streaks:
            yield _hit(_Found(stage, sites, streaks, lowest, largest, share), mean_sum, std_sum)


def _candidates(stage: Stage, stages: Sequence[Stage], least: int, depth: int) -> list[Site]:
    """The sites of a stage behind whose sum the stream goes on as it is."""
    line = [site for other in stages if other.stream == stage.stream for site in other.sites]
    if len(line) < depth:
        return []
    line.sort(key=lambda site: (site.depth, site.index))
    after = {site.index: following.link for site, following in pairwise(line)}
    return [
        site
        for site in stage.sites
        if site.norm_placement not in ("post-norm", "post-activation")
        and not _RESETS & set(after.get(site.index, ()))
        and channels(site) >= least
    ]


def _columns(table: Table, sites: Sequence[Site]) -> Floats:
    at = {name: column for column, name in enumerate(table.columns)}
    return table.values[:, [at[site.name] for site in sites]]


@dataclass(frozen=True)
class _Found:
    stage: Stage
    sites: Sequence[Site]
    streaks: Sequence[Streak]
    lowest: Floats  #: (rows, sites), as the two below
    largest: Floats
    share: Floats


def _hit(found: _Found, mean_sum: Table | None, std_sum: Table | None) -> Hit:
    named = [found.sites[streak.column] for streak in found.streaks]
    worst = max(found.streaks, key=lambda streak: found.share[streak.last, streak.column])
    at = (worst.last, worst.column)
    value = float(found.share[at])
    evidence: dict[str, float | str] = {
        "mean / RMS": value,
        "smallest": float(found.lowest[at]),
        "largest": float(found.largest[at]),
        "sites": float(len(named)),
    }
    drift = ""
    if mean_sum is not None and std_sum is not None:
        last = found.stage.sites[-1].name
        column = mean_sum.columns.index(last)
        reached = float(mean_sum.values[worst.last, column])
        spread = float(std_sum.values[worst.last, column])
        evidence["mean of the last sum"], evidence["its standard deviation"] = reached, spread
        drift = f"; the last sum has mean {short(reached)}, standard deviation {short(spread)}"
    return Hit(
        where=tuple(dict.fromkeys(site.name for site in named)),
        value=value,
        expectation="elements of both signs, with a mean near 0 (a branch that ends in a matrix, a "
        "convolution or a norm)",
        message=f"the branch only adds at {listed(site.name for site in named)}: smallest element "
        f"{short(float(found.lowest[at]))}, largest {short(float(found.largest[at]))}{drift}",
        first_step=min(streak.steps[0] for streak in found.streaks),
        last_step=max(streak.steps[1] for streak in found.streaks),
        evidence=evidence,
        cause="it ends in a function of one sign, such as a ReLU",
    )
