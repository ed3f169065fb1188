"""Is a branch scaled already? By a remedy before, or by the model's own initialisation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from skipscope.records import Site
from skipscope.rule import short

#: How near ratios of two matrices come to what they are taken for, the middle one and each of them,
#: in logarithms: small ones scatter.
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
    """Why a branch is scaled already, as it was left by `depth_scaled_init`; "" where it is not."""
    for parameter in parameters:
        factor, written = _DONE.get(parameter, (1.0, -1))
        if not parameter.is_inference() and parameter._version == written:
            return f"depth_scaled_init has multiplied it by {short(factor)} before{OTHERWISE}"
    return ""


def why_factor(scales: Iterable[Tensor]) -> str:
    """Why a branch is scaled already, by `scale_branches`; "" where it is not."""
    for scale in scales:
        if bool((scale != 1).any()):
            size = float(scale.detach().double().square().mean().sqrt())
            return f"scale_branches multiplies it by a branch_scale of {short(size)}{OTHERWISE}"
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


def made_small(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs whose last matrices an initialisation has made smaller by their factors.

    It does so in one way to more than half of the sites: single ones may have been changed since.
    What is usual for unequal shapes says nothing: by fan-in, the matrix that reads 4 times as many
    inputs is half as large.
    """
    if not pairs or any(pair.factor >= 1 for pair in pairs):
        return []
    if any(_near(pairs, usual) for usual in (_one, _fan_in, _fan_out, _both)):
        return []
    found = (_near(pairs, usual, scaled=True) for usual in (_one, _fan_in))
    small = next((near for near in found if near), set())
    return [pair for pair in pairs if pair.site.name in small]


def _near(
    pairs: Sequence[Pair], usual: Callable[[Pair], float], *, scaled: bool = False
) -> set[str]:
    """The sites whose ratios are as usual, where most are, and their middle is."""
    apart: dict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        expected = usual(pair) * (pair.factor if scaled else 1.0)
        apart[pair.site.name].append(math.log(pair.ratio / expected))
    middles = {name: median(values) for name, values in apart.items()}
    near = {name for name, middle in middles.items() if abs(middle) <= ONE}
    agree = abs(median(middles.values())) <= NEAR and 2 * len(near) > len(middles)
    return near if agree else set()


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
