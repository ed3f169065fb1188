"""What a shortcut does to the stream it carries: RMS of the operand over RMS of what came in."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Site, SiteMap
from skipscope.rule.siblings import streams

Floats = npt.NDArray[np.float64]

#: Words of `Site.link` and `Site.shortcut_path` for operations with a weight matrix.
MATRICES = frozenset({"convolution", "linear", "attention", "custom"})
#: Words for operations that change the number of elements.
RESAMPLERS = frozenset({"pool", "pad", "slice", "concatenate"})


def column(table: Table | None, name: str) -> Floats | None:
    """The values of one column, NaN where not measured; None where there is no such column."""
    if table is None or name not in table.columns:
        return None
    values: Floats = table.values[:, table.columns.index(name)]
    return values


def before(sites: SiteMap) -> Mapping[int, str]:
    """Index of a site to the name of the one before it in its stream, where nothing is between."""
    found = {}
    for line in streams(sites).values():
        for earlier, site in pairwise(line):
            if not site.link:
                found[site.index] = earlier.name
    return found


def carried(
    site: Site, earlier: Mapping[int, str], shortcut: Table, total: Table, adapter: Table | None
) -> Floats:
    """RMS of the shortcut over RMS of what came into the block, NaN where that is not known.

    Where something stands between x and the shortcut, x itself was measured. Where nothing shows
    there (a mask leaves no trace in the path), the sum before is what came in; `earlier` is what
    `before` gives.

    Shape: (rows,).
    """
    if site.shortcut_path or site.kind != "identity":
        known = column(adapter, site.name)
        if known is not None and not np.isnan(known).all():
            return known
    own, came_in = column(shortcut, site.name), column(total, earlier.get(site.index, ""))
    if own is None or came_in is None:
        unknown: Floats = np.full(len(shortcut.steps), np.nan)
        return unknown
    with np.errstate(all="ignore"):
        ratio: Floats = own / came_in
    return ratio
