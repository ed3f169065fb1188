"""Which scalars a run shows as curves: a dozen summaries, then a few numbers of chosen sites.

The tags are fixed at the first capture: a logger that writes a table must not meet a new column
later. A site found later has no curve; the history holds it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from skipscope.history import History
    from skipscope.records import Site, SiteMap

Number = float | None

#: First part of the tags of a site's curves -> measure.
SITE_CURVES: Mapping[str, str] = {
    "branch_ratio": "branch_ratio",
    "growth": "growth",
    "gradient_gain": "gradient_gain",
    "update_ratio": "branch_update_ratio",
}
#: Depth numbers of a stream that have a curve.
STREAM_CURVES = ("total_growth", "half_depth_growth", "depth_multiplier")
ENDS, STREAMS = 3, 3


@dataclass(frozen=True)
class Curve:
    """One tag, and how its value is read from a history."""

    tag: str
    read: Callable[[History], Number]


class Curves:
    """The curves of a run, chosen once.

    Args:
        history: at its first capture.
        name: first part of every tag, so that two monitors do not write one curve; the sites'
            groups sort behind the summaries.
        budget: about how many curves there may be.
        parameters: one more curve for the update ratio of each weight matrix, beyond the budget.
    """

    def __init__(
        self,
        history: History,
        *,
        name: str = "skipscope",
        budget: int = 200,
        parameters: bool = False,
    ) -> None:
        summaries = _summaries(history.sites, f"{name}/summary/")
        room = (budget - len(summaries)) // len(SITE_CURVES)
        digits = max(3, len(str(len(history.sites.sites) - 1)))
        self._curves = summaries + [
            Curve(
                f"{name}.{group}/{site.index:0{digits}d}_{_safe(site.name)}",
                _at(measure, site.name),
            )
            for group, measure in SITE_CURVES.items()
            for site in chosen(history.sites.block_level, room)
        ]
        if parameters:
            self._curves += [
                Curve(f"{name}.parameter_update_ratio/{_safe(p.name)}", _at("update_ratio", p.name))
                for p in history.parameters
                if p.trainable and len(p.shape) > 1
            ]

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag, summaries first."""
        return tuple(curve.tag for curve in self._curves)

    def values(self, history: History) -> dict[str, Number]:
        """The value of every curve at the last capture; None where nothing was measured."""
        return {curve.tag: curve.read(history) for curve in self._curves}


def chosen(sites: Sequence[Site], room: int) -> tuple[Site, ...]:
    """All sites where there is room, else the first and last three and some evenly between them."""
    if len(sites) <= room:
        return tuple(sites)
    inner = max(room - 2 * ENDS, 0)
    between = np.linspace(ENDS - 1, len(sites) - ENDS, inner + 2).round().astype(int)[1:-1]
    kept = {*range(ENDS), *between.tolist(), *range(len(sites) - ENDS, len(sites))}
    return tuple(sites[at] for at in sorted(kept))


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def _at(measure: str, column: str) -> Callable[[History], Number]:
    """Reads one number of a table's last row."""

    def read(history: History) -> Number:
        table = history.table(measure)
        if not len(table.steps) or column not in table.columns:
            return None
        at = table.columns.index(column)
        return None if table.missing[-1, at] else float(table.values[-1, at])

    return read


def _latest(measure: str) -> Callable[[History], Number]:
    """Reads the newest number of a step table's first column: facts can lag a capture."""

    def read(history: History) -> Number:
        table = history.table(measure)
        if not table.columns:
            return None
        rows = np.flatnonzero(~table.missing[:, 0])
        return float(table.values[rows[-1], 0]) if len(rows) else None

    return read


def _median(measure: str) -> Callable[[History], Number]:
    """Reads the median over what the last row holds, for a summary."""

    def read(history: History) -> Number:
        table = history.table(measure)
        known = table.values[-1][~table.missing[-1]] if len(table.steps) else ()
        return float(np.median(known)) if len(known) else None

    return read


def _matrix_median(history: History) -> Number:
    """Median dW/W of the last step over parameters of two or more axes."""
    table = history.table("update_ratio")
    if not len(table.steps):
        return None
    matrices = {p.name for p in history.parameters if p.trainable and len(p.shape) > 1}
    wanted = np.array([column in matrices for column in table.columns])
    known = table.values[-1][wanted & ~table.missing[-1]]
    return float(np.median(known)) if len(known) else None


def _worst(measure: str, distance: Callable[[float], float]) -> Callable[[History], Number]:
    """Reads the number of the site that `distance` puts farthest; NaN counts as farthest."""
    return lambda history: _farthest(history, measure, distance)[0]


def _worst_site(measure: str, distance: Callable[[float], float]) -> Callable[[History], Number]:
    """Reads the index of that site."""
    return lambda history: _farthest(history, measure, distance)[1]


def _farthest(
    history: History, measure: str, distance: Callable[[float], float]
) -> tuple[Number, Number]:
    found: tuple[Number, Number] = (None, None)
    most = -math.inf
    for site in history.sites.block_level:
        value = _at(measure, site.name)(history)
        if value is None:
            continue
        far = math.inf if math.isnan(value) else distance(value)
        if found[0] is None or far > most:
            found, most = (value, float(site.index)), far
    return found


def _imbalance(gain: float) -> float:
    """How far a ratio is from 1, either way."""
    return abs(math.log(gain)) if 0 < gain < math.inf else math.inf


def _summaries(sites: SiteMap, prefix: str) -> list[Curve]:
    """The dozen curves to look at first: loss and lr beside r, then depth."""
    curves = [
        Curve("loss", _latest("loss")),
        Curve("lr", _latest("lr")),
        Curve("r_median", _median("branch_ratio")),
        Curve("r_worst", _worst("branch_ratio", float)),
        Curve("r_worst_site", _worst_site("branch_ratio", float)),
        Curve("cosine_median", _median("cosine")),
        Curve("gradient_gain_worst", _worst("gradient_gain", _imbalance)),
        Curve("gradient_gain_worst_site", _worst_site("gradient_gain", _imbalance)),
        Curve("update_ratio_median", _matrix_median),
    ]
    deep = sorted((s for s in sites.streams if len(s.sites) > 1), key=lambda s: -len(s.sites))
    for stream in sorted(deep[:STREAMS], key=lambda s: s.index):
        end = f"_stream{stream.index}" if len(deep) > 1 else ""
        column = f"stream {stream.index}"
        curves += [Curve(f"{name}{end}", _at(name, column)) for name in STREAM_CURVES]
    return [Curve(prefix + curve.tag, curve.read) for curve in curves]
