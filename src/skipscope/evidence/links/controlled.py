"""Link 1: the arms had the same to work with."""

from __future__ import annotations

from collections.abc import Callable

from skipscope.evidence.link import Kind, Pair, decided, is_one_factor, not_applicable
from skipscope.evidence.outcome import ArmFacts, Cell, Outcome
from skipscope.evidence.runs import canonical, ended_well
from skipscope.evidence.statistics import keeps
from skipscope.evidence.verdict import Answer, Check
from skipscope.names import counted
from skipscope.reports._text import exact

SHARE = 0.01  #: by which counts of parameters may differ
Key = tuple[int, int, float]


def controlled(pair: Pair) -> Answer:
    """Compare each run with its partner: same depth, seed and rate in the other arm."""
    plain, residual = (_by_key(pair, arm) for arm in (pair.plain, pair.residual))
    if not plain or not residual:
        empty = pair.residual if plain else pair.plain
        return not_applicable(f"{empty.name} has no runs")
    partners = [(plain[key], residual[key]) for key in plain if key in residual]
    alone = sorted({*plain} ^ {*residual})
    checks = [
        _partners(pair, alone, plain),
        _counts("parameters", partners, lambda run: run.parameters),
        _counts("parameters with gradient", partners, lambda run: run.parameters_with_gradient),
        _budget(partners),
        _same("order of the samples", partners, lambda run: run.batches),
        _same("optimizer", partners, lambda run: run.optimizer, always=True),
    ]
    pairs = counted(len(partners), "pair of runs", "pairs of runs")
    weights, notes = _weights(pair, partners)
    same = "budget, rates and initial weights" if weights else "budget and rates"
    words = f"{pairs}: {checks[1].text} parameters, same {same}"
    if partners and checks[1].value:
        words += f"; they differ by {checks[1].text}"
    return decided([*checks, *weights], words, [*_printed(checks), *notes])


def _by_key(pair: Pair, arm: ArmFacts) -> dict[Key, Outcome]:
    own = (run for run in pair.evidence.outcomes if run.cell.arm == arm.name)
    return {_key(run.cell): run for run in own}


def _key(cell: Cell) -> Key:
    return (cell.depth, cell.seed, canonical(cell.lr))


def _partners(pair: Pair, alone: list[Key], plain: dict[Key, Outcome]) -> Check:
    """Same depths, seeds and learning rates."""
    what = "runs without a partner of the same depth, seed and rate"
    text = str(len(alone))
    if alone:
        depth, seed, rate = alone[0]
        arm = pair.plain if alone[0] in plain else pair.residual
        text += f" (first: {arm.name} at depth {depth}, seed {seed}, lr {rate:g})"
    return Check(what, float(len(alone)), text, "0", not alone)


def _counts(
    what: str, partners: list[tuple[Outcome, Outcome]], of: Callable[[Outcome], int]
) -> Check:
    """The largest difference of a count, relative to the larger one."""
    worst, text = 0.0, "equal"
    for first, second in partners:
        a, b = of(first), of(second)
        share = abs(a - b) / max(a, b, 1)
        if share > worst:
            worst = share
            told = exact(f"{100 * share:.2g}", 100 * share, 100 * SHARE)
            text = f"{told} % (plain {a:,}, residual {b:,}, depth {first.cell.depth})"
    return Check(f"{what}, largest difference", worst, text, "<= 1 %", keeps(worst, SHARE))


def _budget(partners: list[tuple[Outcome, Outcome]]) -> Check:
    """Same number of steps; a run that diverged may have ended early."""
    for pair in partners:
        given = max(run.steps for run in pair)
        short = [run for run in pair if run.steps < given and ended_well(run)]
        if short:
            text = f"{short[0].cell.key} has {short[0].steps}, its partner {given}"
            return Check("steps", None, text, "equal", False)
    return Check("steps", None, "equal", "equal", True)


def _same(
    what: str,
    partners: list[tuple[Outcome, Outcome]],
    of: Callable[[Outcome], str],
    *,
    always: bool = False,
) -> Check:
    """Equal in both runs of a pair; what a run that ended early did not see is not asked."""
    for first, second in partners:
        if (always or first.steps == second.steps) and of(first) != of(second):
            text = f"{first.cell.key} {of(first)}, {second.cell.key} {of(second)}"
            return Check(what, None, text, "equal", False)
    return Check(what, None, "equal", "equal", True)


def _weights(pair: Pair, partners: list[tuple[Outcome, Outcome]]) -> tuple[list[Check], list[str]]:
    """The weights as they were drawn: equal where the arms differ in the shortcut alone.

    Arms that say they differ in more may have other weights, which is then told and decides
    nothing.
    """
    read = [both for both in partners if all(run.weights for run in both)]
    absent = len(partners) - len(read)
    every = counted(len(partners), "pair", "pairs")
    notes = [f"initial weights: not recorded in {absent} of {every}"] if absent else []
    if not read:
        return [], notes
    if is_one_factor(pair.residual):
        return [_same("initial weights", read, lambda run: run.weights, always=True)], notes
    other = sum(first.weights != second.weights for first, second in read)
    text = f"differ in {other} of {every}" if other else "equal"
    return [], [f"initial weights, as they were drawn: {text}", *notes]


def _printed(checks: list[Check]) -> list[str]:
    """Counts that differ and may, which are to be seen all the same."""
    return [f"{one.what}: {one.text}" for one in checks[1:3] if one.met and one.value]


CONTROLLED = Kind(
    name="controlled",
    claim="the two arms had the same to work with",
    criterion=(
        "each run has a partner of the same depth, seed and learning rate; parameters, and "
        "parameters that received a gradient, equal or within 1 % (printed); same steps, order of "
        "the samples and optimizer; same initial weights, where the arms differ in nothing but the "
        "shortcut"
    ),
    ask=controlled,
)
