"""The median over a stage's sites of what a site table holds, capture by capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Site
from skipscope.rule.gates import deep_enough
from skipscope.rule.siblings import Stage

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StageMedian:
    """One number a capture for a stage."""

    stage: Stage
    sites: tuple[Site, ...]  #: those that went in
    each: Floats  #: (rows, sites), NaN where not measured
    values: Floats  #: (rows,), NaN where nothing was measured

    @property
    def column(self) -> Floats:
        """The values as the one column that a gate takes. Shape: (rows, 1)."""
        return self.values[:, None]


def stage_medians(
    table: Table, stages: Sequence[Stage], depth: int, last_part: float = 1.0
) -> Iterator[StageMedian]:
    """The medians of every stage of `depth` sites or more, over its judged sites.

    Args:
        table: a measure of sites.
        stages: all of them.
        depth: sites needed in a stage.
        last_part: only this last part of the judged sites goes in.

    Raises:
        NotMeasurable: no stage is deep enough.
    """
    at = {name: column for column, name in enumerate(table.columns)}
    for stage in deep_enough(stages, depth):
        judged = [site for _, site in stage.judged if site.name in at]
        sites = tuple(judged[len(judged) - int(np.ceil(last_part * len(judged))) :])
        if sites:
            each = table.values[:, [at[site.name] for site in sites]]
            yield StageMedian(stage, sites, each, row_medians(each))


def row_medians(values: Floats) -> Floats:
    """The median of each row without its NaN; NaN where nothing is left.

    >>> row_medians(np.array([[3.0, np.nan, 1.0], [np.nan, np.nan, np.nan]])).tolist()
    [2.0, nan]
    """
    count = (~np.isnan(values)).sum(axis=1)
    result = np.full(len(values), np.nan)
    some = np.flatnonzero(count)
    if len(some):
        ordered = np.sort(values, axis=1)  # NaN comes last
        low, high = (ordered[some, at] for at in ((count[some] - 1) // 2, count[some] // 2))
        result[some] = np.where(low == high, low, (low + high) / 2)
    return result
