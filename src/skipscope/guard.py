"""Errors of the monitor stay inside the monitor."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any, Literal

import torch

logger = logging.getLogger("skipscope")


class Guard:
    """Catches the first error of ours, reports it once, and says that monitoring is off.

    Args:
        on_error: "disable" keeps the training going; "raise" is for tests.
    """

    def __init__(self, on_error: Literal["disable", "raise"] = "disable") -> None:
        self.on_error = on_error
        self.broken = False
        #: of several ranks the first one tells, once it hears of it at a meeting
        self.waits_to_tell = False
        self._untold: tuple[BaseException, str] | None = None

    def fail(self, error: BaseException, where: str) -> None:
        """Notes an error; raises it again with `on_error="raise"`."""
        if self.on_error == "raise":
            raise error
        first, self.broken = not self.broken, True
        if first:
            self._untold = error, where
            if not self.waits_to_tell:
                self.tell()

    def tell(self) -> None:
        """Reports an error that was not reported yet."""
        if self._untold is not None:
            (error, where), self._untold = self._untold, None
            logger.error(
                "skipscope stopped measuring after an error of its own in %s; the training goes on "
                "unchanged. Please report this traceback at the project's issue tracker.",
                where,
                exc_info=error,
            )

    def hand_over(self) -> str:
        """What there is to report, for another process to tell; empty where nothing is."""
        if self._untold is None:
            return ""
        (error, where), self._untold = self._untold, None
        return f"{where}\n{''.join(traceback.format_exception(error)).rstrip()}"

    def finish(self, where: str, function: Callable[..., Any], *args: Any) -> Any:
        """Runs what must happen, or may be asked for, after an error too; None where it fails."""
        try:
            with torch._C.DisableTorchFunction():
                return function(*args)
        except Exception as error:
            self.fail(error, where)
            return None

    def call(self, where: str, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a piece of the monitor; None after an error, or when one happened before.

        What it computes is seen by no function mode, ours or another: reading an attribute of a
        tensor would call them too.
        """
        return None if self.broken else self.finish(where, function, *args)
