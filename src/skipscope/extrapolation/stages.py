"""One stage of one capture: the curves through its profile, and their numbers at other depths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from skipscope.extrapolation.fit import Fits, Floats, fit
from skipscope.extrapolation.laws import STARTS, Start, laws, restarted
from skipscope.extrapolation.makes import Makes
from skipscope.extrapolation.records import At, Curve, Depth, Number, StageAt
from skipscope.extrapolation.start import told
from skipscope.history import History
from skipscope.measure.chains import Chain
from skipscope.rule.siblings import Stage
from skipscope.theory import Law

SITES = 8  #: sites below which no curve is told from another


@dataclass(frozen=True)
class Given:
    """One stage as it was measured."""

    history: History
    row: int
    chain: Chain
    stage: Stage
    whole: bool  #: it is all of its stream

    @property
    def head(self) -> int:
        """Sites before the curves start: the last of them is the sum they start at."""
        return len(self.chain.counted) - sum(self.chain.counted)

    def of(self, measure: str, sites: Sequence[int]) -> Floats:
        """A measure at these sites; NaN where it was not measured."""
        values: Floats = self.history.table(measure).values[self.row, list(sites)]
        return values

    def number(self, measure: str, column: str) -> Number:
        """A measure of the whole; None where it was not measured."""
        table = self.history.table(measure)
        at = table.columns.index(column)
        return None if table.missing[self.row, at] else float(table.values[self.row, at])


def look(given: Given, depths: Sequence[Depth], stream_sites: int) -> StageAt:
    """Fit a stage, and give its numbers at every depth."""
    sums = given.chain.sites[given.head - 1 :]
    start, why = told(given.history, given.stage, sums[1:])
    forward = _forward(given, sums, start, why)
    gradient = _gradient(given, sums, start, why)
    measured = _measured(given, sums)
    makes = Makes(given.head, _base(given), forward, gradient, measured)
    asked = [(one.text, _sites(given, one, stream_sites)) for one in depths]
    cosines = given.of("cosine", sums[1:])
    known = cosines[np.isfinite(cosines)]
    found = StageAt(
        name=given.chain.name,
        sites=len(given.chain.sites),
        counted=len(sums) - 1,
        cosine=float(np.median(known)) if len(known) else None,
        forward=forward,
        gradient=gradient,
        measured=measured,
        extrapolated=(),
        otherwise=(),
    )
    law = None if found.answers else forward.law
    others = _others(found) if given.of("branch_ratio", sums[1:]).any() else ()
    return replace(
        found,
        extrapolated=tuple(makes.at(text, sites, law) for text, sites in asked),
        otherwise=tuple(makes.at(text, sites, one) for one in others for text, sites in asked),
    )


def _others(found: StageAt) -> tuple[Law, ...]:
    """The laws that are not chosen: those that stand side by side, and those of the other start."""
    known = found.answers or ((found.forward.law,) if found.forward.law else ())
    if not any(one.answers and not one.unscaled for one in (found.forward, found.gradient)):
        return found.answers
    return (*found.answers, *(one for one in map(restarted, known) if one not in known))


def _sites(given: Given, depth: Depth, stream_sites: int) -> int:
    wanted = round(len(given.chain.sites) * depth.of(stream_sites))
    return max(wanted, given.head + 1)


def _forward(given: Given, sums: Sequence[int], start: Start | None, why: str) -> Curve:
    if given.stage.rescaled:
        return Curve(None, None, "the stream is rescaled at its sums (post-norm, (x + F)/sqrt(2))")
    fits, reason = _fitted(given, given.of("rms_sum", sums) ** 2, "the stream", sums)
    if fits is None or not fits.standing:
        return Curve(fits, None, fits.reason if fits else reason)
    if fits.geometric.parameter < 1 and not fits.constant:  # rounding of a constant is none
        return Curve(fits, None, "no law fits: the stream shrinks along depth")
    return _followed(fits, start, why)


def _gradient(given: Given, sums: Sequence[int], start: Start | None, why: str) -> Curve:
    norms = given.of("grad_sum_norm", sums)
    with np.errstate(divide="ignore"):
        fits, reason = _fitted(given, norms**-2.0, "the gradient", sums)
    if fits is None or not fits.standing:
        return Curve(fits, None, fits.reason if fits else reason)
    if given.stage.rescaled or fits.geometric.parameter < 1:
        return replace(_followed(fits, "plain", ""), unscaled=True)
    return _followed(fits, start, why)


def _followed(fits: Fits, start: Start | None, why: str) -> Curve:
    """The law or laws of the standing curves, for branches that start so in a deeper net."""
    if fits.constant:  # of a constant every law says the same
        return Curve(fits, "constant", "")
    if fits.shapes == ("linear",) and start is None:
        # A branch that reads a normalised input has a size of its own, whatever its matrices.
        return Curve(fits, "normalised", "")
    found = laws(fits.shapes, [start] if start else STARTS)
    return Curve(fits, found[0], why) if len(found) == 1 else Curve(fits, None, why, found)


def _fitted(
    given: Given, values: Floats, what: str, sums: Sequence[int]
) -> tuple[Fits | None, str]:
    """The curves, or why there are none."""
    if len(given.chain.sites) < SITES:
        return None, f"needs {SITES} sites in one stage, has {len(given.chain.sites)}"
    names = [given.history.sites.sites[index].name for index in sums]
    for wrong, words in (
        (np.isnan(values), "is not a number or was not measured"),
        (np.isinf(values) | (values <= 0), "is 0 or infinite"),
    ):
        if wrong.any():
            return None, f"{what} {words} at {names[int(np.flatnonzero(wrong)[0])]}"
    return fit(values), ""


def _measured(given: Given, sums: Sequence[int]) -> At:
    chain = given.chain
    first = float(given.of("rms_input", chain.sites[:1])[0])
    last = float(given.of("rms_sum", chain.sites[-1:])[0])
    norms = given.of("grad_sum_norm", (sums[0], sums[-1]))
    stream = f"stream {chain.stream}"
    return At(
        asked="measured",
        sites=len(chain.sites),
        law=None,
        growth=_over(last, first),
        budget=given.number("stage_residual_budget", chain.name),
        gradient=_over(float(norms[0]), float(norms[1])),
        multiplier=given.number("depth_multiplier", stream) if given.whole else None,
    )


def _base(given: Given) -> Number:
    """RMS of the sum where the curves start over that of the first input."""
    chain, head = given.chain, given.head
    first = float(given.of("rms_input", chain.sites[:1])[0])
    return _over(float(given.of("rms_sum", chain.sites[head - 1 : head])[0]), first)


def _over(above: float, below: float) -> Number:
    if math.isnan(above) or math.isnan(below) or below == 0:
        return None
    return above / below
