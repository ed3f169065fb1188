"""Additions whose branch is itself the sum of the same x and a branch: x is added twice.

Told from numbers alone: RMS and largest magnitude of one tensor are equal wherever it is measured.
(The RMS alone is not enough: behind a norm it is 1 everywhere.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Site, SiteMap
from skipscope.rule.inventory import block_of
from skipscope.rule.shortcuts import column

Floats = npt.NDArray[np.float64]

#: One tensor measured twice agrees at least so well, accumulated in float32.
_ONE_TENSOR = 1e-5


@dataclass(frozen=True)
class Sizes:
    """The tables that tell tensors apart."""

    shortcut: Table  #: RMS
    branch: Table  #: RMS
    total: Table  #: RMS of the sum
    cosine: Table  #: of shortcut and branch
    growth: Table
    max_shortcut: Table
    max_branch: Table
    max_total: Table

    def of(self, what: str, site: Site) -> Floats:
        """One column, NaN where not measured."""
        values = column(getattr(self, what), site.name)
        return np.full(len(self.shortcut.steps), np.nan) if values is None else values


@dataclass(frozen=True)
class Doubled:
    """Two additions of one x."""

    outer: Site
    inner: Site  #: the one whose sum is the outer branch
    block: str
    extra: float  #: how much of x is added again
    growth: float  #: of the stream, median over captures


def doubled(sites: SiteMap, sizes: Sizes, extra: float, same: float) -> Iterator[Doubled]:
    """The additions that add one x twice.

    Args:
        sites: of the model.
        sizes: what was measured.
        extra: the least part of x that is added again.
        same: how exactly two tensors must agree, relative.
    """
    alike: dict[float, list[Site]] = {}
    for site in sites.sites:
        known = sizes.of("shortcut", site)
        known = known[np.isfinite(known)]
        if site.kind == "identity" and len(known):
            # Six digits of the first size, by which measurements of one tensor meet.
            alike.setdefault(float(f"{known[0]:.5e}"), []).append(site)
    blocks: dict[str, list[Site]] = {}
    for site in sites.sites:
        blocks.setdefault(block_of(site.module), []).append(site)
    for group in alike.values():
        for outer, first in _pairs(group):
            for last in blocks[block_of(first.module)]:
                again = _again(outer, first, last, sizes, same)
                if again >= extra:
                    grown = float(np.nanmedian(sizes.of("growth", outer)))
                    yield Doubled(outer, last, _block(outer, first), again, grown)
                    break


def _pairs(group: Sequence[Site]) -> Iterator[tuple[Site, Site]]:
    """Additions of one x, the second in the module of the first or in one that this calls."""
    for first in group:
        for outer in group:
            inside = first.module == outer.module or first.module.startswith(f"{outer.module}.")
            if outer.index != first.index and (inside or not outer.module):
                yield outer, first


def _again(outer: Site, first: Site, last: Site, sizes: Sizes, same: float) -> float:
    """How much of x the outer branch holds, where it is what `last` added up; else 0."""
    one_x = _equal(sizes.of("shortcut", outer), sizes.of("shortcut", first), _ONE_TENSOR)
    one_x = one_x and _equal(
        sizes.of("max_shortcut", outer), sizes.of("max_shortcut", first), _ONE_TENSOR
    )
    if last.index == outer.index or not one_x:
        return 0.0
    with np.errstate(all="ignore"):
        factors = sizes.of("branch", outer) / sizes.of("total", last)
        largest = sizes.of("max_branch", outer) / sizes.of("max_total", last)
    known = factors[np.isfinite(factors)]
    # A sum rounded to bfloat16 keeps its largest element to 2^-9 only, and its RMS far better.
    if not len(known) or not _equal(factors, largest, 4 * same):
        return 0.0
    if last.index != first.index:  # a chain of additions inside the block
        return 1.0 if np.abs(known - 1).max() <= same else 0.0
    steady = np.ptp(known) <= 10 * same * known.max()
    aligned = _equal(sizes.of("cosine", outer), _cosine_of_sum(last, sizes), same)
    return float(np.median(known)) if steady and aligned else 0.0


def _equal(one: Floats, other: Floats, same: float) -> bool:
    known = np.isfinite(one) & np.isfinite(other)
    return bool(known.any()) and bool(
        (np.abs(one - other)[known] <= same * np.abs(one[known]).max()).all()
    )


def _cosine_of_sum(site: Site, sizes: Sizes) -> Floats:
    """Cosine of a site's shortcut and its sum: `(1 + r c) / g`; c counts nothing where r is 0."""
    with np.errstate(all="ignore"):
        ratio = sizes.of("branch", site) / sizes.of("shortcut", site)
        c = np.where(ratio == 0, 0.0, sizes.of("cosine", site))
        result: Floats = (1 + ratio * c) / sizes.of("growth", site)
    return result


def _block(outer: Site, inner: Site) -> str:
    """The module to name: the repeated block around the inner addition, else what adds."""
    block = block_of(inner.module)
    return block if block != inner.module or not outer.module else outer.module
