"""RES105: a net that starts far from the identity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from skipscope.history import Table
from skipscope.records import Parameter
from skipscope.rule import Gate, Hit, NotMeasurable, Stage, either, listed, rule, short
from skipscope.rule.gates import deep_enough
from skipscope.rule.output_matrices import OutputMatrices, output_matrices


@rule(
    code="RES105",
    name="late-identity",
    severity="warning",
    patience=1,
    initial_only=True,
    explains_overall=("RES205", "RES301"),
    signed=("offset", "offset_error"),
)
def late_identity(
    stage_residual_budget: Table,
    stages: tuple[Stage, ...],
    gate: Gate,
    weight_rms: Table | None = None,
    parameters: tuple[Parameter, ...] | None = None,
    *,
    offset: float = 2.0,
    offset_error: float = 4.0,
    share_error: float = 0.4,
    depth: int = 8,
) -> Iterator[Hit]:
    """At the start the branches of a stage together outweigh its shortcut by far.

    What it sees:
        Two arms, at step 0 of a fresh run and on stages of `depth` sites or more whose stream is
        not rescaled (as post-norm and (x + F)/sqrt(2) do):

        * the residual budget B = sum of ln(1 + r^2) over the L sites of the stage, without its
          first (behind an embedding without its first two): above 2 ln L + `offset`; an
          error above both 2 ln L + `offset_error` and `share_error` * L
        * a depth-scaled initialisation that did not reach the branches' last matrices: all other
          matrices of the branches start at one standard deviation s, whatever their number of
          inputs, and so do last ones, while s/sqrt(L) is usual. An information.

    Example:
        r at step 0 along an un-normalised MLP of 24 blocks, its first half without
        the factor 1/sqrt(24) of its branches (2 to 3 instead), and with it everywhere
        (`python -m benchmarks.faults.draw RES105 --seed 1`).

                     r by site                   first  largest     last        B
            sick     █▆▅▇▅█▆▆▆█▅▆▂▁▁▁▁▁▂▁▂▁▂▁     4.10     4.10    0.149     26.0
            healthy  ▁▁▁▂▂▁▁▂▂▂▁▂▁▁▂▁▁▁▂▁▂▁▂▁    0.284    0.382    0.244     1.71
            scale    0 to 4.10, linear
            found    B above 2 ln L + 2 = 8.36, at step 0

    Why it matters:
        B is the logarithm of how much the branches multiply the variance of the stream. Under
        normalised branches it is ln(1 + L/a), with branches times 1/sqrt(L) or zero-initialised
        ones below 1 at any depth; proportional to L it means that every block multiplies the
        stream, so the net starts as an exponential of its depth, forward and backward. A deep net
        learns best from near the identity: it starts as a shallow one and grows into its depth.
    What to try:
        * for the next run, initialise the last layer of each branch 1/sqrt(L) times as large:
          skipscope.remedies.depth_scaled_init(model, x), or multiply the branch by it:
          skipscope.remedies.scale_branches(model, x, alpha=...)
        * or start the last layer, or the scale of the last norm, of each branch at 0:
          skipscope.remedies.zero_init_branches(model, x)
        * if the initialisation is meant to do this already: check that its filter by name or type
          matches the parameters
    When it is wrong:
        Where the scale is restored behind every sum, B says nothing. Each stage
        is judged for itself: summed over four stages healthy ResNets of 34 to 152 layers reach
        large values. One dominating branch (RES101) raises B too; the finding then follows from
        that. Initialising everything with one s is what several released language models do;
        hence never more than an information.
    Thresholds:
        * offset: warning: B above 2 ln L plus this
        * offset_error: error: B above 2 ln L plus this
        * share_error: error: and above this share of L
        * depth: sites needed in a stage
    Source:
        Law: De & Smith 2020 (arXiv 2002.10444). Starts near the identity: Fixup (1901.09321),
        ReZero (2003.04887), zero-gamma (Goyal 2017, 1706.02677). GPT-2's report: weights of
        residual layers scaled by 1/sqrt(N) at initialisation. B at step 0 scored on 22 healthy
        and 7 sick small runs without a false alarm; in this project's runs 0 to 4.0 in healthy
        stages, 10.8 in 16 doubled blocks, 53.9 in 48 unscaled ones. Branch factors in backward are
        about those in forward (b/r 1.05 to 1.12), so a gradient ratio (RES301) follows: with the
        first half of 32 MLP blocks unscaled B was 39 and G 4e7, about exp(B/2) = 3e8.
    """
    deep = [stage for stage in deep_enough(stages, depth) if not stage.rescaled]
    if not deep:
        raise NotMeasurable(
            "needs a stage whose stream is not rescaled (post-norm, (x + F)/sqrt(2))"
        )
    yield from either(
        _budget(stage_residual_budget, deep, (offset, offset_error, share_error)),
        _not_scaled(deep, weight_rms, parameters),
    )


def _budget(
    budget: Table, stages: Sequence[Stage], limits: tuple[float, float, float]
) -> Iterator[Hit]:
    offset, offset_error, share_error = limits
    row = int(np.flatnonzero(budget.steps == 0)[0])
    for stage in stages:
        sites = len(stage.sites)
        value = float(budget.values[row, budget.columns.index(stage.name)])
        law = 2 * np.log(sites)
        if not value > law + offset:
            continue
        error = value > max(law + offset_error, share_error * sites)
        factor = float(np.exp(min(value, 700.0)))
        yield Hit(
            where=(stage.where,),
            value=value,
            expectation=f"B below 2 ln L {'-' if offset < 0 else '+'} {short(abs(offset))} = "
            f"{short(law + offset)} for {sites} "
            "sites (law ln(1 + L/a) of normalised branches)",
            message=f"residual budget B {short(value)} over {sites} sites of {stage.name} at step "
            f"0: the branches multiply the variance of the stream by about {short(factor)}",
            first_step=0,
            last_step=0,
            severity="error" if error else "warning",
            evidence={"stage": stage.name, "B / L": value / sites},
        )


def _not_scaled(
    stages: Sequence[Stage], weight_rms: Table | None, parameters: tuple[Parameter, ...] | None
) -> Iterator[Hit]:
    """Last matrices that start as large as all others of the branches."""
    if weight_rms is None or not parameters:
        raise NotMeasurable("needs the weights at step 0")
    for stage in stages:
        found = output_matrices(stage, parameters, weight_rms)
        if found is None or not found.one_scale:
            continue
        scaled, plain = found.at(1 / np.sqrt(len(stage.sites))), found.at(1.0)
        # With one number of inputs everywhere any default initialisation has one scale.
        if plain and (scaled or len(found.widths) > 1) and len(plain + scaled) == len(found.last):
            yield _scale_hit(stage, found, scaled, plain)


def _scale_hit(
    stage: Stage, found: OutputMatrices, scaled: Sequence[str], plain: Sequence[str]
) -> Hit:
    names = [name for role in plain for name in found.names[role]]
    wanted = found.usual / np.sqrt(len(stage.sites))
    part = f" although {listed(found.names[scaled[0]])} do so" if scaled else ""
    return Hit(
        where=(stage.where,),
        value=found.last[plain[0]],
        expectation=f"last matrices of the branches at {short(wanted)} = s/sqrt(L) for "
        f"{len(stage.sites)} sites (depth-scaled initialisation)",
        message=f"the last matrices of the branches start at the standard deviation of all others, "
        f"{short(found.usual)}, and not at s/sqrt(L) = {short(wanted)}{part}: {listed(names)}",
        first_step=0,
        last_step=0,
        severity="info",
        evidence={"stage": stage.name, "s": found.usual, "s/sqrt(L)": wanted},
        cause="the initialisation does not reach these parameters" if scaled else "",
    )
