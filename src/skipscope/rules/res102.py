"""RES102: a stream that starts small against its first branches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Severity, Site
from skipscope.rule import Gate, Hit, NotMeasurable, Stage, Streak, listed, rule, short

Floats = npt.NDArray[np.float64]


@rule(code="RES102", name="small-shortcut", severity="info", patience=3, whole_stream=True)
def small_shortcut(
    branch_ratio: Table,
    gradient_gain: Table,
    stages: tuple[Stage, ...],
    gate: Gate,
    *,
    notable: float = 5.0,
    lasting: int = 50,
    large: float = 10.0,
    steep: float = 50.0,
    rise: float = 1.2,
) -> Iterator[Hit]:
    """The stream starts so small that its first branches replace it.

    What it sees:
        The sites that no other rule judges: the first of each stream and stage, and all of the
        first block behind an embedding. Two arms:

        * r = ||F(x)|| / ||s|| and the gradient gain ||g_x|| / ||g_y|| both above `notable` over
          `lasting` steps: an information
        * r above `large`, gain above `steep`, for `patience` captures in a row over which r rises
          to more than `rise` times its first value: a warning

    Example:
        r along a pre-norm transformer of 12 blocks (24 sites) after 60 steps, behind
        an embedding of standard deviation .0005 and of 1
        (`python -m benchmarks.faults.draw RES102 --seed 1`).

                     r by site                   first  largest     last
            sick     █▃▃▃▂▂▂▂▂▂▂▂▂▁▂▂▂▁▂▁▂▁▁▁     41.1     41.1    0.130
            healthy  ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▁▂▁▂▁▂▁▁▁    0.210    0.227    0.132
            scale    0.0854 to 41.1, logarithmic
            found    r of the first site and its gradient gain above 5 for 50 steps

    Why it matters:
        A normalised branch has a size of its own, whatever the stream holds. Behind an embedding
        of standard deviation .02 the first branch is 50 times larger than its input, which is by
        design: the first block then writes the stream. Backward the same factor returns as gain:
        the embedding receives a gradient many times that of the stream, and with a plain SGD or a
        clipped norm it is the one parameter that counts. What the embedding itself holds
        contributes almost nothing to the later stream. When r still rises, the branches outgrow
        the embedding faster than it learns.
    What to try:
        * scale the embedding up (by sqrt(width), as the original transformer does) or normalise it
        * a larger standard deviation for the embedding's initialisation
        * keep weight decay off the embedding
    When it is wrong:
        GPT-2 style embeddings start with r near .2 and reach 3 to 24 in the first MLP while they
        learn well; that is at most an information. A gain needs a gradient at the first input: raw
        inputs and frozen embeddings have none, and the rule is skipped there.
    Thresholds:
        * notable: information: both r and the gradient gain above this
        * lasting: information: for so many steps
        * large: warning: r above this
        * steep: warning: gradient gain above this
        * rise: warning: last r over first r within these captures
    Source:
        allenai/OLMo issue 797: growth after N(0, .02) and x + norm(F(x)) is expected.
        Spike No More (arXiv 2312.16903): small embeddings and large gradients at the first layers;
        scaled embeddings against loss spikes. Measured on small character transformers with AdamW
        1e-3 to 3e-3: r 3 to 24 at the first MLP in runs that learn, gain under 20. Argued, not
        scored.
    """
    at = {name: column for column, name in enumerate(branch_ratio.columns)}
    known = False
    for stage in stages:
        sites = [site for site in stage.sites if site.index in stage.exempt and site.name in at]
        columns = [at[site.name] for site in sites]
        missing = branch_ratio.missing[:, columns] | gradient_gain.missing[:, columns]
        if not columns or missing.all():
            continue
        known = True
        seen = _Seen(
            stage, sites, branch_ratio.steps, branch_ratio.values[:, columns],
            gradient_gain.values[:, columns], missing,
        )  # fmt: skip
        yield from _judge(seen, gate, notable, lasting, (large, steep, rise))
    if not known:
        raise NotMeasurable("needs the gradient at the input of a first block")


@dataclass(frozen=True)
class _Seen:
    """The exempt sites of a stage over time. Shape: (rows, sites)."""

    stage: Stage
    sites: Sequence[Site]
    steps: npt.NDArray[np.int64]
    r: Floats
    gain: Floats
    missing: npt.NDArray[np.bool_]


def _judge(
    seen: _Seen, gate: Gate, notable: float, lasting: int, limits: tuple[float, float, float]
) -> Iterator[Hit]:
    """One hit a stage: the warning, else the information."""
    large, steep, rise = limits
    shown = (seen.r > large) & (seen.gain > steep)
    grown = [s for s in gate.streaks(seen.steps, shown, seen.missing) if _rises(seen, s, rise)]
    if grown:
        yield _hit(seen, grown, f"r below {short(large)}, or falling", "warning")
        return
    shown = (seen.r > notable) & (seen.gain > notable)
    long = [
        streak
        for streak in gate.streaks(seen.steps, shown, seen.missing)
        if streak.steps[1] - streak.steps[0] >= lasting
    ]
    if long:
        yield _hit(seen, long, f"r and gradient gain below {short(notable)}", "info")


def _rises(seen: _Seen, streak: Streak, rise: float) -> bool:
    """Whether r ends higher than it began, by medians of thirds where there are that many."""
    rows = np.arange(streak.first, streak.last + 1)
    r = seen.r[rows[~seen.missing[rows, streak.column]], streak.column]
    third = max(len(r) // 3, 1)
    return bool(np.median(r[-third:]) > rise * np.median(r[:third]))


def _hit(seen: _Seen, streaks: Sequence[Streak], expectation: str, severity: Severity) -> Hit:
    worst = max(streaks, key=lambda streak: seen.r[streak.last, streak.column])
    r = float(seen.r[worst.last, worst.column])
    gain = float(seen.gain[worst.last, worst.column])
    named = [seen.sites[streak.column] for streak in streaks]
    fed = len(seen.stage.exempt) > 1
    return Hit(
        where=tuple(dict.fromkeys(site.name for site in named)),
        value=r,
        expectation=f"{expectation}, in the first block of a stream (no law: its input has a size "
        "of its own)",
        message=f"r {short(r)} at {listed(site.name for site in named)}, gradient gain "
        f"{short(gain)}: what the stream starts from is small against its first branches",
        first_step=min(streak.steps[0] for streak in streaks),
        last_step=max(streak.steps[1] for streak in streaks),
        severity=severity,
        evidence={
            "r": r,
            "gradient gain": gain,
            "r at first": float(seen.r[worst.first, worst.column]),
        },
        cause="the embedding is too small for its branches" if fed else "",
    )
