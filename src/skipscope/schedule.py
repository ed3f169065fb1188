"""Which steps are captured, and on which update sizes are measured, by counters alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Early steps that are always captured: what goes wrong at a start shows only there.
EARLY = frozenset({0, 1, 2, 4, 8, 16, 32})
#: Updates are measured on each of the first steps: weights that are too hot hide it later.
EARLY_UPDATES = 50


@dataclass
class Schedule:
    """Decides by the optimizer step, and by the position in the epoch.

    Args:
        every_n_steps: distance of captures after the early ones.
        every_step: the debug preset: everything on every step.

    Example:
        >>> schedule = Schedule(every_n_steps=50)
        >>> [step for step in range(120) if schedule.captures(step)]
        [0, 1, 2, 4, 8, 16, 32, 50, 100]
    """

    every_n_steps: int
    every_step: bool = False
    _epoch_start: int = 0
    _epoch_length: int | None = field(default=None)

    def captures(self, step: int) -> bool:
        """Whether forward and backward of this step are captured."""
        if self.every_step or step in EARLY or step % self.every_n_steps == 0:
            return True
        return step - self._epoch_start in self._extra()

    def updates(self, step: int) -> bool:
        """Whether parameter gradients and update sizes of this step are measured."""
        return self.every_step or step < EARLY_UPDATES or self.captures(step)

    def epoch_ended(self, next_step: int) -> None:
        """Learns how long an epoch is; the next one is taken to be as long."""
        length = next_step - self._epoch_start
        self._epoch_length = length if length > 0 else self._epoch_length
        self._epoch_start = next_step

    def state_dict(self) -> dict[str, int | None]:
        """What it learned of epochs, in plain numbers."""
        return {"epoch_start": self._epoch_start, "epoch_length": self._epoch_length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on in the epoch of a resumed run."""
        self._epoch_start = int(state.get("epoch_start", 0))
        self._epoch_length = state.get("epoch_length")

    def _extra(self) -> tuple[int, ...]:
        """Positions in a short epoch that give it three captures: near begin, middle and end."""
        length = self._epoch_length
        if length is None or length >= 3 * self.every_n_steps:
            return ()
        return length // 6, length // 2, 5 * length // 6
