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
            yield StageMedian(stage, sites, each, _median(each))


def _median(each: Floats) -> Floats:
    values = np.full(len(each), np.nan)
    for row in np.flatnonzero(~np.isnan(each).all(axis=1)):
        values[row] = np.median(each[row][~np.isnan(each[row])])
    return values
