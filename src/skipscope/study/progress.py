"""How far a study is: a bar on standard error, which a log gets as a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 24  #: columns of the bar
LOGGED = 0.1  #: where no terminal shows it, a line for each such share


class Progress:
    """Counts work, not cells: a net of 100 layers takes ten times that of 10.

    Args:
        title: what is done.
        total: the work of all that is to be done.
        shown: whether anything is written.
        stream: where to; None: standard error.
    """

    def __init__(
        self, title: str, total: float, *, shown: bool = True, stream: TextIO | None = None
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._shown = shown and self._stream is not None
        self._terminal = self._shown and self._stream.isatty()
        self._title, self._total, self._done = title, max(total, 1e-9), 0.0
        self._started, self._told = time.monotonic(), 0.0
        self._show("")

    def add(self, work: float, what: str) -> None:
        """Some of it is done."""
        self._done += work
        self._show(what)

    def end(self) -> None:
        """The bar stays where it is, and what comes begins a new line."""
        if self._terminal:
            self._write("\n")

    def line(self, what: str) -> str:
        """The bar, the share, the time that is left, and what was done last."""
        share = min(1.0, self._done / self._total)
        filled = round(WIDTH * share)
        passed = time.monotonic() - self._started
        left = f", {_clock(passed * (1 - share) / share)} left" if 0 < share < 1 else ""
        bar = "#" * filled + "." * (WIDTH - filled)
        return f"{self._title} [{bar}] {share:4.0%} {_clock(passed)}{left}  {what}".rstrip()

    def _show(self, what: str) -> None:
        if not self._shown:
            return
        if self._terminal:
            self._write(f"\r\x1b[K{self.line(what)[:100]}")
        elif what and self._done >= self._told + LOGGED * self._total:
            self._told = self._done
            self._write(f"{self.line(what)}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed: the study is worth more than its bar
            self._shown = self._terminal = False


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
