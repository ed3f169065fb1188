"""Is a branch scaled already? By this remedy before, or by the model's own initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from skipscope.records import Site
from skipscope.rule import short

#: How near ratios of two matrices come to what they are taken for, their mean and each of them, in
#: logarithms: small ones scatter.
NEAR = 0.1
ONE = 0.25

#: parameter -> the factor, and how often the tensor was written to by then
_DONE = WeakTensorKeyDictionary()

OTHERWISE = '; scaled="allow" does it all the same'


def remember(parameter: Tensor, factor: float) -> None:
    """Keeps that a parameter was multiplied, until anything else is written to it."""
    if not parameter.is_inference():  # which counts no writes
        _DONE[parameter] = (factor, parameter._version)


def why_done(parameters: Iterable[nn.Parameter]) -> str:
    """Why a branch is scaled already, as it was left by this remedy; "" where it is not."""
    for parameter in parameters:
        factor, written = _DONE.get(parameter, (1.0, -1))
        if not parameter.is_inference() and parameter._version == written:
            return f"this remedy has multiplied it by {short(factor)} before{OTHERWISE}"
    return ""


@dataclass(frozen=True)
class Pair:
    """The last matrix of a branch, and another one of it."""

    site: Site
    ratio: float  #: of their sizes, root of the mean square
    factor: float  #: which the last one is to be multiplied by
    shapes: tuple[tuple[int, int], tuple[int, int]]  #: of the last and of the other


def why_small(pairs: Sequence[Pair]) -> str:
    """Why these branches would be scaled twice."""
    ratios, factors = [pair.ratio for pair in pairs], [pair.factor for pair in pairs]
    return (
        f"the last matrices start {_range(ratios)} times as large as the others of their branch "
        f"already, and the factor is {_range(factors)}{OTHERWISE}"
    )


def _range(values: Sequence[float]) -> str:
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{low} to {high}"


def made_small(pairs: Sequence[Pair]) -> bool:
    """Whether an initialisation has made the last matrices smaller by their factors.

    It does so to all of them, in one way. What is usual for unequal shapes says nothing: by fan-in,
    the matrix that reads 4 times as many inputs is half as large.
    """
    if not pairs or any(pair.factor >= 1 for pair in pairs):
        return False
    scaled = any(_fits(pairs, usual, scaled=True) for usual in (_one, _fan_in))
    return scaled and not any(_fits(pairs, usual) for usual in (_one, _fan_in, _fan_out, _both))


def _fits(pairs: Sequence[Pair], usual: Callable[[Pair], float], *, scaled: bool = False) -> bool:
    apart = [
        math.log(pair.ratio / usual(pair) / (pair.factor if scaled else 1.0)) for pair in pairs
    ]
    return abs(sum(apart)) <= NEAR * len(apart) and max(map(abs, apart)) <= ONE


def _one(pair: Pair) -> float:
    return 1.0


def _fan_in(pair: Pair) -> float:
    (_, last), (_, other) = pair.shapes
    return math.sqrt(other / last)


def _fan_out(pair: Pair) -> float:
    (last, _), (other, _) = pair.shapes
    return math.sqrt(other / last)


def _both(pair: Pair) -> float:
    last, other = pair.shapes
    return math.sqrt(sum(other) / sum(last))
