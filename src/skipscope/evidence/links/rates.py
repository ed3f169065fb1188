"""Link 7: no learning rate of the grid saves the plain arm."""

from __future__ import annotations

import math
from dataclasses import dataclass

from skipscope.evidence.link import (
    POINT,
    Kind,
    Pair,
    at_least,
    not_applicable,
    points,
    straw_man,
    times,
    unmet,
)
from skipscope.evidence.outcome import ArmFacts
from skipscope.evidence.runs import errors, losses, of_arm, rates
from skipscope.evidence.statistics import ratio
from skipscope.evidence.verdict import Answer, Check
from skipscope.reports._text import number

LOSS, ERROR = 10.0, 5 * POINT


@dataclass(frozen=True)
class Best:
    """The rate with the lowest median loss."""

    lr: float
    loss: float
    error: float
    inside: bool  #: smaller and larger rates were tried, and are no better


def best_rates(pair: Pair) -> Answer:
    """Compare both arms at the best rate of each, at the deepest depth of the grid."""
    if pair.plain.straw_man:
        return straw_man(pair)
    depth, grid = _grid(pair)
    if len(grid) < 3:
        return not_applicable("no grid of three or more learning rates ran in both arms")
    plain, residual = (_best(pair, arm, depth, grid) for arm in (pair.plain, pair.residual))
    larger, apart = ratio(plain.loss, residual.loss), plain.error - residual.error
    edge = "inside the grid" if plain.inside else f"at the edge of {grid[0]:g} to {grid[-1]:g}"
    if math.isinf(plain.loss):
        edge = "none: it diverges at every rate of the grid"
    inside = Check(
        "best rate of the plain arm", plain.lr, f"{plain.lr:g}, {edge}", "inside the grid",
        plain.inside,
    )  # fmt: skip
    either = (
        at_least("best loss, plain over residual", larger, LOSS, times(larger), "x10"),
        at_least(
            "error at the best rates, plain less residual",
            100 * apart, 100 * ERROR, points(apart), "5 points",
        ),
    )  # fmt: skip
    checks = (inside, *either)
    if not inside.met:
        return Answer("not shown", unmet([inside]), checks)
    if not any(check.met for check in either):
        return Answer("not shown", unmet(either), checks)
    shown = (
        f"depth {depth}, {len(grid)} rates: best plain loss {number(plain.loss)} "
        f"(lr {plain.lr:g}), best residual {number(residual.loss)} (lr {residual.lr:g}), "
        f"{times(larger)}, error {points(apart)}"
    )
    return Answer("shown", shown, checks)


def _grid(pair: Pair) -> tuple[int, list[float]]:
    """The deepest depth at which both arms ran at three rates or more, and these rates."""
    found = sorted({run.cell.depth for run in pair.evidence.outcomes}, reverse=True)
    for depth in found:
        first, second = (
            {*rates(pair.evidence, arm.name, depth)} for arm in (pair.plain, pair.residual)
        )
        if len(first & second) >= 3:
            return depth, sorted(first & second)
    return 0, []


def _best(pair: Pair, arm: ArmFacts, depth: int, grid: list[float]) -> Best:
    each = []
    for place, rate in enumerate(grid):
        runs = of_arm(pair.evidence, arm.name, depth, rate)
        each.append((losses(runs).median, errors(runs).median, place))
    value, wrong, place = min(each)
    inside = 0 < place < len(grid) - 1 and math.isfinite(value)
    return Best(grid[place], value, wrong, inside)


RATES = Kind(
    name="best learning rate",
    claim="plain is not worse only because of its learning rate",
    criterion=(
        "the plain arm's best rate lies inside the grid, and its loss there is still at least 10 "
        "times the residual arm's best, or its training error 5 points or more above it"
    ),
    ask=best_rates,
)
