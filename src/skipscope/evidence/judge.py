"""From the outcomes of a study to what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skipscope.evidence.compare import comparison, generalisation, rows
from skipscope.evidence.link import Pair, is_one_factor
from skipscope.evidence.links import LINKS
from skipscope.evidence.outcome import ArmFacts, Evidence
from skipscope.evidence.runs import arms_of, check_form, losses
from skipscope.evidence.verdict import Chain, Generalisation, Link, State, Verdict
from skipscope.reports._text import number

ENOUGH = 3  #: seeds; fewer show no range to speak of
STATES: tuple[State, ...] = ("shown", "not shown", "not applicable")


def judge(evidence: Evidence) -> Verdict:
    """What a study shows: a chain for each plain and residual arm, and all arms compared.

    Validation stands last and decides nothing, and neither does any published number.

    Args:
        evidence: the study's arms and what became of each run.

    Raises:
        ValueError: two arms of one name, two outcomes of one cell, an outcome of no arm, a learning
            rate that is none.
    """
    check_form(evidence)
    names = list(dict.fromkeys(arm.pair for arm in evidence.arms))
    chains = tuple(chain for name in names for chain in _chains(evidence, name))
    compared = (comparison(evidence, name) for name in names)
    ran = {run.cell.arm for run in evidence.outcomes}
    return Verdict(
        headline=_headline(evidence, chains),
        chains=chains,
        comparisons=tuple(one for one in compared if one is not None),
        rows=rows(evidence),
        missing=tuple(arm.name for arm in evidence.arms if arm.name not in ran),
    )


def _chains(evidence: Evidence, name: str) -> list[Chain]:
    arms = arms_of(evidence, name)
    plain = [arm for arm in arms if arm.role == "plain"]
    residual = [arm for arm in arms if arm.role == "residual"]
    return [_chain(Pair(evidence, one, other)) for one in plain for other in residual]


def _chain(pair: Pair) -> Chain:
    links = tuple(
        Link(number, kind.name, kind.claim, kind.criterion, kind.ask(pair))
        for number, kind in enumerate(LINKS, 1)
    )
    return Chain(
        pair=pair.plain.pair,
        plain=pair.plain.name,
        residual=pair.residual.name,
        differs=pair.residual.differs,
        one_factor=is_one_factor(pair.residual),
        caution="; ".join(_cautions(pair)),
        links=links,
        validation=_validation(pair),
    )


def _cautions(pair: Pair) -> Iterator[str]:
    """What stands in the way of blaming the shortcut."""
    if pair.plain.straw_man:
        yield (
            f"{pair.plain.name} is a straw man, and no link compares with it: "
            f"{pair.plain.straw_man}"
        )
    if not is_one_factor(pair.residual):
        yield _several(pair)
    seeds = _seeds(pair)
    if 0 < seeds < ENOUGH:
        seen = "one seed shows no spread" if seeds == 1 else f"{seeds} seeds show little spread"
        yield f"{seen}: it takes {ENOUGH} or more to tell an effect from the luck of a start"


def _seeds(pair: Pair) -> int:
    """How many seeds both arms ran from."""
    plain, residual = (
        {run.cell.seed for run in pair.runs(arm)} for arm in (pair.plain, pair.residual)
    )
    return len(plain & residual)


def _several(pair: Pair) -> str:
    """More than the shortcut was changed: what the links show, they show of all of it together."""
    if not pair.residual.differs:
        return "the study does not say in what the arms differ"
    alone = [arm for arm in arms_of(pair.evidence, pair.plain.pair) if is_one_factor(arm)]
    cells = ", ".join(_cell(pair, arm) for arm in alone)
    cell = f"the shortcut alone: {cells}" if alone else "no arm changes it alone"
    return f"the arms differ in {pair.residual.differs}: more than the shortcut ({cell})"


def _cell(pair: Pair, arm: ArmFacts) -> str:
    """What became of an arm at its deepest."""
    found = pair.depths(arm)
    if not found:
        return f"{arm.name}, which did not run"
    end = losses(pair.runs(arm, found[-1]))
    words = "diverged" if end.lost else f"loss {number(end.median)}"
    return f"{arm.name}, {words} at depth {found[-1]}"


def _validation(pair: Pair) -> tuple[Generalisation, ...]:
    names = (pair.plain.name, pair.residual.name)
    return tuple(
        generalisation(depth, names, pair.runs(pair.plain, depth), pair.runs(pair.residual, depth))
        for depth in pair.depths(pair.plain, pair.residual)
    )


def _headline(evidence: Evidence, chains: Sequence[Chain]) -> str:
    """Every chain in a few words.

    What is not applicable is not evidence either: the count of what is shown stands first.
    """
    if not chains:
        return f"{evidence.name}: arms compared, no chain (no plain and residual arm in one pair)"
    told = []
    for chain in chains:
        twice = sum(one.pair == chain.pair for one in chains) > 1
        name = f"{chain.pair}, {chain.residual}" if twice else chain.pair
        told.append(f"{name} {counted(chain)}")
    return f"{evidence.name}: {'; '.join(told)}"


def counted(chain: Chain) -> str:
    """How many links are in each state, and which are not shown."""
    words = [f"{len(chain.numbers('shown'))} of {len(chain.links)} links shown"]
    for state in STATES[1:]:
        numbers = ", ".join(str(number) for number in chain.numbers(state))
        words += [f"{state}: {numbers}"] if numbers else []
    return ", ".join(words)
