"""One stage of one capture: the curves through its profile, and their numbers at other depths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from skipscope import theory
from skipscope.extrapolation.fit import Fits, Floats, fit
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
    forward = _forward(given, sums)
    gradient = _gradient(given, sums)
    measured = _measured(given, sums)
    makes = _Makes(given, forward, gradient, measured)
    asked = [(one.text, _sites(given, one, stream_sites)) for one in depths]
    cosines = given.of("cosine", sums[1:])
    known = cosines[np.isfinite(cosines)]
    return StageAt(
        name=given.chain.name,
        sites=len(given.chain.sites),
        counted=len(sums) - 1,
        cosine=float(np.median(known)) if len(known) else None,
        forward=forward,
        gradient=gradient,
        measured=measured,
        extrapolated=tuple(makes.at(text, sites, forward.law) for text, sites in asked),
        otherwise=tuple(
            makes.at(text, sites, law)
            for law in _others(given, forward, gradient, sums)
            for text, sites in asked
        ),
    )


def _others(given: Given, forward: Curve, gradient: Curve, sums: Sequence[int]) -> Iterator[Law]:
    """The laws of the same curve that are not chosen; none where every branch is 0."""
    if not given.of("branch_ratio", sums[1:]).any():
        return
    either = forward.open or (gradient.open and forward.law is None)
    if either or forward.law == "depth-scaled":
        yield "constant"
    if either or forward.law == "constant":
        yield "depth-scaled"


def _sites(given: Given, depth: Depth, stream_sites: int) -> int:
    wanted = round(len(given.chain.sites) * depth.of(stream_sites))
    return max(wanted, given.head + 1)


def _forward(given: Given, sums: Sequence[int]) -> Curve:
    if given.stage.rescaled:
        return Curve(None, None, "the stream is rescaled at its sums (post-norm, (x + F)/sqrt(2))")
    fits, reason = _fitted(given, given.of("rms_sum", sums) ** 2, "the stream", sums)
    if fits is None or fits.chosen is None:
        return Curve(fits, None, fits.reason if fits else reason)
    if fits.chosen.shape == "linear":
        return Curve(fits, "normalised", "")
    if fits.chosen.parameter < 1 and not fits.flat:  # rounding of a constant is no shrinking
        return Curve(fits, None, "no law fits: the stream shrinks along depth")
    return _factor_a_site(given, fits, sums)


def _gradient(given: Given, sums: Sequence[int]) -> Curve:
    norms = given.of("grad_sum_norm", sums)
    with np.errstate(divide="ignore"):
        fits, reason = _fitted(given, norms**-2.0, "the gradient", sums)
    if fits is None or fits.chosen is None:
        return Curve(fits, None, fits.reason if fits else reason)
    if fits.chosen.shape == "linear":
        return Curve(fits, "normalised", "")
    if given.stage.rescaled or fits.chosen.parameter < 1:
        return Curve(fits, "constant", "")
    return _factor_a_site(given, fits, sums)


def _factor_a_site(given: Given, fits: Fits, sums: Sequence[int]) -> Curve:
    """Does the factor stay, or shrink in a deeper net whose branches are scaled by its depth?"""
    if fits.flat:  # of a constant every law says the same
        return Curve(fits, "constant", "")
    law, why = told(given.history, given.stage, sums[1:])
    return Curve(fits, law, why, open=law is None)


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


def _over(above: float, below: float) -> Number:
    if math.isnan(above) or math.isnan(below) or below == 0:
        return None
    return above / below


@dataclass(frozen=True)
class _Makes:
    """The numbers of a stage at another depth."""

    given: Given
    forward: Curve
    gradient: Curve
    measured: At

    def at(self, text: str, sites: int, law: Law | None) -> At:
        """Under `law`; the gradient follows where its profile has the same curve."""
        empty = At(text, sites, law, None, None, None, None)
        growth = self._growth(sites, law)
        gradient = self._gradient(sites, law)
        return replace(
            empty,
            growth=growth,
            budget=None if growth is None else self._budget(sites, law),
            gradient=gradient,
            multiplier=self._times(self.measured.multiplier, gradient),
        )

    def _growth(self, sites: int, law: Law | None) -> Number:
        fits, at_base = self.forward.fits, self._base()
        if law is None or fits is None or fits.chosen is None or at_base is None:
            return None
        return at_base * math.sqrt(self._square(sites, law, fits.chosen.parameter))

    def _base(self) -> Number:
        """RMS of the sum where the curve starts over that of the first input."""
        chain, head = self.given.chain, self.given.head
        first = float(self.given.of("rms_input", chain.sites[:1])[0])
        base = float(self.given.of("rms_sum", chain.sites[head - 1 : head])[0])
        return _over(base, first)

    def _square(self, sites: int, law: Law, parameter: float) -> float:
        """By how much a mean square grows from the curve's start to so many sites."""
        head, measured = self.given.head, len(self.given.chain.sites)
        if law == "normalised":
            return theory.expected_variance_growth(head, sites, a=parameter - head)
        excess = max(parameter - 1.0, 0.0) * (measured if law == "depth-scaled" else 1)
        try:
            return theory.expected_variance_growth(head, sites, law, scale=math.sqrt(excess))
        except OverflowError:
            return math.inf

    def _budget(self, sites: int, law: Law | None) -> Number:
        """B under the law, from the B that was measured: branches need not be independent."""
        measured = self.measured.budget
        if law is None or measured is None or not math.isfinite(measured):
            return None
        if measured <= 0:
            return measured
        steps, further = self.measured.sites - self.given.head, sites - self.given.head
        if law == "normalised":
            return math.log1p(math.expm1(min(measured, 700.0)) * further / steps)
        if law == "constant":
            return measured * further / steps
        square = math.expm1(measured / steps)
        return further * math.log1p(square * self.measured.sites / sites)

    def _gradient(self, sites: int, law: Law | None) -> Number:
        fits = self.gradient.fits
        chosen = law if self.gradient.open else self.gradient.law
        if chosen is None or fits is None or fits.chosen is None:
            return None
        if chosen != "normalised" and law in ("constant", "depth-scaled"):
            chosen = law if fits.chosen.parameter >= 1 else "constant"
        if chosen == "constant":
            return power(math.sqrt(fits.chosen.parameter), sites - self.given.head)
        return math.sqrt(self._square(sites, chosen, fits.chosen.parameter))

    def _times(self, multiplier: Number, gradient: Number) -> Number:
        """The depth multiplier: what the sites before the curve do stays as it was measured."""
        if multiplier is None or gradient is None or not self.measured.gradient:
            return None
        return multiplier / self.measured.gradient * gradient


def power(factor: float, blocks: int) -> float:
    """`theory.depth_multiplier`, infinite where no float holds it.

    >>> power(0.8, 20) == 0.8**20, power(2.0, 5000)
    (True, inf)
    """
    try:
        return theory.depth_multiplier(factor, blocks)
    except OverflowError:
        return math.inf
