"""Which curve a profile along depth follows: variance linear in depth, or a factor a site.

Both have two parameters and are fitted by least squares to the logarithm of the profile, so that
their residuals compare. The logarithm is also what a reader asks about: by how many percent is the
curve off?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from skipscope.reports._text import exact

Floats = npt.NDArray[np.float64]
Shape = Literal["linear", "geometric"]

GOOD = 0.95  #: R^2 that a fit needs
APART = 2.0  #: and the other's residual must be so many times its own
EXACT = 1e-9  #: residuals below this are rounding
FLAT = 2 * math.log(1.05)  #: a profile that varies by less (5 % of an RMS) has no shape


@dataclass(frozen=True)
class Fit:
    """One curve through `ln v_k`, k = 0 ... n."""

    shape: Shape
    #: linear: a of `1 + k/a`; geometric: the factor of v a site
    parameter: float
    residual: float  #: root mean square of ln v against the curve
    r_squared: float | None  #: of ln v; None where the profile is constant

    def logarithm(self, k: float) -> float:
        """`ln(v_k / v_0)` of the curve."""
        if self.shape == "linear":
            return math.log1p(k / self.parameter)
        return k * math.log(self.parameter)


@dataclass(frozen=True)
class Fits:
    """Both curves, and which of them the profile may follow."""

    linear: Fit
    geometric: Fit
    flat: bool  #: it varies too little to have a shape
    standing: tuple[Fit, ...]  #: both, where both are good and neither is clearly better
    reason: str  #: why not one stands, "" where one does
    #: `ln(v_n / v_0)` of the standing curves, fitted to the first half alone, and as measured
    check: tuple[float, ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of the standing curves."""
        return tuple(one.shape for one in self.standing)

    @property
    def constant(self) -> bool:
        """Whether the profile does not change at all, so that every curve says the same."""
        return self.flat and self.geometric.r_squared is None


def fit(values: Floats) -> Fits:
    """Fit both curves to a profile of positive finite values, v_0 ... v_n.

    >>> found = fit(np.array([2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]))
    >>> found.shapes, round(found.linear.parameter, 9)
    (('linear',), 2.0)
    """
    logs = np.log(values)
    linear, geometric = _linear(logs), _geometric(logs)
    flat = float(np.ptp(logs)) < FLAT
    standing, reason = _standing(linear, geometric, flat)
    return Fits(linear, geometric, flat, standing, reason, _check(logs, standing))


def _standing(linear: Fit, geometric: Fit, flat: bool) -> tuple[tuple[Fit, ...], str]:
    best, other = sorted((linear, geometric), key=lambda one: one.residual)
    if flat and geometric.r_squared is None:
        return (geometric,), ""  # of a constant every curve says the same
    if flat and (best.r_squared or 0.0) < GOOD:
        return (), "flat: no shape, it varies by under 5 %"
    if best.r_squared is None or best.r_squared < GOOD:
        return (), f"no law fits: the better R^2 is {_below(best)}"
    if not flat and other.residual >= APART * max(best.residual, EXACT):
        return (best,), ""
    reason = "no law fits clearly better than the other"
    if (other.r_squared or 0.0) < GOOD:
        # Neither an answer nor an end of a range: it is too bad for one, too good to be ruled out.
        return (), f"{reason}, and one of them not well: R^2 {_below(other)}"
    return (linear, geometric), reason


def _below(one: Fit) -> str:
    share = one.r_squared or 0.0
    return f"{exact(f'{share:.2f}', share, GOOD)}, below {GOOD}"


def _check(logs: Floats, standing: Sequence[Fit]) -> tuple[float, ...]:
    half = len(logs) // 2 + 1
    if not standing or half < 4:
        return ()
    again = {"linear": _linear, "geometric": _geometric}
    said = (again[one.shape](logs[:half]).logarithm(len(logs) - 1) for one in standing)
    return (*said, float(logs[-1] - logs[0]))


def _quality(logs: Floats, curve: Floats) -> tuple[float, float | None]:
    """Residual and R^2 of a curve whose level is free."""
    off = logs - curve
    off = off - off.mean()
    around = float(np.sum((logs - logs.mean()) ** 2))
    squares = float(np.sum(off**2))
    share = 1.0 - squares / around if around > EXACT**2 * len(logs) else None
    return math.sqrt(squares / len(logs)), share


def _geometric(logs: Floats) -> Fit:
    k = np.arange(len(logs), dtype=float)
    centred = k - k.mean()
    slope = float(centred @ logs / (centred @ centred))
    return Fit("geometric", math.exp(slope), *_quality(logs, slope * k))


def _linear(logs: Floats) -> Fit:
    """The best a, by a search over its logarithm: first on a grid, then between two neighbours."""
    k = np.arange(len(logs), dtype=float)

    def residual(ln_a: float) -> float:
        return _quality(logs, np.log1p(k * math.exp(-ln_a)))[0]

    grid = np.linspace(math.log(1e-4), math.log(1e8), 241)
    at = int(np.argmin([residual(one) for one in grid]))
    low, high = grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)]
    a = math.exp(_lowest(residual, float(low), float(high)))
    return Fit("linear", a, *_quality(logs, np.log1p(k / a)))


def _lowest(of: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one valley is lowest, by the golden section."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = of(left), of(right)
    for _ in range(60):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = of(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = of(right)
    return (low + high) / 2
