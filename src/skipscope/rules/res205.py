"""RES205: rows of the stream that have become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from skipscope.history import Table
from skipscope.records import Run
from skipscope.rule import Gate, Hit, NotMeasurable, Stage, either, rule, short
from skipscope.rule.gates import deep_enough
from skipscope.rule.medians import stage_medians
from skipscope.rule.shape import samples


@rule(
    code="RES205",
    name="token-collapse",
    severity="warning",
    patience=3,
    explains_overall=("RES001", "RES202", "RES402"),
    signed=("aligned", "apart"),
)
def token_collapse(
    mean_shift: Table,
    stages: tuple[Stage, ...],
    run: Run,
    gate: Gate,
    row_alignment: Table | None = None,
    branch_ratio: Table | None = None,
    *,
    level: float = 100.0,
    sudden: float = 1000.0,
    lasting: int = 20,
    small: float = 2.0,
    settled: int = 100,
    aligned: float = 0.995,
    apart: float = 0.8,
    depth: int = 8,
) -> Iterator[Hit]:
    """All rows of the stream (tokens, positions, samples) have become nearly the same vector.

    What it sees:
        In a stage of `depth` sites or more, one of

        * collapse while training: the squared mean of each channel, averaged over channels, is
          above `level` times the variance that is left, as a median over the sites, for `patience`
          captures in a row and at least `lasting` steps, or above `sudden` for `patience` captures
        * collapse at the start: at step 0 of a fresh run the mean cosine between the rows of the
          last sum is above `aligned`, while that of the first sum is below `apart`

        The first compares all rows of the batch, and leaves out stages whose batch is a single
        sample. A stage that starts small, with r above `small` at its first site in the first
        capture, is looked at from step `settled` on: until then its rows are as alike as the first
        branch makes them, which is what RES102 is about. The second compares tokens within each
        sample; where rows are samples, these.

    Example:
        The squared mean over the variance of the stream along a pre-norm transformer
        of 12 blocks (24 sites) after 40 steps, with one vector, far larger than the
        rest, added to all tokens behind the embedding and without it
        (`python -m benchmarks.faults.draw RES205 --seed 1`).

                     mean^2 / variance by site    first  largest     last
            sick     ████████████████████████   9.2e+03  9.2e+03 9.16e+03
            healthy  ▁▁▁▁▁▁▂▂▂▂▂▂▂▂▂▂▂▂▃▃▃▃▃▃    0.0924     1.34     1.34
            scale    0.0924 to 9.2e+03, logarithmic
            found    median above 100 for 20 steps

    Why it matters:
        When every token is the same vector, attention averages equals, the head sees one answer
        for all, and the gradient that could pull the rows apart points the same way for each of
        them. Attention without shortcuts and MLPs loses rank doubly exponentially with depth; in
        nets with shortcuts it takes branches that all push one way, or steps that are far too
        large. Such a run rests at the loss of guessing by frequency.
    What to try:
        * a lower learning rate or a longer warm-up; in post-norm nets both
        * smaller branches at the start: 1/sqrt(depth) or a zero-initialised last layer
        * look for one-sided branches (RES204) and for missing shortcuts (RES503)
    When it is wrong:
        A batch whose samples really are the same (one prompt, one image, a constant input) looks
        collapsed while training. Streams that start from one learned vector for every sample, such
        as class tokens and object queries, look so until data has entered; at the start rows that
        are alike from the first sum on (queries, positive raw inputs, one token repeated) are not
        judged. The end of a classification run pulls samples of a class together (neural collapse),
        but not the classes. In their first steps post-norm runs pass 38, and 109 for 5 steps in a
        decoder whose queries start alike: hence the wait of `lasting` steps. Behind an embedding of
        standard deviation .02 the biases of the first branch outweigh what tells tokens apart, and
        the head's first lesson, which tokens are frequent, adds to it: 31 at step 0, 200 at step
        32, 2 at step 75 in a post-norm net that learns. An embedding that is both small and frozen
        leaves its rows so alike for good (80 to 90 over 400 steps): that is found where it passes
        `level`, and is the start's doing.
    Thresholds:
        * level: squared mean over variance, median over sites, for `lasting` steps
        * sudden: the same, at once
        * lasting: steps for which `level` must be exceeded
        * small: r of the stage's first site in the first capture: above it the stage starts small
        * settled: first step that counts in such a stage
        * aligned: mean cosine between rows of the last sum at step 0
        * apart: the same of the first sum, below which rows differ to begin with
        * depth: sites needed in a stage
    Source:
        Rank collapse: Dong 2021 (arXiv 2103.03404), Noci 2022 (2206.03126). Scored on 22 healthy
        and 7 sick small runs: collapsed or hot ones 4e3 to 5e6 by step 10, healthy ones at most 38.
        `small` and `settled`: of 60 stages of healthy transformers, those above 35 (up to 227, one
        for 25 steps above 100) had an r of 4.5 to 42 at their first site, from embeddings of .02;
        those of .2 give 1.2, those of 1 give .2.
        The cosine at the start, about 80 stages of small nets that train: at most .975 (post-norm,
        48 layers) where the first is below .8; decoders of 12 layers whose queries start alike go
        from .84 to .991. Sick: post-norm encoders of 24 layers without dropout, .9987 and .9995,
        start to learn after 90 steps, after 100, or not within 200 (of 6 layers, .47: by step 40);
        an unscaled ReLU stack of 48 blocks .9964, one of 80 layers and next to no shortcut .9955.
    """
    deep = deep_enough(stages, depth)
    named = set()
    for hit in either(
        _while_training(
            _Shift(mean_shift, branch_ratio, deep), gate, (level, sudden, lasting), (small, settled)
        ),
        _at_start(row_alignment, deep, run, (aligned, apart)),
    ):
        if hit.evidence["stage"] not in named:
            named.add(hit.evidence["stage"])
            yield hit


@dataclass(frozen=True)
class _Shift:
    """The squared mean over the variance at each site, and what tells where it starts high."""

    table: Table
    branch_ratio: Table | None
    stages: Sequence[Stage]

    def starts_small(self, stage: Stage, small: float) -> bool:
        """Whether the first branch of a stage outweighs what the stage starts from."""
        if self.branch_ratio is None:
            return False
        column = self.branch_ratio.columns.index(stage.sites[0].name)
        r = self.branch_ratio.values[:, column]
        return bool(np.any(r[~np.isnan(r)][:1] > small))


def _while_training(
    shift: _Shift,
    gate: Gate,
    limits: tuple[float, float, int],
    start: tuple[float, int],
) -> Iterator[Hit]:
    level, sudden, lasting = limits
    small, settled = start
    several = [stage for stage in shift.stages if samples(stage.sites[-1]) > 1]
    if not several:
        raise NotMeasurable("while training: needs more than one sample in a batch")
    late = replace(gate, start=max(gate.start, settled))
    gates = {s.name: late if shift.starts_small(s, small) else gate for s in several}
    last = int(shift.table.steps[-1])
    if all(held.start > last for held in gates.values()):
        raise NotMeasurable(
            f"while training: needs {settled} steps where the first branch outweighs what a "
            f"stream starts from, has {last}"
        )
    for seen in stage_medians(shift.table, several, 1):
        missing = np.isnan(seen.column)
        own = gates[seen.stage.name]
        slow = own.streaks(shift.table.steps, seen.column > level, missing)
        slow = [streak for streak in slow if streak.steps[1] - streak.steps[0] >= lasting]
        for streak in slow or own.streaks(shift.table.steps, seen.column > sudden, missing):
            value = float(seen.values[streak.last])
            yield Hit(
                where=(seen.stage.where,),
                value=value,
                expectation=f"squared channel mean below {short(level)}x the variance, median over "
                "sites (healthy runs at most 38, and only in their first steps)",
                message=f"the rows of the stream are nearly one vector: squared channel mean "
                f"{short(value)}x the variance, median over {len(seen.sites)} sites of "
                f"{seen.stage.name}",
                first_step=streak.steps[0],
                last_step=streak.steps[1],
                evidence={
                    "stage": seen.stage.name,
                    "at first": float(seen.values[~np.isnan(seen.values)][0]),
                },
            )


def _at_start(
    alignment: Table | None, stages: Sequence[Stage], run: Run, limits: tuple[float, float]
) -> Iterator[Hit]:
    if alignment is None:
        raise NotMeasurable("at the start: needs the cosine between rows")
    if not run.fresh or not len(alignment.steps) or alignment.steps[0] != 0:
        raise NotMeasurable("at the start: needs a capture of step 0 of a fresh run")
    aligned, apart = limits
    at = {name: column for column, name in enumerate(alignment.columns)}
    for stage in stages:
        ends = [at[stage.sites[end].name] for end in (0, -1)]
        first, last = (float(alignment.values[0, column]) for column in ends)
        if last > aligned and first < apart:
            yield Hit(
                where=(stage.where,),
                value=last,
                expectation=f"mean cosine between rows below {short(aligned)} at step 0",
                message=f"mean cosine between rows {short(last)} after {len(stage.sites)} sites of "
                f"{stage.name} at step 0, {short(first)} after the first: depth makes them one",
                first_step=0,
                last_step=0,
                stands=True,
                evidence={"stage": stage.name, "cosine after the first site": first},
            )
