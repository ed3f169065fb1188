"""Laws as pairs: the curve that a profile follows, and how the branches of a deeper net start.

A fit tells the curve, the start of the branches tells the other half. Where one of the two is not
told, or neither is, several laws stand side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from skipscope.extrapolation.fit import Shape
from skipscope.theory import Law

#: Branches of a deeper net: as large as here, or smaller by 1/sqrt of the depth.
Start = Literal["plain", "scaled"]

#: In the order in which several are shown.
PAIRS: dict[Law, tuple[Shape, Start]] = {
    "normalised": ("linear", "plain"),
    "constant": ("geometric", "plain"),
    "normalised-scaled": ("linear", "scaled"),
    "depth-scaled": ("geometric", "scaled"),
}
STARTS: tuple[Start, ...] = ("plain", "scaled")


def laws(shapes: Sequence[Shape], starts: Sequence[Start]) -> tuple[Law, ...]:
    """The laws of these curves and starts.

    >>> laws(["geometric"], ["plain", "scaled"])
    ('constant', 'depth-scaled')
    """
    return tuple(
        law for law, (shape, start) in PAIRS.items() if shape in shapes and start in starts
    )


def ordered(*several: Sequence[Law]) -> tuple[Law, ...]:
    """All of them, each once, as they are shown."""
    return tuple(law for law in PAIRS if any(law in some for some in several))


def shape_of(law: Law) -> Shape:
    """Its curve."""
    return PAIRS[law][0]


def start_of(law: Law) -> Start:
    """How it takes the branches of a deeper net to start."""
    return PAIRS[law][1]


def restarted(law: Law) -> Law:
    """The law of the same curve with the other start.

    >>> restarted("normalised")
    'normalised-scaled'
    """
    shape, start = PAIRS[law]
    return laws([shape], [one for one in STARTS if one != start])[0]
