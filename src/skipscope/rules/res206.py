"""RES206: branches that cancel what the stream holds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Site
from skipscope.rule import Gate, Hit, NotMeasurable, Stage, listed, rule, short
from skipscope.rule.fixed import first_trained
from skipscope.rule.shape import channels

Mask = npt.NDArray[np.bool_]

#: A cosine below this tells even in a stream of few channels.
_NARROW = -0.9


@rule(
    code="RES206",
    name="erasing-branch",
    severity="warning",
    patience=2,
    explains=("RES101", "RES105", "RES201"),
    explains_here=("RES304",),
    signed=("opposed",),
)
def erasing_branch(
    cosine: Table,
    branch_ratio: Table,
    stages: tuple[Stage, ...],
    gate: Gate,
    growth: Table | None = None,
    why: npt.NDArray[np.uint8] | None = None,
    *,
    opposed: float = -0.5,
    size: float = 0.5,
    drowned: float = 5.0,
) -> Iterator[Hit]:
    """A branch is turned against its shortcut and large enough to erase it.

    What it sees:
        At one site the cosine of shortcut and branch is below `opposed` while r = ||F(x)|| / ||s||
        is between `size` and `drowned`, for `patience` captures in a row. In a stream of C channels
        the cosine must also be below -3/sqrt(C), three times the spread of random vectors, or -.9.
        Projections are left out. In the first trained block behind frozen layers or raw data a site
        must be so from the first capture on.

    Example:
        The cosine of shortcut and branch along a pre-norm transformer of 12 blocks
        (24 sites) after 40 steps, with one branch that takes away .84 of its input
        and without it (`python -m benchmarks.faults.draw RES206 --seed 1`).

                     cosine by site              first smallest     last
            sick     ▅▆▆▆▆▆▆▆▆▆▅▆▁▇▆▆▆▆▆▇▇▇▅█  -0.0971   -0.990    0.429
            healthy  ▅▅▆▆▆▆▇▆▇▇▆▇▇▇▇▇▇▇▇▇██▆█  -0.0609  -0.0609    0.502
            scale    -0.990 to 0.502, linear
            found    below -0.5 while r is 0.5 to 5

    Why it matters:
        The sum of a vector and one turned against it is smaller than the vector: with r = 1 and a
        cosine of -.9 a fifth of the stream's square is left. What earlier blocks wrote is gone,
        although the shortcut is intact in the code. Independent branches have a cosine of 0 +- .1,
        trained late ones +.2 to +.9.
    What to try:
        * look at the sign of the addition and of the branch's last scale
        * a lower learning rate: in short runs only ones that were far too hot had it
        * if the block is meant to replace what is there, use a gate
    When it is wrong:
        The first site of a post-norm stream, and its first block behind an embedding, are not
        judged: there a branch may rewrite the embedding. The first trained block behind frozen
        layers may learn to do the same, because nothing in front of it can take away what does not
        help. A branch that returns an average minus its input (`pool(x) - x`) smooths the stream by
        design. Some layers of large language models delete a feature on purpose; over all features
        that keeps the cosine above -.5.
    Thresholds:
        * opposed: cosine of shortcut and branch
        * size: r above which an opposed branch erases
        * drowned: r up to which a site is judged; above it RES101 and RES102 look
    Source:
        Scored on 22 healthy and 7 sick small runs (and 10 + 3 held out): lowest healthy cosine
        -.30, hot runs -.62 and -.77. The term of C after trying 149 small nets at their start: one
        seed vector of 8 channels had -.58 at r .54 by chance. A stream that was erased is small
        against what is added next, so growth (RES201) follows: an erasing branch at site 15 of 32
        (sum .2 of its shortcut) raised H' at step 0 to 2.53.
    """
    at = {name: column for column, name in enumerate(cosine.columns)}
    judged = [(stage, [site for site in _judged(stage) if site.name in at]) for stage in stages]
    if not any(sites for _, sites in judged):
        raise NotMeasurable("needs a site that is no projection, nor the first of a post-norm net")
    may_rewrite = first_trained(stages, why) if why is not None else frozenset()
    for stage, sites in judged:
        columns = [at[site.name] for site in sites]
        c, r = cosine.values[:, columns], branch_ratio.values[:, columns]
        missing = cosine.missing[:, columns] | branch_ratio.missing[:, columns]
        against = [max(min(opposed, -3 / np.sqrt(channels(site))), _NARROW) for site in sites]
        shown = (c < np.array(against)) & (r > size) & (r <= drowned)
        learnt = [site.index in may_rewrite for site in sites]
        shown &= _from_the_first(shown, missing) | ~np.array(learnt, dtype=bool)
        streaks = gate.streaks(cosine.steps, shown, missing)
        if not streaks:
            continue
        worst = min(streaks, key=lambda streak: c[streak.last, streak.column])
        value, ratio = (float(v[worst.last, worst.column]) for v in (c, r))
        evidence: dict[str, float | str] = {"cosine": value, "r": ratio, "stage": stage.name}
        left = float(np.sqrt(max(1 + 2 * ratio * value + ratio**2, 0.0)))
        if growth is not None:
            left = float(growth.values[worst.last, columns[worst.column]])
        evidence["growth"] = left
        yield Hit(
            where=tuple(dict.fromkeys(sites[s.column].name for s in streaks)),
            value=value,
            expectation=f"a cosine above {short(opposed)} (independent branches: 0 +- .1), or r "
            f"below {short(size)}",
            message=f"cosine of shortcut and branch {short(value)} with r {short(ratio)} at "
            f"{listed(sites[s.column].name for s in streaks)}: the sum is {short(left)}x the "
            "shortcut",
            first_step=min(streak.steps[0] for streak in streaks),
            last_step=max(streak.steps[1] for streak in streaks),
            evidence=evidence,
        )


def _from_the_first(shown: Mask, missing: Mask) -> Mask:
    """Whether a site was so in its first capture, before it learnt. Shape: (sites,)."""
    first = np.argmin(missing, axis=0)
    return np.array([shown[row, column] for column, row in enumerate(first)], dtype=bool)


def _judged(stage: Stage) -> list[Site]:
    return [
        site
        for site in stage.sites
        if site.kind != "projection" and not (stage.post_norm and site.index in stage.exempt)
    ]
