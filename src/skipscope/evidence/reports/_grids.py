"""What every format prints of a study: tables of words, and the sentences between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from skipscope.evidence.landmarks import LANDMARKS
from skipscope.evidence.link import percent
from skipscope.evidence.links.signal import early_imbalance, early_rank, early_ratio, early_update
from skipscope.evidence.outcome import ArmFacts, Evidence, Outcome
from skipscope.evidence.runs import EARLY, depths, of_arm
from skipscope.evidence.statistics import Spread, median
from skipscope.evidence.verdict import Chain, Comparison, Generalisation, Link, Place, Row, Verdict
from skipscope.names import counted
from skipscope.reports._text import number

TABLE_NOTE = (
    "Median [smallest, largest] over seeds; a run that is not finite counts as +inf, its error as "
    "100 %. Training numbers are of the whole training set, as the net predicts."
)
VALIDATION_NOTE = "Generalisation, not optimisation: it decides no link."
NOT_EVIDENCE = "not evidence of degradation"
LANDMARKS_NOTE = (
    "Other data, nets and budgets than here: context, compared with nothing above and part of no "
    "link."
)


@dataclass(frozen=True)
class Grid:
    """A table in words."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1  #: columns from the left that hold words; the others hold numbers


def loss_text(spread: Spread | None) -> str:
    """Median [smallest, largest].

    >>> from skipscope.evidence.statistics import spread
    >>> loss_text(spread([0.012, 0.01, 0.02])), loss_text(spread([1.0]))
    ('0.012 [0.010, 0.020]', '1.00')
    >>> loss_text(spread([1.0, float("nan")])), loss_text(None)
    ('diverged (1 of 2)', '-')
    """
    if spread is None or not spread.runs:
        return "-"
    if spread.lost:
        return f"diverged ({spread.diverged} of {spread.runs})"
    return _ranged(spread, number)


def error_text(spread: Spread | None) -> str:
    """The same of an error, in percent."""
    if spread is None or not spread.runs:
        return "-"
    return _ranged(spread, percent)


def _ranged(spread: Spread, write: Callable[[float], str]) -> str:
    middle = write(spread.median)
    if spread.lowest == spread.highest:
        return middle
    return f"{middle} [{write(spread.lowest)}, {write(spread.highest)}]"


def facts(evidence: Evidence) -> list[tuple[str, str]]:
    """What was run, and what was held equal."""
    runs = evidence.outcomes
    lost = sum(not run.finite for run in runs)
    found = depths(runs)
    seeds = len({run.cell.seed for run in runs})
    ran = [
        counted(len(runs), "run"),
        counted(seeds, "seed"),
        f"depth{'s' * (len(found) > 1)} {', '.join(map(str, found))}" if found else "",
        f"lr {evidence.lr:g}",
        f"{lost} not finite" if lost else "",
    ]
    told = [("ran", ", ".join(word for word in ran if word))]
    if evidence.rates:
        told.append(("rates", ", ".join(f"{rate:g}" for rate in evidence.rates)))
    return [*told, *evidence.protocol.items()]


def arms(evidence: Evidence) -> Grid:
    """What each arm is."""
    rows = tuple((a.name, a.title, a.pair, a.role, a.differs or "-") for a in evidence.arms)
    return Grid(("arm", "what it is", "compared in", "role", "differs from plain in"), rows, 5)


def links(chain: Chain) -> Grid:
    """The chain, a line each."""
    rows = tuple(
        (str(one.number), one.answer.state, one.name, one.answer.reason) for one in chain.links
    )
    return Grid(("", "state", "link", "what was found"), rows, 4)


def checks(link: Link) -> Grid:
    """The numbers of a link against their limits."""
    rows = tuple(
        (one.what, one.text, one.limit, "yes" if one.met else "no") for one in link.answer.checks
    )
    return Grid(("measured", "value", "needs", "met"), rows, 4)


def training(rows: Iterable[Row], *, batch: bool = False) -> Grid:
    """Training loss and error by arm and depth, at the rate of the main comparison."""
    kept = [row for row in rows if row.main]
    with_batch = batch and any(row.loss_batch for row in kept)
    head = ["arm", "depth", "runs", "training loss", "training error %", "steps to 90 %"]
    head += ["loss, batch statistics", "error %, batch statistics"] if with_batch else []
    body = []
    for row in kept:
        line = [row.arm, str(row.depth), str(row.loss.runs), loss_text(row.loss)]
        line += [error_text(row.error), row.steps_to_90]
        line += [loss_text(row.loss_batch), error_text(row.error_batch)] if with_batch else []
        body.append(tuple(line))
    return Grid(tuple(head), tuple(body))


def rates(rows: Sequence[Row]) -> Grid:
    """The learning rates tried, where an arm ran at more than one."""
    several = {
        (row.arm, row.depth)
        for row in rows
        if not row.main and any((o.arm, o.depth) == (row.arm, row.depth) for o in rows)
    }
    body = tuple(
        (row.arm, str(row.depth), f"{row.lr:g}", loss_text(row.loss), error_text(row.error))
        for row in rows
        if (row.arm, row.depth) in several
    )
    return Grid(("arm", "depth", "lr", "training loss", "training error %"), body)


def signals(evidence: Evidence) -> Grid:
    """Gradients, updates, features and r of each arm at its deepest, in the first steps."""
    body = []
    for arm in evidence.arms:
        runs = of_arm(evidence, arm.name)
        if any(run.readings for run in runs):
            deepest = [run for run in runs if run.cell.depth == depths(runs)[-1]]
            body.append(_signal(arm, deepest))
    head = ("arm", "depth", "gradient", "dW/W", "rank", "r", "r at the end")
    return Grid(head, tuple(body))


SIGNALS_NOTE = (
    f"Deepest nets, medians over steps 0 to {EARLY} (from step 1 where F starts at 0) and seeds: "
    "gradient, decades between first and last block at the worst of these steps; dW/W of the first "
    "block; effective rank of the last features; r = |F|/|s|, and [smallest, largest] over sites "
    "at the last reading."
)


def _signal(arm: ArmFacts, runs: Sequence[Outcome]) -> tuple[str, ...]:
    start = arm.signal_from
    early = [of(runs, start) for of in (early_imbalance, early_update, early_rank, early_ratio)]
    last = [run.readings[-1] for run in runs if run.readings]
    smallest = [one.r_smallest for one in last if one.r_smallest is not None]
    largest = [one.r_largest for one in last if one.r_largest is not None]
    middle = median([one.r_median for one in last if one.r_median is not None])
    end = _number(middle)
    if smallest and largest:
        end += f" [{number(min(smallest))}, {number(max(largest))}]"
    return (arm.name, str(runs[0].cell.depth), *(_number(value) for value in early), end)


def _number(value: float) -> str:
    return "-" if value != value else number(value)  # NaN: nothing was read


def order(compared: Comparison) -> Grid:
    """The arms at each depth, best first."""
    body = []
    for depth, places in compared.places:
        line = _placed(places[0])
        for before, place in pairwise(places):
            line += f" {'=' if place.arm in before.tied else '<'} {_placed(place)}"
        ahead = places[0].ahead
        body.append((str(depth), line, f"{ahead} seed{'s' * (not ahead.endswith(' of 1'))}"))
    head = ("depth", "training loss, lowest first; = is a tie", "first below second in")
    return Grid(head, tuple(body), 3)


def _placed(place: Place) -> str:
    return f"{place.arm} {'diverged' if place.loss == float('inf') else number(place.loss)}"


def validation(found: Iterable[Generalisation]) -> Grid:
    """Training error beside validation error."""
    head = ("arms", "depth", "training error %", "validation error %", "")
    body = tuple(
        (
            " / ".join(one.arms),
            str(one.depth),
            " / ".join(percent(share) for share in one.train_error),
            " / ".join(percent(share) for share in one.validation_error),
            NOT_EVIDENCE if one.only_validation else "",
        )
        for one in found
    )
    return Grid(head, body)


def all_validation(verdict: Verdict) -> Grid:
    """Each chain's two arms at every depth, and other arms that only validation tells apart."""
    found = [one for chain in verdict.chains for one in chain.validation]
    known = {(one.arms, one.depth) for one in found}
    others = [
        o for c in verdict.comparisons for o in c.validation if (o.arms, o.depth) not in known
    ]
    return validation([*found, *others])


def before_validation(evidence: Evidence, verdict: Verdict) -> list[tuple[str, Grid, str]]:
    """The tables of training, in the order of the argument: title, table, note."""
    found = [
        ("Training", training(verdict.rows, batch=True), TABLE_NOTE),
        ("The first steps", signals(evidence), SIGNALS_NOTE),
        ("Learning rates", rates(verdict.rows), ""),
    ]
    return [one for one in found if one[1].rows]


def landmarks() -> Grid:
    """Published numbers, with what they are evidence of."""
    rows = tuple((one.text, one.kind, one.reading, one.source) for one in LANDMARKS)
    return Grid(("published", "measured on", "what it says", "source"), rows, 4)
