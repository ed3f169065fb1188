"""Asking a study for its runs: which belong to an arm, a depth, a rate, and what they came to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from skipscope.evidence.outcome import ArmFacts, Cell, Evidence, Outcome, Reading
from skipscope.evidence.statistics import Spread, spread

EARLY = 30  #: last step of the early readings


def ended_well(run: Outcome) -> bool:
    """Losses and weights stayed finite, to the last evaluation."""
    return run.finite and math.isfinite(run.train_loss)


def loss(run: Outcome) -> float:
    """Its training loss; +inf for a run that is not finite."""
    return run.train_loss if ended_well(run) else math.inf


def error(run: Outcome) -> float:
    """Its training error; 1 for a run that is not finite."""
    return run.train_error if ended_well(run) else 1.0


def validation_error(run: Outcome) -> float:
    """Its validation error; 1 for a run that is not finite."""
    return run.validation_error if ended_well(run) else 1.0


def of_arm(
    evidence: Evidence, arm: str, depth: int | None = None, rate: float | None = None
) -> tuple[Outcome, ...]:
    """The runs of an arm at one rate (that of the main comparison when None), by depth and seed."""
    wanted = evidence.lr if rate is None else rate
    found = (
        run
        for run in evidence.outcomes
        if run.cell.arm == arm
        and canonical(run.cell.lr) == canonical(wanted)
        and (depth is None or run.cell.depth == depth)
    )
    return tuple(sorted(found, key=lambda run: (run.cell.depth, run.cell.seed)))


def canonical(rate: float) -> float:
    """A learning rate that equals itself, whatever computed it.

    >>> canonical(0.1 * 3) == canonical(0.3)
    True
    """
    return float(f"{rate:.9g}")


def depths(runs: Iterable[Outcome]) -> list[int]:
    """The depths among some runs, shallowest first."""
    return sorted({run.cell.depth for run in runs})


def depths_text(found: Sequence[object]) -> str:
    """Depths in words.

    >>> depths_text([50]), depths_text([50, 100])
    ('depth 50', 'depths 50 and 100')
    """
    return f"depth{'s' * (len(found) > 1)} {' and '.join(map(str, found))}"


def rates(evidence: Evidence, arm: str, depth: int) -> list[float]:
    """The learning rates at which an arm ran at one depth, lowest first."""
    cells = (run.cell for run in evidence.outcomes)
    return sorted({canonical(one.lr) for one in cells if (one.arm, one.depth) == (arm, depth)})


def losses(runs: Iterable[Outcome]) -> Spread:
    """Median and range of the training loss."""
    return spread([loss(run) for run in runs])


def errors(runs: Iterable[Outcome]) -> Spread:
    """Median and range of the training error; a run that is not finite counts as 1."""
    return spread([error(run) for run in runs])


def by_seed(values: Iterable[tuple[Outcome, float]]) -> dict[int, float]:
    """Numbers by the seed of their run."""
    return {run.cell.seed: value for run, value in values}


def early(run: Outcome, start: int) -> tuple[Reading, ...]:
    """The readings of the first steps, from `start` on."""
    return tuple(reading for reading in run.readings if start <= reading.step <= EARLY)


def arms_of(evidence: Evidence, pair: str) -> tuple[ArmFacts, ...]:
    """The arms that are compared with each other."""
    return tuple(arm for arm in evidence.arms if arm.pair == pair)


def check_form(evidence: Evidence, cells: Iterable[Cell] | None = None) -> None:
    """Refuse a study that says two things at once.

    Args:
        evidence: its arms and outcomes.
        cells: those that there are to be; those of the outcomes when None.

    Raises:
        ValueError: two arms of one name, two outcomes of one cell, an outcome of no arm, a learning
            rate that is none.
    """
    ran = [run.cell for run in evidence.outcomes] if cells is None else list(cells)
    for what, names in (
        ("arms", [arm.name for arm in evidence.arms]),
        ("outcomes of the cell", [cell.key for cell in ran]),
    ):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise ValueError(f"study {evidence.name}: two {what} {twice[0]}")
    known = {arm.name for arm in evidence.arms}
    strange = sorted({cell.arm for cell in ran} - known)
    if strange:
        raise ValueError(f"study {evidence.name}: outcomes of {strange[0]}, which is no arm of it")
    for rate in (evidence.lr, *evidence.rates, *(cell.lr for cell in ran)):
        if not math.isfinite(rate):
            raise ValueError(f"study {evidence.name}: {rate} is no learning rate")
