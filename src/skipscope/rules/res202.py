"""RES202: a stream that drifts away from mean 0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from skipscope.history import Table
from skipscope.rule import Gate, Hit, Stage, Warmup, rule, short
from skipscope.rule.gates import after_warmup
from skipscope.rule.medians import stage_medians


@rule(code="RES202", name="mean-shift", severity="info", patience=3)
def mean_shift_of_stream(
    mean_shift: Table,
    stages: tuple[Stage, ...],
    warmup: Warmup,
    gate: Gate,
    *,
    level: float = 10.0,
    settled: int = 100,
    depth: int = 8,
) -> Iterator[Hit]:
    """What all rows of the stream have in common outweighs what tells them apart.

    What it sees:
        The squared mean of each channel, averaged over channels, over the variance that is left;
        its median over the sites of a stage of `depth` sites or more is above `level` on the last
        `patience` captures, `settled` steps or more after warm-up.

    Example:
        The squared mean over the variance of the stream along a pre-norm transformer
        of 8 blocks (16 sites) after 120 steps, with one vector added to all tokens
        behind the embedding and without it
        (`python -m benchmarks.faults.draw RES202 --seed 1`).

                     mean^2 / variance by site    first  largest     last
            sick     ██▇▇▇▇▇▇▇▇██████              18.3     25.5     25.5
            healthy  ▁▁▂▂▂▃▃▃▄▄▄▅▅▅▅▅             0.113     3.07     3.07
            scale    0.113 to 25.5, logarithmic
            found    median above 10, 100 steps after warm-up

    Why it matters:
        A shared offset carries no information: every token, position or sample has it. A stream
        whose offset is several times its spread leaves each branch a small remainder to work
        with, rounds that remainder in half precision, and points at branches that can only push
        one way. It is the cheapest sign on the way to a collapse of the tokens (RES205).
    What to try:
        * look for branches that end in a ReLU or another one-sided function (RES204)
        * a lower learning rate or a longer warm-up, when it came with the first steps
        * a norm that subtracts the mean in front of the branches
    When it is wrong:
        The first steps of a transformer raise it for a while (steps 5 to 75; healthy pre-norm up
        to 8, post-norm up to 38), so it is not looked at then. A stream that passes a ReLU has a
        mean by construction, but stays under 1.5. A few massive channels raise it in large
        language models that work well: never more than an information.
    Thresholds:
        * level: squared mean over variance, median over sites
        * settled: steps needed after warm-up
        * depth: sites needed in a stage
    Source:
        Mean shift of residual networks: Brock 2021 (arXiv 2101.08692). Massive activations: arXiv
        2402.17762. Scored on 22 healthy and 7 sick small runs without a false alarm; healthy runs
        at their end .04 to 1.2, collapsed or hot ones 4e3 to 5e6 by step 10.
    """
    start = after_warmup(warmup, settled) + settled
    late = Gate(gate.patience, max(gate.start, start))
    for seen in stage_medians(mean_shift, stages, depth):
        shown = (seen.values > level)[:, None]
        for streak in late.streaks(mean_shift.steps, shown, np.isnan(seen.column)):
            if streak.last < np.flatnonzero(~np.isnan(seen.values))[-1]:
                continue
            value = float(seen.values[streak.last])
            yield Hit(
                where=(seen.stage.where,),
                value=value,
                expectation=f"squared channel mean below {short(level)}x the variance, median over "
                "sites (healthy runs end under 2)",
                message=f"squared channel mean {short(value)}x the variance, median over the "
                f"{len(seen.sites)} judged sites of {seen.stage.name}",
                first_step=streak.steps[0],
                last_step=streak.steps[1],
                evidence={
                    "stage": seen.stage.name,
                    "highest site": _highest(seen.each[streak.last]),
                },
            )


def _highest(values: np.ndarray) -> float:
    return float(np.nanmax(values))
