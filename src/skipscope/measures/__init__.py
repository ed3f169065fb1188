"""Every measure by name.

A new one is a function in one of these files, or a file of its own and one line below.
"""

from __future__ import annotations

from importlib import import_module

from skipscope.history import History, Table, register_tables
from skipscope.measure import collect
from skipscope.measure.tabulate import compute
from skipscope.names import near

__all__ = ["MEASURES", "table"]

_FILES = (
    "forward",  # branch against shortcut: r, cosine, growth
    "levels",  # RMS, mean, spread and maxima of the operands
    "backward",  # gradients at a site and their split
    "depth",  # one number for a whole stream or stage
    "parameters",  # weights, gradients and updates: of a parameter, a block, a branch
    "steps",  # facts of a step: loss, learning rate, time
)
#: Name to measure.
MEASURES = collect(*(import_module(f"{__name__}.{file}") for file in _FILES))


def table(history: History, name: str) -> Table:
    """The measure `name` of a history over time.

    Raises:
        ValueError: no measure has this name.

    >>> table(History(), "cosines")
    Traceback (most recent call last):
    ValueError: no measure 'cosines' (MEASURES lists them); did you mean cosine?
    """
    if name not in MEASURES:
        raise ValueError(f"no measure {name!r} (MEASURES lists them){near(name, MEASURES)}")
    return compute(MEASURES[name], history)


register_tables(table)
