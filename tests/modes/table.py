"""The table: every mode, group by group."""

from __future__ import annotations

from tests.modes import compiling, hidden, optimisation, precision, shapes, trainers
from tests.modes.mode import Mode

MODES: list[Mode] = [
    *precision.MODES,
    *optimisation.MODES,
    *compiling.MODES,
    *hidden.MODES,
    *trainers.MODES,
    *shapes.MODES,
]
