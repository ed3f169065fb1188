"""What two runs are when they stand side by side: plain records, A first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Number = float | None
Match = Literal["name", "position", "relative depth"]
Change = Literal["gained", "lost", "kept"]


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    name: str
    run_id: str
    model: str
    sites: int  #: block-level
    nested: int
    captures: int
    steps: int  #: watched, as the report counts them: those after which updates were looked at
    last_step: int | None  #: the run's last one that was recorded
    uncaptured: str  #: why nothing was captured, where nothing was


@dataclass(frozen=True)
class Difference:
    """One thing that was set, or built, in two ways."""

    what: str
    a: str
    b: str


@dataclass(frozen=True)
class Pair:
    """One number of both runs; None where it was not measured."""

    what: str  #: name of a measure, or a few words
    a: Number
    b: Number
    step_a: int | None = None  #: where the two are of different steps
    step_b: int | None = None


@dataclass(frozen=True)
class FindingPair:
    """A finding that one run has, or both."""

    change: Change
    code: str
    name: str
    severity_a: str  #: "" where A does not have it
    severity_b: str
    where_a: tuple[str, ...]
    where_b: tuple[str, ...]
    message_a: str
    message_b: str
    #: what the same rule says of the run that does not have it
    other: str = ""


@dataclass(frozen=True)
class SitePair:
    """Two sites that correspond."""

    depth_a: int
    depth_b: int
    name_a: str
    name_b: str
    numbers: tuple[Pair, ...]


@dataclass(frozen=True)
class StreamPair:
    """Two streams of one number, site by site."""

    index: int
    sites_a: int
    sites_b: int
    match: Match
    why: str  #: why sites do not correspond by name, "" where they do
    sites: tuple[SitePair, ...]
    only_a: tuple[str, ...]  #: sites without a counterpart
    only_b: tuple[str, ...]
    start: tuple[Pair, ...]  #: depth numbers at the first step
    now: tuple[Pair, ...]  #: the same at the last


@dataclass(frozen=True)
class ComparisonNumbers:
    """Everything that `skipscope compare` shows."""

    a: Side
    b: Side
    differences: tuple[Difference, ...]
    findings: tuple[FindingPair, ...]
    training: tuple[Pair, ...]
    common_step: int | None  #: last step whose loss both know
    first: tuple[int, int] | None  #: steps of the captures that `StreamPair.start` is of
    last: tuple[int, int] | None  #: steps of those that the profile is of
    streams: tuple[StreamPair, ...]
    alone: tuple[str, ...]  #: streams that one run alone has
    notes: tuple[str, ...]  #: what does not compare, in sentences
