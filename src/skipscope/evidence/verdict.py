"""What a study shows, as records: links, chains, comparisons. Reports print these and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from skipscope.evidence.statistics import Spread

#: Its criterion is met; it is not; what it asks for is not in this study.
State = Literal["shown", "not shown", "not applicable"]


@dataclass(frozen=True)
class Check:
    """One number of a link against its limit."""

    what: str  #: "training error, depth 100 less depth 10, least of the seeds"
    value: float | None  #: in the unit that `text` writes; None where it is no number
    text: str  #: "+87.2 points"
    limit: str  #: ">= 5 points"
    met: bool


@dataclass(frozen=True)
class Answer:
    """What one link comes to."""

    state: State
    reason: str  #: one sentence, with the numbers that decided
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()  #: worth knowing, and decides nothing


@dataclass(frozen=True)
class Link:
    """One link of a chain, answered."""

    number: int
    name: str
    claim: str
    criterion: str
    answer: Answer


@dataclass(frozen=True)
class Generalisation:
    """Two arms at one depth: how they fit and how they generalise. Decides no link."""

    depth: int
    arms: tuple[str, str]
    train_error: tuple[float, float]  #: medians over seeds, 0 to 1
    validation_error: tuple[float, float]
    only_validation: bool  #: equal in training, apart in validation: no evidence of degradation


@dataclass(frozen=True)
class Chain:
    """A plain and a residual arm, and the links from one to a conclusion about the other."""

    pair: str
    plain: str
    residual: str
    differs: str  #: in what the arms differ, as the study says
    one_factor: bool  #: in the shortcut alone
    caution: str  #: what stands in the way of blaming the shortcut; ""
    links: tuple[Link, ...]
    validation: tuple[Generalisation, ...]

    def numbers(self, state: State) -> tuple[int, ...]:
        """The numbers of the links in one state."""
        return tuple(link.number for link in self.links if link.answer.state == state)


@dataclass(frozen=True)
class Row:
    """An arm at one depth and rate: what its seeds came to."""

    arm: str
    pair: str
    depth: int
    lr: float
    main: bool  #: at the rate of the main comparison, not of the grid alone
    loss: Spread  #: training loss, as the net predicts
    error: Spread  #: training error, 0 to 1
    loss_batch: Spread | None  #: the same with the statistics of the batch
    error_batch: Spread | None
    validation_loss: Spread
    validation_error: Spread
    steps_to_90: str
    seconds: float  #: median


@dataclass(frozen=True)
class Place:
    """An arm among those of its pair at one depth."""

    arm: str
    tied: tuple[str, ...]  #: the others whose training loss does not tell them from it
    loss: float
    error: float
    ahead: (
        str  #: "3 of 3": seeds in which its loss is below that of the next place; "" for the last
    )


@dataclass(frozen=True)
class Comparison:
    """All arms of a pair, ranked at each depth by training loss; no chain, no conclusion."""

    pair: str
    places: tuple[tuple[int, tuple[Place, ...]], ...]  #: depth, and the arms from best to worst
    notes: tuple[str, ...]
    validation: tuple[Generalisation, ...]  #: arms that only validation tells apart


@dataclass(frozen=True)
class Verdict:
    """What a study shows."""

    headline: str
    chains: tuple[Chain, ...]
    comparisons: tuple[Comparison, ...]
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()  #: arms without a run
