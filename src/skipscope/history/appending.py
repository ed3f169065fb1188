"""A file that only grows, by one process at a time."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from skipscope.history.format import HistoryInUseError


class Appending:
    """Appends whole pieces, straight to the system; a piece that was refused is cut off again.

    Two guards keep others out: a lock, where the system has one, and the file's size, which nobody
    else may change between two pieces.

    Raises:
        HistoryInUseError: another process writes to the file.
        OSError: the disk refuses, or the file was removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._raw = path.open("a+b", buffering=0)
        try:
            _lock(self._raw, path)
            self._size = self._whole = os.fstat(self._raw.fileno()).st_size
        except BaseException:
            self._raw.close()
            raise

    def from_start(self) -> BinaryIO:
        """The file for reading: to open it once more and close that would give up the lock."""
        self._raw.seek(0)
        return self._raw

    def clear(self) -> None:
        """Takes everything out."""
        self._raw.truncate(0)
        self._size = self._whole = 0

    def append(self, data: bytes) -> None:
        """Writes one piece."""
        self._check()
        self._cut()
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._raw.write(rest) :]
        except BaseException:  # Ctrl-C tears a piece too
            self._size = os.fstat(self._raw.fileno()).st_size
            raise
        self._size = self._whole = self._whole + len(data)

    def close(self) -> None:
        """Closes the file; every whole piece is already with the system."""
        try:
            if os.fstat(self._raw.fileno()).st_size == self._size:
                self._cut()
        finally:
            self._raw.close()

    def _check(self) -> None:
        found = os.fstat(self._raw.fileno())
        if not found.st_nlink and not self.path.exists():  # writing would succeed, into nowhere
            raise FileNotFoundError(errno.ENOENT, "removed while the run went on", str(self.path))
        if found.st_size != self._size:
            raise HistoryInUseError(f"another process writes to {self.path}")

    def _cut(self) -> None:
        """Takes a torn piece off; where the system refuses, the reader finds its way past it."""
        if self._size > self._whole:
            with suppress(OSError):
                self._raw.truncate(self._whole)
                self._size = self._whole
            self._whole = self._size


def _lock(file: BinaryIO, path: Path) -> None:
    """Keeps other processes out until this one ends, however it ends."""
    if sys.platform == "win32":  # the size alone tells there
        return
    import fcntl

    try:
        # Not `flock`: workers inherit that, and may outlive a run that was killed.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise HistoryInUseError(f"another process writes to {path}") from None
        # Some network file systems have no locks: the size tells, one piece later.
