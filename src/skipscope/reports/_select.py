"""Which sites of a deep network a profile shows, and how it sums up the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skipscope.reports._text import Number
from skipscope.reports._view import SiteRow, View
from skipscope.reports._words import WRITTEN

MANY = 100  #: from so many sites on a profile is a selection
ENDS = 3
MARKED = 3  #: sites with findings that a selection shows
QUANTILES = ((0.05, "5 %"), (0.5, "median"), (0.95, "95 %"))


@dataclass(frozen=True)
class Profile:
    """Rows to show, sites left out between them, and quantiles over all sites."""

    rows: tuple[SiteRow, ...]
    left_out: int
    marked_left_out: int  #: of these, sites with findings
    quantiles: tuple[tuple[str, dict[str, Number]], ...]  #: label, number of each column


def profile(view: View, *, most: int = MANY - 1) -> Profile:
    """Every block-level site and nested sites with findings, or a selection above `most`."""
    rows = view.block_level
    nested = tuple(row for row in view.sites if row.nested and row.findings)
    if len(rows) + len(nested) <= most:
        return Profile(tuple(sorted([*rows, *nested], key=_place)), 0, 0, ())
    marked = [row for row in (*rows, *nested) if row.findings]
    shown = {row.index: row for row in (*rows[:ENDS], *marked[:MARKED], *rows[-ENDS:])}
    return Profile(
        tuple(sorted(shown.values(), key=_place)),
        len(rows) + len(nested) - len(shown),
        sum(row.index not in shown for row in marked),
        tuple((label, _quantile(rows, share)) for share, label in QUANTILES),
    )


def _place(row: SiteRow) -> tuple[int, int, bool, int]:
    return (row.stream, row.depth, not row.nested, row.index)


def _quantile(rows: Sequence[SiteRow], share: float) -> dict[str, Number]:
    """One quantile of each column over the sites that have a finite number there."""
    found: dict[str, Number] = {}
    for name in WRITTEN:
        values = np.array([v for row in rows if (v := getattr(row, name)) is not None])
        values = values[np.isfinite(values)] if len(values) else values
        found[name] = float(np.quantile(values, share)) if len(values) else None
    return found
