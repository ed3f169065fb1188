"""The table: every mode, group by group."""

from __future__ import annotations

from tests.modes import compiling, hidden, optimisation, precision, shapes, taking_part, trainers
from tests.modes.mode import Mode

MODES: list[Mode] = [
    *precision.MODES,
    *optimisation.MODES,
    *taking_part.MODES,
    *compiling.MODES,
    *hidden.MODES,
    *trainers.MODES,
    *shapes.MODES,
]
