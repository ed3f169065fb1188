"""One capture out of those of several ranks: sums add up, maxima are compared, medians stay local.

Numbers of equal shards merge to those of the union batch. Gradients need a factor: each rank's are
those of its own loss, and what is trained is the mean of the ranks' losses, so that the gradient of
the common loss at a sample is `1/ranks` of its rank's. All backward sums are squares and products
of gradients: they are divided by `ranks^2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.measure import PARAMETER_NEEDS, SITE_NEEDS
from skipscope.records import (
    HAVE_FORWARD,
    HAVE_GRAD,
    HAVE_INPUT,
    HAVE_INPUT_GRAD,
    HAVE_SPLIT,
    PARAMETER_SUMS,
    SUMS,
    Key,
    Merge,
)

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint8]

_FORWARD = HAVE_FORWARD | HAVE_INPUT
_BACKWARD = HAVE_GRAD | HAVE_INPUT_GRAD | HAVE_SPLIT
_MERGERS: Mapping[Merge, Callable[[Floats], Floats]] = {
    "sum": lambda rows: np.sum(rows, axis=0),
    "max": lambda rows: np.max(rows, axis=0),
    "min": lambda rows: np.min(rows, axis=0),
    "local": lambda rows: rows[0],
}
#: Positions of the fields of a site, by part of the step and by how they merge.
_COLUMNS = {
    (part, merge): [
        at
        for at, field in enumerate(SUMS)
        if SITE_NEEDS[field.name] & part and field.merge == merge
    ]
    for part in (_FORWARD, _BACKWARD)
    for merge in _MERGERS
}


@dataclass(frozen=True)
class SiteRows:
    """One rank's capture: a row for each site it passed.

    Shape:
        sums: (sites, len(SUMS)); have, why: (sites,).
    """

    keys: tuple[Key, ...]
    sums: Floats
    have: Bits
    why: Bits


@dataclass(frozen=True)
class ParameterRows:
    """One rank's part of an optimizer step.

    Shape:
        sums: (parameters, len(PARAMETER_SUMS)); have, counts: (parameters,).
    """

    step: int
    sums: Floats
    have: Bits
    counts: npt.NDArray[np.bool_]  #: whether this rank's row is a part of the whole


def merge_sites(parts: Sequence[SiteRows]) -> SiteRows:
    """The capture of the union batch; a site that a rank did not pass counts nothing there.

    A part (forward, backward) that some ranks have measured to a lesser extent is that of the
    others alone, so that no ratio is of two different batches.

    >>> row = np.ones((1, len(SUMS)))
    >>> part = SiteRows((("net", "net.py:1", 0),), row, np.full(1, 31), np.zeros(1))
    >>> float(merge_sites([part, part]).sums[0, 0])  # twice the elements
    2.0
    """
    if len(parts) == 1:
        return parts[0]
    places: dict[Key, list[tuple[int, int]]] = {}
    for number, part in enumerate(parts):
        for row, key in enumerate(part.keys):
            places.setdefault(key, []).append((number, row))
    sums = np.full((len(places), len(SUMS)), np.nan)
    have, why = np.zeros(len(places), np.uint8), np.zeros(len(places), np.uint8)
    for at, held in enumerate(places.values()):
        rows = np.stack([parts[number].sums[row] for number, row in held])
        masks = np.array([parts[number].have[row] for number, row in held], np.uint8)
        reasons = [int(parts[number].why[row]) for number, row in held]
        for group, factor in ((_FORWARD, 1.0), (_BACKWARD, 1.0 / len(parts) ** 2)):
            bits, chosen = _fullest(masks, group)
            have[at] |= bits
            for merge, merger in _MERGERS.items():
                columns = _COLUMNS[group, merge]
                sums[at, columns] = merger(rows[chosen][:, columns]) * factor
        why[at] = reasons[int(chosen[0])]  # of a rank whose backward was measured furthest
    return SiteRows(tuple(places), sums, have, why)


def _fullest(masks: Bits, group: int) -> tuple[int, npt.NDArray[np.int64]]:
    """The bits of a group where most are set, and the ranks that have exactly these."""
    bits = [int(mask) & group for mask in masks]
    most = max(bits, key=lambda one: one.bit_count())
    return most, np.array([at for at, one in enumerate(bits) if one == most])


def merge_updates(parts: Sequence[ParameterRows]) -> tuple[Floats, Bits]:
    """An optimizer step from the shards of all ranks: each parameter's squares add up.

    An empty shard says nothing; what one of the others did not measure is not measured.
    """
    at = {field.name: position for position, field in enumerate(PARAMETER_SUMS)}
    counts = np.stack([part.counts for part in parts])
    holds = counts & np.stack([part.sums[:, at["n"]] > 0 for part in parts])
    have = np.stack([part.have for part in parts])
    common = np.bitwise_and.reduce(np.where(holds, have, 255), axis=0).astype(np.uint8)
    common[~holds.any(axis=0)] = 0
    sums = np.stack([part.sums for part in parts])
    total = np.where(holds[..., None], sums, 0.0).sum(axis=0)
    for name, bit in PARAMETER_NEEDS.items():
        if name in at and name != "n":
            total[common & bit == 0, at[name]] = np.nan
    total[~holds.any(axis=0)] = np.nan
    return total, common


def merge_losses(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over the ranks, which is what is trained, in steps that all have."""
    steps = set(parts[0]).intersection(*parts[1:])
    return {step: float(np.mean([part[step] for part in parts])) for step in steps}
