"""What a run says of the same net at another depth, under the law that its profile follows.

Along depth the variance of the stream is linear (normalised branches), exponential (branches of one
size against the stream), or exponential with a rate that shrinks as the net gets deeper (branches
scaled with depth); see `skipscope.theory`. Which it is is read off the measured profile, by two
fits that must differ; where neither is good, or both are, there is no number. The last two are one
curve: which holds is told by the start of the branches, and where that does not tell, both answers
stand side by side.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from skipscope import theory
from skipscope.extrapolation.makes import power
from skipscope.extrapolation.records import (
    Depth,
    ExtrapolationNumbers,
    Moment,
    Number,
    Scalar,
    StreamAt,
)
from skipscope.extrapolation.stages import Given, look
from skipscope.extrapolation.words import parts
from skipscope.history import History, check_history
from skipscope.measure.chains import chains
from skipscope.reports._expected import usual_placement
from skipscope.reports.parts import Part
from skipscope.reports.shown import Shown
from skipscope.rule.siblings import stages

__all__ = ["Extrapolation", "extrapolate"]

DEEPEST = 10**6  #: sites that are extrapolated to at most


class Extrapolation(Shown[ExtrapolationNumbers]):
    """The numbers, and how they are shown: `str` gives the console's form."""

    schema = "skipscope-extrapolation/1"

    def _parts(self, *, whole: bool) -> Iterable[Part]:
        return parts(self.numbers)


def extrapolate(history: History, *depths: str | int) -> Extrapolation:
    """The growth, residual budget and depth multiplier of a run's net at other depths.

    Args:
        history: what was recorded.
        depths: "4x" for four times the measured depth, a number for so many sites in a stream;
            none: "2x" and "4x".

    Raises:
        TypeError: `history` is none.
        ValueError: a depth is neither, or not from 2 to a million sites.

    >>> print(extrapolate(History(), "4x").numbers.why)
    nothing was captured
    """
    check_history("extrapolate", "history", history)
    wanted = tuple(dict.fromkeys(parse(str(one)) for one in depths or ("2x", "4x")))
    deepest = max((len(stream.sites) for stream in history.sites.streams), default=0)
    for one in wanted:
        sites = round(one.of(deepest) * deepest) if deepest else 2
        if sites > DEEPEST:
            raise ValueError(f"depth {one.text}: more than {DEEPEST} sites")
        if sites < 2:
            raise ValueError(
                f"depth {one.text}: {sites} sites, of {deepest} that were measured; give one of 2 "
                "sites or more"
            )
    why = ""
    if not history.sites.block_level:
        why = "no residual addition was found"
    if not len(history.capture_steps):
        why = "nothing was captured"
    rows = [] if why else sorted({0, len(history.capture_steps) - 1})
    moments = tuple(_moment(history, row, wanted) for row in rows)
    run = history.run
    count = len(history.sites.block_level)
    return Extrapolation(ExtrapolationNumbers(run.run_id, run.model, count, wanted, moments, why))


def parse(text: str) -> Depth:
    """A depth as it is written.

    Raises:
        ValueError: it is none.

    >>> parse("4x").factor, parse("96").sites
    (4.0, 96)
    """
    written = text.strip().lower()
    if re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,9})?x", written) and 0 < float(written[:-1]) <= DEEPEST:
        return Depth(written, float(written[:-1]), None)
    if re.fullmatch("[0-9]{1,7}", written) and 2 <= int(written) <= DEEPEST:
        return Depth(written, None, int(written))
    shown = text if len(text) < 20 else f"{text[:16]}..."
    raise ValueError(
        f"depth {shown!r}: give 4x (times the depth) or a number of sites from 2 to {DEEPEST}"
    )


def _moment(history: History, row: int, depths: Sequence[Depth]) -> Moment:
    step = int(history.capture_steps[row])
    if row == 0 and step == 0 and history.run.fresh:
        label = "initialisation, step 0"
    elif row == 0 and step == 0:
        label = "first capture, step 0 of a run that was resumed or pretrained"
    elif row == 0:
        label = f"first capture, step {step}, not the initialisation"
    else:
        label = f"last capture, step {step}"
    held = zip(chains(history.sites, by_stage=True), stages(history.sites), strict=True)
    streams: dict[int, list[Given]] = {}
    for chain, stage in held:
        streams.setdefault(chain.stream, []).append(Given(history, row, chain, stage, False))
    return Moment(step, label, tuple(_stream(held, depths) for held in streams.values()))


def _stream(held: list[Given], depths: Sequence[Depth]) -> StreamAt:
    whole = len(held) == 1
    given = [Given(one.history, one.row, one.chain, one.stage, whole) for one in held]
    sites = [site for one in given for site in one.stage.sites]
    looked = tuple(look(one, depths, len(sites)) for one in given)
    lawful = all(stage.gradient.answers for stage in looked)
    return StreamAt(
        index=given[0].chain.stream,
        sites=len(sites),
        placement=usual_placement(site.norm_placement for site in sites),
        stages=looked,
        scalar=_scalar(given[0], len(sites), depths if lawful else ()),
    )


def _scalar(given: Given, sites: int, depths: Sequence[Depth]) -> Scalar | None:
    """d^n from the end-to-end multiplier, or from the sums where the first input has none."""
    if sites < 2:
        return None
    name = f"stream {given.chain.stream}"
    start, blocks = "first input", sites
    value: Number = given.number("depth_multiplier", name)
    if value is None:
        start, blocks, value = "first sum", sites - 1, given.number("gradient_ratio", name)
    if value is None or not math.isfinite(value) or value <= 0:
        return None
    factor = theory.depth_factor(value, blocks)
    at = []
    for one in depths:
        n = max(round(sites * one.of(sites)) - (sites - blocks), 1)
        at.append((one.text, n, power(factor, n)))
    return Scalar(value, start, blocks, factor, tuple(at))
