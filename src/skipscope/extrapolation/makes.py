"""The numbers of one stage at another depth, under one law."""

from __future__ import annotations

import math
from dataclasses import dataclass

from skipscope import theory
from skipscope.extrapolation.fit import Fit
from skipscope.extrapolation.laws import laws, shape_of, start_of
from skipscope.extrapolation.records import At, Curve, Number
from skipscope.theory import Law


@dataclass(frozen=True)
class Makes:
    """What makes them: both curves, and what was measured."""

    head: int  #: sites before the curves start: the last of them is the sum they start at
    base: Number  #: RMS of the sum where the curves start over that of the first input
    forward: Curve
    gradient: Curve
    measured: At

    def at(self, text: str, sites: int, law: Law | None) -> At:
        """Under `law`, of which each profile has its own curve where it has but one."""
        growth = self._growth(sites, _under(self.forward, law))
        gradient = self._gradient(sites, _under(self.gradient, law))
        return At(
            asked=text,
            sites=sites,
            law=law,
            growth=growth,
            budget=None if growth is None else self._budget(sites, _under(self.forward, law)),
            gradient=gradient,
            multiplier=self._times(self.measured.multiplier, gradient),
        )

    def _growth(self, sites: int, law: Law | None) -> Number:
        if law is None or self.base is None:
            return None
        return self.base * math.sqrt(self._square(sites, law, _fit(self.forward, law)))

    def _square(self, sites: int, law: Law, fit: Fit) -> float:
        """By how much a mean square grows from the curve's start to so many sites."""
        head, parameter = self.head, fit.parameter
        deeper = sites / self.measured.sites if start_of(law) == "scaled" else 1.0
        if fit.shape == "linear":
            a = parameter * deeper - head
            return theory.expected_variance_growth(head, sites, "normalised", a=a)
        excess = max(parameter - 1.0, 0.0) / deeper
        try:
            return theory.expected_variance_growth(head, sites, "constant", scale=math.sqrt(excess))
        except OverflowError:
            return math.inf

    def _budget(self, sites: int, law: Law | None) -> Number:
        """B under the law, from the B that was measured: branches need not be independent."""
        measured = self.measured.budget
        if law is None or measured is None or not math.isfinite(measured):
            return None
        if measured <= 0:
            return measured
        steps, further = self.measured.sites - self.head, sites - self.head
        smaller = self.measured.sites / sites if start_of(law) == "scaled" else 1.0
        if shape_of(law) == "linear":
            return math.log1p(math.expm1(min(measured, 700.0)) * further / steps * smaller)
        if start_of(law) == "plain":
            return measured * further / steps
        return further * math.log1p(math.expm1(measured / steps) * smaller)

    def _gradient(self, sites: int, law: Law | None) -> Number:
        if law is None:
            return None
        fit = _fit(self.gradient, law)
        if law == "constant":
            return power(math.sqrt(fit.parameter), sites - self.head)
        return math.sqrt(self._square(sites, law, fit))

    def _times(self, multiplier: Number, gradient: Number) -> Number:
        """The depth multiplier: what the sites before the curve do stays as it was measured."""
        if multiplier is None or gradient is None or not self.measured.gradient:
            return None
        return multiplier / self.measured.gradient * gradient


def _under(curve: Curve, law: Law | None) -> Law | None:
    """The law of a profile in a net under `law`: its start, and the profile's own curve."""
    if law is None or not curve.answers or curve.fits is None:
        return curve.law if law is None else None
    shapes = curve.fits.shapes
    shape = shape_of(law) if shape_of(law) in shapes else shapes[0]
    return laws([shape], ["plain" if curve.unscaled else start_of(law)])[0]


def _fit(curve: Curve, law: Law) -> Fit:
    """The curve of a law that its profile may follow."""
    assert curve.fits is not None
    return next(one for one in curve.fits.standing if one.shape == shape_of(law))


def power(factor: float, blocks: int) -> float:
    """`theory.depth_multiplier`, infinite where no float holds it.

    >>> power(0.8, 20) == 0.8**20, power(2.0, 5000)
    (True, inf)
    """
    try:
        return theory.depth_multiplier(factor, blocks)
    except OverflowError:
        return math.inf
