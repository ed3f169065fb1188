"""The words for several answers: laws of which the history does not tell one, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from skipscope.extrapolation.laws import Start, shape_of, start_of
from skipscope.extrapolation.records import At, Number, StageAt
from skipscope.reports._text import factor, number
from skipscope.theory import Law

#: What each law says, in a clause.
LAWS: dict[Law, str] = {
    "normalised": "variance linear in depth",
    "normalised-scaled": "variance linear in depth, branches shrink as 1/sqrt(L) of the deeper net",
    "constant": "every block multiplies the stream alike",
    "depth-scaled": "branches shrink as 1/sqrt(L) of the deeper net too",
}
#: What each start takes the deeper net to be.
TAKEN: dict[Start, str] = {
    "plain": "the branches of the deeper net start as large as here",
    "scaled": "the deeper the net, the smaller they start: by 1/sqrt of the depth",
}
#: The law that each curve stands for.
OF_SHAPE = {"linear": "linear variance", "geometric": "a factor a site"}


def sides(stage: StageAt) -> tuple[At, ...]:
    """The rows of the laws that stand side by side."""
    return tuple(one for one in stage.otherwise if one.law in stage.answers)


def otherwise(stage: StageAt) -> Iterator[tuple[str, str]]:
    """Below the table: what its laws take the deeper net to be, and what other branches make."""
    groups = _by_start(sides(stage))
    for at, (start, rows) in enumerate(groups.items()):
        ranges = tuple(_ranges(rows))
        if len(groups) > 1:
            yield "or" if at else "either", f"{_named(rows)}: {TAKEN[start]}"
            yield from (("", one) for one in ranges)
        else:
            yield from (("" if later else "range", one) for later, one in enumerate(ranges))
    rest = tuple(one for one in stage.otherwise if one.law not in stage.answers)
    for start, rows in _by_start(rest).items():
        ranges = tuple(_ranges(rows))
        if ranges:
            yield "or", f"{_named(rows)}: {TAKEN[start]}"
            yield from (("", one) for one in ranges)
        else:
            yield from _same_curve(rows)


def _by_start(rows: Iterable[At]) -> dict[Start, list[At]]:
    found: dict[Start, list[At]] = {}
    for one in rows:
        if one.law is not None:
            found.setdefault(start_of(one.law), []).append(one)
    return found


def _named(rows: Iterable[At]) -> str:
    return " or ".join(dict.fromkeys(str(one.law) for one in rows))


def _same_curve(rows: Sequence[At]) -> Iterator[tuple[str, str]]:
    """The other law of the one curve: which holds is decided by how the deeper net is made."""
    for at, one in enumerate(rows):
        law = one.law or "constant"
        start = f"the same curve under {law} ({LAWS[law]}): " if not at else ""
        end = ";" if at + 1 < len(rows) else ""
        yield "or" if not at else "", f"{start}{_at(one)}{end}"


def _at(one: At) -> str:
    text = f"{one.asked} growth {factor(one.growth)}, B {number(one.budget)}"
    if one.multiplier is not None:
        return f"{text}, depth multiplier {factor(one.multiplier)}"
    return text if one.gradient is None else f"{text}, gradient first/last {factor(one.gradient)}"


def _ranges(rows: Sequence[At]) -> Iterator[str]:
    """From one curve to the other, a line for each depth; nothing where there is but one."""
    for asked in dict.fromkeys(one.asked for one in rows):
        ends = [one for one in rows if one.asked == asked]
        if len(ends) < 2:
            return
        end = "depth multiplier" if ends[0].multiplier is not None else "gradient first/last"
        values = (
            ("growth", [one.growth for one in ends], factor),
            ("B", [one.budget for one in ends], number),
            (end, [_end(one) for one in ends], factor),
        )
        curves = [OF_SHAPE[shape_of(one.law)] for one in ends if one.law is not None]
        said = ", ".join(_between(values, curves))
        if said:
            yield f"{asked} {said}"


def _end(one: At) -> Number:
    return one.gradient if one.multiplier is None else one.multiplier


def _between(
    named: Iterable[tuple[str, Sequence[Number], Callable[[Number], str]]], curves: Sequence[str]
) -> Iterator[str]:
    """Each number from its smaller end to its larger; the first range says which curve is which."""
    first = True
    for name, values, write in named:
        known = [(value, at) for at, value in enumerate(values) if value is not None]
        if not known:
            continue
        (low, below), (high, above) = min(known), max(known)
        if write(low) == write(high):
            yield f"{name} {write(low)}"
        elif first:
            yield (
                f"{name} between {write(low)} ({curves[below]}) and {write(high)} ({curves[above]})"
            )
            first = False
        else:
            yield f"{name} {write(low)} to {write(high)}"
