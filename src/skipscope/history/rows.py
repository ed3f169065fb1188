"""Rows of a history in memory: they grow, they widen, and a window may drop their middle."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int64]


class Rows:
    """Rows in order of arrival: a step each, and arrays side by side.

    The first array holds float64, the others uint8. Columns that came later are padded in earlier
    rows, with NaN or 0. What is handed out is a read-only view that later rows leave as it is.

    Args:
        window: keep the first and the last so many rows only; None keeps all.
        tails: shape of one cell of each array.
    """

    def __init__(self, window: tuple[int, int] | None, *tails: tuple[int, ...]) -> None:
        self.window = window
        self.tails = tails
        self.width = 0  #: columns of the widest row
        self._held = 0
        self._room = 16
        self._steps: Steps = np.zeros(0, np.int64)
        self._arrays: list[npt.NDArray[Any]] = [
            np.zeros((0, 0, *tail), np.uint8 if at else np.float64) for at, tail in enumerate(tails)
        ]

    def reserve(self, rows: int) -> None:
        """Make room for so many rows in one go, for one who knows how many will come."""
        self._room = max(self._room, rows)

    def append(self, steps: Steps, *arrays: npt.NDArray[Any]) -> None:
        """Add rows; each array (rows, columns, *tail), as wide as the others."""
        stop, width = self._held + len(steps), arrays[0].shape[1]
        self.width = max(self.width, width)
        self._fit(stop, self.width)
        self._steps[self._held : stop] = steps
        for own, new in zip(self._arrays, arrays, strict=True):
            own[self._held : stop, :width] = new
            own[self._held : stop, width:] = _padding(own)
        self._held = stop
        if self.window and self._held > 2 * sum(self.window):
            self._trim()

    def steps(self) -> Steps:
        """The step of each row."""
        self._trim()
        return _read_only(self._steps[: self._held])

    def array(self, at: int, width: int) -> npt.NDArray[Any]:
        """Array `at`, at least `width` columns wide."""
        self._trim()
        width = max(width, self.width)
        self._fit(self._held, width)
        return _read_only(self._arrays[at][: self._held, :width])

    def drop_from(self, step: int) -> None:
        """Forget the rows of `step` and later ones."""
        self._select(self._steps[: self._held] < step)

    def _fit(self, rows: int, columns: int) -> None:
        """See to it that so many rows and columns find room; new ones get half as many more."""
        room, wide = self._arrays[0].shape[:2]
        if rows <= room and columns <= wide:
            return
        if rows > room:
            room = max(rows, room + room // 2, self._room)
        self._steps = np.concatenate([self._steps, np.zeros(room - len(self._steps), np.int64)])
        for at, (own, tail) in enumerate(zip(self._arrays, self.tails, strict=True)):
            larger = np.empty((room, max(columns, wide), *tail), own.dtype)
            larger[: self._held, :wide] = own[: self._held]
            larger[: self._held, wide:] = _padding(own)
            self._arrays[at] = larger

    def _trim(self) -> None:
        """Leave out what the window does not hold."""
        if self.window and self._held > sum(self.window):
            at = np.arange(self._held)
            self._select((at < self.window[0]) | (at >= self._held - self.window[1]))

    def _select(self, kept: npt.NDArray[np.bool_]) -> None:
        if not kept.all():
            self._steps = self._steps[: self._held][kept]
            self._arrays = [own[: self._held][kept] for own in self._arrays]
            self._held = int(kept.sum())


def _padding(array: npt.NDArray[Any]) -> float:
    return np.nan if array.dtype == np.float64 else 0


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array[:]
    view.flags.writeable = False
    return view
