"""A rule of several arms: those that can look do, and why the others could not is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from skipscope.rule.gates import NotMeasurable

if TYPE_CHECKING:
    from skipscope.rule import Hit

#: Where the reasons go while a rule looks. What `either` yields passes through the rule's own hands
#: (sorted, thinned), so they cannot travel with it.
_LEFT_OUT: ContextVar[list[str] | None] = ContextVar("left_out", default=None)


def either(*arms: Iterable[Hit]) -> Iterator[Hit]:
    """The hits of all arms; an arm that cannot look is left out as long as another can.

    An arm may yield what it can tell before it says what it cannot.

    Raises:
        NotMeasurable: no arm can look; the reasons are joined.
    """
    reasons = []
    found = False
    for arm in arms:
        try:
            for hit in arm:
                found = True
                yield hit
        except NotMeasurable as absent:  # noqa: PERF203 - an arm more or less is no hot loop
            reasons.append(str(absent))
    if len(reasons) == len(arms) and not found:
        raise NotMeasurable("; ".join(dict.fromkeys(reasons)))
    kept = _LEFT_OUT.get()
    if kept is not None:
        kept += reasons


@contextmanager
def leaving_out() -> Iterator[list[str]]:
    """Keeps the reasons of the arms that are left out while it is open."""
    reasons: list[str] = []
    token = _LEFT_OUT.set(reasons)
    try:
        yield reasons
    finally:
        _LEFT_OUT.reset(token)
