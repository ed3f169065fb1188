"""RES401: steps that are too large for the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.names import counted
from skipscope.records import Parameter, Run, Severity
from skipscope.rule import Gate, Hit, NotMeasurable, Streak, either, listed, rule, short
from skipscope.rule.matrices import columns, fan_in, matrices
from skipscope.rule.medians import row_medians

Floats = npt.NDArray[np.float64]


@rule(
    code="RES401",
    name="update-too-hot",
    severity="warning",
    patience=3,
    explains=("RES101", "RES103", "RES201", "RES202", "RES205", "RES206", "RES902"),
    explains_overall=(
        "RES001",
        "RES101",
        "RES201",
        "RES202",
        "RES205",
        "RES206",
        "RES301",
        "RES302",
        "RES303",
        "RES902",
    ),
    whole_stream=True,
)
def update_too_hot(
    update_ratio: Table,
    parameters: tuple[Parameter, ...],
    run: Run,
    gate: Gate,
    weight_rms: Table | None = None,
    *,
    hot: float = 0.2,
    hot_error: float = 0.5,
    warm: float = 0.03,
    lasting: int = 50,
    alone: int = 10,
    inflation: float = 3.0,
    soon: int = 100,
    sized: float = 0.3,
) -> Iterator[Hit]:
    """The optimizer's steps are too large for the weights they change.

    What it sees:
        u = ||dW|| / ||W|| of every trainable matrix and convolution (embeddings left out; a matrix
        that starts at 0 is held against .1/sqrt(fan_in) instead), at each recorded optimizer step.
        Never gated by warm-up. The median over the matrices:

        * above `hot` for `patience` recorded steps in a row, an error above `hot_error`
        * above `warm` for `lasting` steps
        * inflation: RMS of the weights above `inflation` times that of the first step, within the
          first `soon` steps; matrices that start smaller than `sized`/sqrt(fan_in) (zero or
          depth-scaled initialisation) are left out

        The first of these that holds is the finding. If none does, single matrices with u above
        `hot` for `alone` recorded steps in a row are an information.

    Example:
        The median u over all matrices in the first 36 steps of a pre-norm transformer
        of 12 blocks (24 sites), with AdamW at a learning rate of .1 and of .001
        (`python -m benchmarks.faults.draw RES401 --seed 1`).

                     median u by step                        first  largest     last
            sick     █▇▇▆▆▆▅▅▅▅▄▄▄▄▄▄▄▃▃▃▃▃▃▃▃▃▃▃▃▃▄▄▃▃▃▃    0.983    0.983   0.0125
            healthy  ▃▃▃▂▂▂▂▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  0.00983  0.00983  0.00200
            scale    0.00175 to 0.983, logarithmic
            found    above 0.2 for 3 steps

    Why it matters:
        A step of a fifth of the weight turns it to another place within five steps; what the net
        learns is then the noise of the last batches. Behind a norm the scale of a weight does not
        matter, so a hot run hides: its weights inflate, u looks normal again, and the stream has
        grown by orders of magnitude. Only the first steps tell. Measured medians: SGD .001 to
        .004, Adam on transformers .002 to .02; runs that were too hot .34 to 1.1 with weights
        11 to 46 times as large after 100 steps.
    What to try:
        * lower the learning rate, by about u / .01, where u is the median dW/W of the report: the
          size of a step against that of the weights
        * warm it up over the first tens to hundreds of steps
        * if one tensor stands out, give it a group of its own, or look at its initialisation
    When it is wrong:
        One-dimensional parameters (norms, biases, scales) have tiny norms and are not judged. Small
        models take larger relative steps than large ones (about .01 instead of .001). In nets
        whose every matrix stands before a batch norm a short heat cures itself by inflation: the
        finding then tells of a start that costs steps, not of a run that is lost.
    Thresholds:
        * hot: median u, warning
        * hot_error: the same, error
        * warm: median u for long
        * lasting: steps that are long
        * alone: information: recorded steps in a row of one matrix
        * inflation: weights against their first step
        * soon: within so many steps
        * sized: matrices that start below this over sqrt(fan_in) are left out of inflation
    Source:
        u about 1e-3: CS231n notes (neural-networks-3). Equilibrium of u under weight decay: Kosson
        2023 (arXiv 2305.17212). The limits on the median and on inflation were scored on 22 healthy
        and 7 sick small runs without a false alarm or a miss. `hot` was .1 there and is .2 since a
        batch-norm ResNet (32 images a batch, 60 steps, momentum .9) had medians of .014, .07, .14
        and .58 at learning rates .005, .02, .05 and .2 and ended at losses of .97, .87, .94 and
        1.25: .14 cost nothing. Sick runs had .34 and more. A fourth arm (r*sqrt(k) fallen under
        .2 with an aligned branch after heat) was left out: it asks for heat that was seen before,
        and the first 50 steps are all recorded.
    """
    chosen = matrices(parameters)
    seen = _Seen(update_ratio.steps, columns(update_ratio, chosen), chosen)
    found = list(
        either(
            _heat(seen, gate, (hot, hot_error, warm, lasting)),
            _inflated(weight_rms, chosen, run, (inflation, soon, sized)),
        )
    )
    if len(found) > 1:  # heat that has passed, in weights that have grown: it only looks normal
        found[0] = replace(found[0], stands=True)
    yield from found[:1] or _alone(seen, replace(gate, patience=alone), hot)


#: Steps in which heat shows before the weights have grown.
_EARLY = 10


@dataclass(frozen=True)
class _Seen:
    steps: npt.NDArray[np.int64]
    ratio: Floats  #: (rows, matrices)
    matrices: list[Parameter]

    @property
    def median(self) -> Floats:
        """Shape: (rows, 1)."""
        return row_medians(self.ratio)[:, None]


def _heat(seen: _Seen, gate: Gate, limits: tuple[float, float, float, int]) -> Iterator[Hit]:
    hot, grave, warm, lasting = limits
    u = seen.median
    missing = np.isnan(u)
    streaks: list[tuple[Streak, Severity, float]] = [
        (streak, severity, limit)
        for limit, severity in _levels(grave, hot)
        for streak in gate.streaks(seen.steps, u > limit, missing)
    ]
    streaks += [
        (streak, "warning", warm)
        for streak in gate.streaks(seen.steps, u > warm, missing)
        if streak.steps[1] - streak.steps[0] + 1 >= lasting
    ]
    for streak, severity, limit in streaks[:1]:
        values = u[streak.first : streak.last + 1, 0]
        largest = float(np.nanmax(values))
        first, last = streak.steps
        yield Hit(
            where=("model",),
            value=largest,
            expectation=f"median u below {short(limit)} (Adam on small transformers .002 to .02, "
            "SGD .001 to .004)",
            message=f"median u over {counted(len(seen.matrices), 'matrix', 'matrices')} up to "
            f"{short(largest)}, above {short(limit)} from step {first} to {last}",
            first_step=first,
            last_step=last,
            severity=severity,
            # Heat shows only early: the weights grow by it, and u looks normal ever after.
            stands=largest > grave and first <= _EARLY,
            evidence={"median u": largest, "median u at the end": float(u[~missing][-1])},
        )


def _levels(grave: float, hot: float) -> tuple[tuple[float, Severity], ...]:
    return (grave, "error"), (hot, "warning")


def _inflated(
    weights: Table | None,
    chosen: list[Parameter],
    run: Run,
    limits: tuple[float, int, float],
) -> Iterator[Hit]:
    inflation, soon, sized = limits
    if weights is None or not len(weights.steps) or weights.steps[0] != 0 or not run.fresh:
        raise NotMeasurable("inflation: needs the weights of step 0 of a fresh run")
    rms = columns(weights, chosen)[weights.steps <= soon]
    steps = weights.steps[weights.steps <= soon]
    whole = np.array([rms[0, k] * np.sqrt(fan_in(p)) >= sized for k, p in enumerate(chosen)])
    if not whole.any():
        raise NotMeasurable("inflation: every matrix starts at 0 or near it")
    times = row_medians(rms[:, whole] / rms[0, whole])
    over = np.flatnonzero(times > inflation)
    if len(over):
        largest = float(np.nanmax(times))
        yield Hit(
            where=("model",),
            value=largest,
            expectation=f"weights below {short(inflation)}x those of step 0 within "
            f"{counted(soon, 'step')} (healthy runs at most 2.2)",
            message=f"median RMS of {counted(int(whole.sum()), 'matrix', 'matrices')} "
            f"{short(largest)}x that of step 0 within {counted(int(steps[-1]), 'step')}",
            first_step=int(steps[over[0]]),
            last_step=int(steps[over[-1]]),
            stands=True,  # what it did to the weights stays
            evidence={"inflation": largest},
            cause="steps so large that the weights grow with every one of them",
        )


def _alone(seen: _Seen, gate: Gate, hot: float) -> Iterator[Hit]:
    streaks = gate.streaks(seen.steps, seen.ratio > hot, np.isnan(seen.ratio))
    if streaks:
        names = [seen.matrices[streak.column].name for streak in streaks]
        largest = max(float(np.nanmax(seen.ratio[s.first : s.last + 1, s.column])) for s in streaks)
        yield Hit(
            where=tuple(names),
            value=largest,
            expectation=f"u below {short(hot)} (the median of the matrices is)",
            message=f"u above {short(hot)} for {gate.patience} recorded steps at {listed(names)}, "
            f"up to {short(largest)}",
            first_step=min(streak.steps[0] for streak in streaks),
            last_step=max(streak.steps[1] for streak in streaks),
            severity="info",
            evidence={"u": largest, "matrices": float(len(names))},
        )
