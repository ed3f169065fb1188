"""Link 3: with shortcuts, the same depth fits, and by using its depth."""

from __future__ import annotations

from skipscope.evidence.link import (
    POINT,
    Kind,
    Pair,
    at_least,
    at_most,
    decided,
    not_applicable,
    one_depth,
    percent,
    points,
    straw_man,
    unmet,
)
from skipscope.evidence.runs import by_seed, ended_well, error, errors, losses
from skipscope.evidence.statistics import SLACK, median, paired, tied
from skipscope.evidence.verdict import Answer, Check
from skipscope.names import counted
from skipscope.reports._text import number

WORSE = 1 * POINT  #: that the deepest may be
LOSS, FLOOR = 2.0, 0.05  #: times the shallow loss, which counts as this at least
BETTER = 5 * POINT  #: than plain


def holds(pair: Pair) -> Answer:
    """Compare the deepest residual nets with the shallowest, with plain, and with no branches."""
    found = pair.depths(pair.residual)
    if len(found) < 2:
        return one_depth(pair.residual, found)
    high = found[-1]
    if pair.plain.straw_man:
        alone = _alone(pair, found[0], high)
        failed = [check for check in alone if not check.met]
        return decided(alone, "") if failed else straw_man(pair, alone)
    plain, residual = (
        by_seed((r, error(r)) for r in pair.runs(arm, high)) for arm in (pair.plain, pair.residual)
    )
    better = paired(plain, residual)
    if not better:
        return not_applicable(f"plain and residual share no seed at depth {high}")
    checks = [*_alone(pair, found[0], high), *_against_plain(better, high)]
    failed = [check for check in checks if not check.met]
    if failed:
        return Answer("not shown", unmet(failed), tuple(checks))
    against_idle = _against_idle(pair, high)
    if against_idle is None:
        return not_applicable(
            f"error and loss hold to depth {high}, but no arm with alpha = 0 ran there: it may "
            "hold by ignoring its depth",
            checks,
        )
    shown = (
        f"all runs finite, at depth {high} training error {percent(median([*better.values()]))} "
        f"points below plain, loss {against_idle.text} without branches"
    )
    return decided([*checks, against_idle], shown)


def _alone(pair: Pair, low: int, high: int) -> list[Check]:
    runs = pair.runs(pair.residual)
    shallow, deep = (pair.runs(pair.residual, depth) for depth in (low, high))
    lost = sum(not ended_well(run) for run in runs)
    rise = errors(deep).median - errors(shallow).median
    limit = LOSS * max(losses(shallow).median, FLOOR)
    end = losses(deep).median
    return [
        Check("runs that are not finite", float(lost), f"{lost} of {len(runs)}", "0", lost == 0),
        at_most(
            f"median training error, depth {high} less depth {low}",
            100 * rise, 100 * WORSE, points(rise), "1 point",
        ),
        at_most(f"median training loss at depth {high}", end, limit, number(end), number(limit)),
    ]  # fmt: skip


def _against_plain(better: dict[int, float], high: int) -> list[Check]:
    least, middle = min(better.values()), median([*better.values()])
    what = f"training error at depth {high}, plain less residual"
    least_of = f"{what}, least of {counted(len(better), 'seed')}"
    return [
        Check(least_of, 100 * least, points(least), "> 0 points", least > SLACK),
        at_least(f"{what}, median", 100 * middle, 100 * BETTER, points(middle), "5 points"),
    ]


def _against_idle(pair: Pair, high: int) -> Check | None:
    """Whether the branches do anything: against the same net with its branches times 0."""
    idle = [run for arm in pair.others("idle") for run in pair.runs(arm, high)]
    if not idle:
        return None
    with_branches, without = losses(pair.runs(pair.residual, high)), losses(idle)
    beats = with_branches.median < without.median and not tied(with_branches, without)
    share = with_branches.median / without.median if without.median else float("nan")
    return Check(
        f"median training loss at depth {high} over that with alpha = 0",
        share,
        f"{number(with_branches.median)} against {number(without.median)}",
        "every seed below every seed there, and the median by 5 %",
        beats,
    )


HOLDS = Kind(
    name="residual holds",
    claim="the residual arm fits at every depth, and uses its depth to do so",
    criterion=(
        "every run finite; median training error at the deepest at most 1 point above that at the "
        "shallowest, median loss at most 2 x max(loss at the shallowest, 0.05); at the deepest, "
        "plain less residual training error above 0 in every seed and 5 points or more in the "
        "median; lower loss there than the same net with alpha = 0"
    ),
    ask=holds,
)
