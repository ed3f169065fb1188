"""The table: every mode, group by group."""

from __future__ import annotations

from tests.modes import optimisation, precision
from tests.modes.mode import Mode

MODES: list[Mode] = [*precision.MODES, *optimisation.MODES]
