"""RES903: the monitor's own price."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from skipscope.history import Table
from skipscope.records import Run
from skipscope.rule import Hit, NotMeasurable, rule


@rule(code="RES903", name="monitor-overhead", severity="info")
def monitor_overhead(
    host_ms: Table,
    seconds: Table,
    run: Run,
    captured: Table | None = None,
    *,
    budget: float = 0.05,
    early: int = 50,
    steps: int = 100,
    periods: int = 4,
) -> Iterator[Hit]:
    """The monitor takes more of the step time than it should.

    What it sees:
        Its share of the wall time of the last steps (at least `steps` and at least `periods`
        distances between captures, without the first `early`, which are captured densely). The
        larger of two measurements counts: its own clock, and the median captured step against the
        median other step, which also holds what captures cost inside forward and backward. An
        information, never more.

    Example:
        The monitor's own share of the time over 288 steps of an un-normalised MLP of
        8 blocks of width 128, with a capture in every step and by the default
        schedule; a character is the mean of 8 steps
        (`python -m benchmarks.faults.draw RES903 --seed 1`).

                     share of time by step                   first  largest     last
            sick     ▇▇▇▇▇█▆▆▇▆▆▇▇▆▇▇▆▆▇▇▇▆▇▇▇▇▇▆▇█▆▆▇▆▇▇    0.145    0.174    0.153
            healthy  ▇▆▆█▇▅▂▁▁▁▁▁▂▁▁▁▁▁▂▁▁▁▁▁▁▂▁▁▁▁▁▁▁▁▁▁    0.161    0.167        0
            scale    0 to 0.174, linear
            found    above 0.05, without the first 50 steps

    Why it matters:
        A monitor that slows training changes what it watches: data loaders and schedules by time
        behave differently, and it will be switched off. It should say what it costs.
    What to try:
        * raise `every_n_steps`: the cost of captures falls in proportion
        * watch fewer modules with `sites=[...]`, or set `updates="off"`
        * use the debug preset for short runs only
    When it is wrong:
        With steps of a few milliseconds (toy models, tests) any capture is a large share. Under the
        debug preset every step is captured and the rule does not look. Steps that wait (a
        validation between them, a checkpoint) count to the time of training.
    Thresholds:
        * budget: share of the step time
        * early: steps at the start that do not count
        * steps: steps that must be known
        * periods: distances between captures that must be known
    Source:
        NVIDIA/Megatron-LM PR 5492 measured up to 30 % of step time for statistics on every step.
        The budget of 5 % is a choice.
    """
    if run.preset == "debug":
        raise NotMeasurable("the debug preset captures every step: its cost is its price")
    last = max(steps, periods * run.every_n_steps)
    known = (host_ms.steps >= early) & ~host_ms.missing[:, 0] & ~seconds.missing[:, 0]
    rows = np.flatnonzero(known)[-last:]
    if len(rows) < last:
        raise NotMeasurable(f"needs {last} timed steps after step {early}, has {len(rows)}")
    wall = seconds.values[rows, 0]
    own = float(host_ms.values[rows, 0].sum() / 1000)
    if captured is not None:
        own = max(own, _slower(wall, captured.values[rows, 0] > 0))
    share = own / max(float(wall.sum()), 1e-9)
    if share > budget:
        yield Hit(
            where=("model",),
            value=share,
            expectation=f"at most {100 * budget:.0f} % of the step time",
            message=f"the monitor takes {100 * share:.0f} % of the step time over {len(rows)} "
            f"steps (a capture every {run.every_n_steps})",
            first_step=int(host_ms.steps[rows[0]]),
            last_step=int(host_ms.steps[rows[-1]]),
            evidence={"share": share, "median step, ms": 1000 * float(np.median(wall))},
        )


def _slower(wall: np.ndarray[tuple[int], np.dtype[np.float64]], captured: object) -> float:
    """Seconds that captured steps took longer than others, all together."""
    shown = np.asarray(captured, dtype=bool)
    if shown.sum() < 3 or (~shown).sum() < 10:
        return 0.0
    return float(shown.sum() * (np.median(wall[shown]) - np.median(wall[~shown])))
