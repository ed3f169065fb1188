"""Link 4: in the first steps, the first blocks of the residual arm are told something."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from skipscope.evidence.link import Kind, Pair, at_least, not_applicable, straw_man, times, unmet
from skipscope.evidence.outcome import Outcome, Reading
from skipscope.evidence.runs import EARLY, early
from skipscope.evidence.statistics import median, ratio
from skipscope.evidence.verdict import Answer, Check
from skipscope.reports._text import number

DECADES = 1.0  #: by which the imbalance of the gradient has to be lower
RANK = 3.0  #: times the effective rank
Both = tuple[float, float]  #: of the plain and of the residual arm
Early = Callable[[Iterable[Outcome], int], float]  #: a number of the readings from a step on


def signal(pair: Pair) -> Answer:
    """Compare gradients and features of both arms over the same early steps, at the deepest."""
    if pair.plain.straw_man:
        return straw_man(pair)
    shared = pair.depths(pair.plain, pair.residual)
    if not shared:
        return not_applicable("plain and residual share no depth")
    depth = shared[-1]
    start = max(pair.plain.signal_from, pair.residual.signal_from)
    where = f"steps {start} to {EARLY}, depth {depth}"

    def both(of: Early) -> Both:
        plain, residual = (of(pair.runs(arm, depth), start) for arm in (pair.plain, pair.residual))
        return plain, residual

    gradients, features = both(early_imbalance), both(early_rank)
    checks = (*_gradient(gradients), *_features(features))
    notes = _updates(both(early_update))
    met = [check for check in checks if check.met]
    if not checks:
        return not_applicable(f"no readings of both arms in {where}")
    if not met:  # one of the two is enough: there are two ways to lose the signal
        return Answer("not shown", f"{where}: {unmet(checks)}", checks, notes)
    told = "; ".join(f"{check.what} {check.text}" for check in met)
    if gradients[0] < DECADES and met == [*_features(features)]:
        told += "; gradients were not attenuated: the mechanism is rank collapse"
    return Answer("shown", f"{where}: {told}", checks, notes)


def _gradient(both: Both) -> tuple[Check, ...]:
    plain, residual = both
    if math.isnan(plain + residual):
        return ()
    lower = math.nan if math.isinf(residual) else plain - residual
    text = f"{plain:.2g} -> {residual:.2g} decades"
    text += f" ({lower:.2g} lower)" if math.isfinite(lower) else ""
    what = "largest |log10(first / last gradient)|"
    return (at_least(what, lower, DECADES, text, "1 decade lower"),)


def _features(both: Both) -> tuple[Check, ...]:
    plain, residual = both
    if math.isnan(plain + residual):
        return ()
    larger = ratio(residual, plain)
    text = f"{number(plain)} -> {number(residual)} ({times(larger)})"
    return (at_least("effective rank of the last features", larger, RANK, text, "x3"),)


def _updates(both: Both) -> tuple[str, ...]:
    """What the first block did with its gradient, where that was read."""
    if math.isnan(sum(both)):
        return ()
    return (f"updates |dW|/|W| of the first block: {number(both[0])} -> {number(both[1])}",)


def early_imbalance(runs: Iterable[Outcome], start: int) -> float:
    """Median over seeds of the largest imbalance in a run's early readings.

    The largest: an exploding gradient throws the weights so far that the next ones look even.
    """
    return _early(runs, start, imbalance, max)


def early_rank(runs: Iterable[Outcome], start: int) -> float:
    """Median over seeds of the median effective rank over a run's early readings."""
    return _early(runs, start, rank, median)


def early_update(runs: Iterable[Outcome], start: int) -> float:
    """The same of the first block's update ratio."""
    return _early(runs, start, lambda one: one.update_first, median)


def early_ratio(runs: Iterable[Outcome], start: int) -> float:
    """The same of the median r."""
    return _early(runs, start, lambda one: one.r_median, median)


def _early(
    runs: Iterable[Outcome],
    start: int,
    of: Callable[[Reading], float | None],
    over: Callable[[list[float]], float],
) -> float:
    """NaN where no run has a value."""
    each = []
    for run in runs:
        values = [value for one in early(run, start) if (value := of(one)) is not None]
        if values:
            each.append(over(values))
    return median(each)


def imbalance(reading: Reading) -> float | None:
    """Decades between the gradient of the first block and of the last; inf where one has none.

    >>> imbalance(Reading(0, gradient_first=1e-4, gradient_last=1.0))
    4.0
    """
    first, last = reading.gradient_first, reading.gradient_last
    if first is None or last is None or first == last == 0:
        return None
    if not (math.isfinite(first) and math.isfinite(last)) or min(first, last) <= 0:
        return math.inf
    return abs(math.log10(first) - math.log10(last))  # their quotient may be no float


def rank(reading: Reading) -> float | None:
    """The effective rank of the last features, where it is a number."""
    value = reading.effective_rank
    return value if value is not None and math.isfinite(value) else None


SIGNAL = Kind(
    name="early signal recovers",
    claim="in the first steps the early blocks get a usable gradient, or the features keep apart",
    criterion=(
        "at the deepest, over the readings of steps 0 to 30 (from step 1 where F starts at 0): "
        "largest |log10(gradient of the first block / of the last)| lower by a decade or more than "
        "in the plain arm, or median effective rank of the last features at least 3 times that of "
        "the plain arm"
    ),
    ask=signal,
)
