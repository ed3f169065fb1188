"""The page of a comparison: what was set, what was found, losses, depth numbers, the profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skipscope.comparison.records import (
    ComparisonNumbers,
    FindingPair,
    Number,
    Pair,
    Side,
    SitePair,
    StreamPair,
)
from skipscope.comparison.sites import Steps
from skipscope.names import counted
from skipscope.reports import _words
from skipscope.reports._text import listed, number
from skipscope.reports.parts import Grid, Notes, Part, Title

ROWS = 40  #: sites of a stream that a console shows
FINDINGS = 8  #: of each kind that a console shows
ENDS = 3
CHANGES = ("gained", "lost", "kept")
HEADS = ("\nr {}", "\nRMS {}", "growth\n{}", "grad\ngain {}")  #: of the numbers of a site


def parts(numbers: ComparisonNumbers, most: int | None = ROWS) -> Iterator[Part]:
    """The page, part by part; at most so many sites a stream, None for all."""
    yield Title(_headline(numbers), True)
    yield Notes((("A", _side(numbers.a)), ("B", _side(numbers.b))))
    yield Notes(tuple(("" if at else "note", one) for at, one in enumerate(numbers.notes)))
    yield Title("Set or built differently")
    rows = tuple((one.what, one.a, one.b) for one in numbers.differences)
    if rows:
        yield Grid(("", "A", "B"), rows, names=(0, 1, 2))
    else:
        yield Notes((("nothing", "that was recorded"),))
    yield Title("Findings")
    yield Notes(tuple(_findings(numbers, most)))
    if numbers.training:
        yield Title("Training")
        yield Notes(tuple(_equal_steps(numbers)))
        yield Grid(("", "A", "step", "B", "step"), tuple(map(_training, numbers.training)))
    for stream in numbers.streams:
        yield from _stream(numbers, stream, most)
    if numbers.alone:
        yield Title("Streams without a counterpart")
        yield Notes((("alone", listed(numbers.alone, 6)),))


def _headline(numbers: ComparisonNumbers) -> str:
    """The first line: the same form each time, made to be searched for."""
    counts = [sum(one.change == word for one in numbers.findings) for word in CHANGES]
    found = ", ".join(f"{n} {word}" for n, word in zip(counts, CHANGES, strict=True))
    sites = counted(numbers.b.sites, "site")
    return f"skipscope compare  {numbers.a.sites} and {sites}  findings: {found}"


def _side(side: Side) -> str:
    fields = [
        side.name,
        side.model,
        f"{counted(side.sites, 'site')}" + (f", {side.nested} nested" if side.nested else ""),
        counted(side.steps, "watched step") if side.steps else "",
        counted(side.captures, "capture"),
        f"not captured: {side.uncaptured}" if side.uncaptured else "",
    ]
    return ", ".join(field for field in fields if field)


def _findings(numbers: ComparisonNumbers, most: int | None) -> Iterator[tuple[str, str]]:
    for change in CHANGES:
        held = [one for one in numbers.findings if one.change == change]
        kept = len(held) if most is None or len(held) <= FINDINGS else FINDINGS - 1
        for one in held[:kept]:
            yield change, _finding(one)
        if len(held) > kept:
            rest = [one.code for one in held[kept:]]
            yield change, f"and {len(rest)} more: {listed(rest, 6)}"
        if not held:
            yield change, "none"


def _finding(pair: FindingPair) -> str:
    before, after = (_words.SEVERITIES.get(one, "") for one in (pair.severity_a, pair.severity_b))
    severity = f"{before}, then {after}," if before and after and before != after else ""
    severity = severity or after or before
    where = listed(pair.where_b or pair.where_a, 3)
    head = f"{severity} {pair.code} {pair.name}, {where}"
    if pair.change == "kept":
        moved = f" (A: {listed(pair.where_a, 3)})" if pair.where_a != pair.where_b else ""
        return f"{head}{moved}"
    run = "A" if pair.change == "gained" else "B"
    told = pair.other.replace("there", f"in {run}")
    return f"{head}: {pair.message_b or pair.message_a} ({told})"


def _equal_steps(numbers: ComparisonNumbers) -> Iterator[tuple[str, str]]:
    if numbers.common_step is None:
        yield "note", "no step has a loss in both runs: nothing is compared at equal steps"
    elif numbers.a.last_step != numbers.b.last_step:
        ends = f"A ends at step {numbers.a.last_step}, B at step {numbers.b.last_step}"
        yield "note", f"{ends}: equal steps end at step {numbers.common_step}"


def _training(pair: Pair) -> tuple[str, ...]:
    def step(at: int | None) -> str:
        return "" if at is None else str(at)

    return (pair.what, _loss(pair.a), step(pair.step_a), _loss(pair.b), step(pair.step_b))


def _loss(value: Number) -> str:
    """Losses near each other are told apart by their fourth digit."""
    return number(value) if value is None or value != value else f"{value:.4g}"


def _stream(numbers: ComparisonNumbers, stream: StreamPair, most: int | None) -> Iterator[Part]:
    several = f", stream {stream.index}" if len(numbers.streams) > 1 or numbers.alone else ""
    yield Title(f"Along depth{several}")
    yield Notes(tuple(_matching(stream)))
    if numbers.last is None:
        return
    yield _depth(stream, numbers.first, numbers.last)
    last_a, last_b = numbers.last
    at = f"at step {last_a}" if last_a == last_b else f"of A at step {last_a}, of B at {last_b}"
    chosen = _chosen(stream.sites, most)
    left = len(stream.sites) - len(chosen)
    more = f"; {counted(left, 'pair')} between them left out, --format json has all" if left else ""
    yield Title(f"Profile {at}{several}{more}")
    yield _profile(stream, chosen)


def _matching(stream: StreamPair) -> Iterator[tuple[str, str]]:
    why = f" ({stream.why})" if stream.why else ""
    yield "sites", f"{stream.sites_a} and {stream.sites_b}, matched by {stream.match}{why}"
    for run, names in (("A", stream.only_a), ("B", stream.only_b)):
        if names and stream.match == "name":
            yield f"only {run}", f"{len(names)}: {listed(names, 6)}"
        elif names:
            yield "", f"{counted(len(names), 'site')} of {run} without a counterpart"


def _depth(stream: StreamPair, first: Steps | None, last: Steps) -> Grid:
    start = {one.what: one for one in stream.start}
    moments = [one for one in (first, last) if one is not None]
    head = [f"{run}\nstep {step}" for one in moments for run, step in zip("AB", one, strict=True)]
    rows = []
    for now in stream.now:
        words, write = _words.DEPTH[now.what]
        pairs = [start.get(now.what, Pair(now.what, None, None))] if first is not None else []
        cells = [write(value) for pair in (*pairs, now) for value in (pair.a, pair.b)]
        rows.append((words.format(n="n"), *cells))
    return Grid(("", *head), tuple(rows))


def _chosen(sites: Sequence[SitePair], most: int | None) -> Sequence[SitePair]:
    """The first and last ones and some between, evenly."""
    if most is None or len(sites) <= most:
        return sites
    inner = most - 2 * ENDS
    gap = (len(sites) - 2 * ENDS) / inner
    kept = [*range(ENDS), *(ENDS + int(gap * k) for k in range(inner))]
    return [sites[at] for at in (*kept, *range(len(sites) - ENDS, len(sites)))]


def _profile(stream: StreamPair, chosen: Sequence[SitePair]) -> Grid:
    by_name = stream.match == "name"
    head = ["depth", "site"] if by_name else ["depth\nA", "depth\nB", "site\nof A"]
    head += [words.format(run) for words in HEADS for run in "AB"]
    rows = []
    for pair in chosen:
        place = [str(pair.depth_a), pair.name_a]
        if not by_name:
            place.insert(1, str(pair.depth_b))
        for numbers in pair.numbers:
            place += [number(numbers.a), number(numbers.b)]
        rows.append(tuple(place))
    return Grid(tuple(head), tuple(rows), names=(1,) if by_name else (2,))
