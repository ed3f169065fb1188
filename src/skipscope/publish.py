"""The end of an epoch: reports on the console and on disk, pictures and text to loggers."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from skipscope.history import History
from skipscope.loggers import Loggers
from skipscope.options import Options
from skipscope.records import Diagnosis

logger = logging.getLogger("skipscope")
_FILES = {"markdown": "report.md", "json": "report.json"}
#: Narrower and wider consoles than these get a report of this width.
_WIDTHS = (80, 120)


def publish(
    history: History,
    diagnosis: Diagnosis,
    options: Options,
    *,
    loggers: Loggers,
    show: Callable[[str], None],
    step: int,
) -> None:
    """Makes the report in every form that is wanted, and gives each to who takes it."""
    from skipscope.reports import REPORTS  # rich is not loaded until a report is wanted

    if "console" in options.report:
        show(console_report(history, diagnosis))
    for form, name in _FILES.items():
        if form in options.report and options.dirpath is not None:
            _write(Path(options.dirpath) / name, REPORTS[form](history, diagnosis))
    if loggers.active:
        loggers.pictures(history, diagnosis, step)
        loggers.text(REPORTS["markdown"](history, diagnosis), step)


def console_report(history: History, diagnosis: Diagnosis) -> str:
    """The console form, as this console can show it: its width, its colours, its characters."""
    from skipscope.reports import console

    narrowest, widest = _WIDTHS
    columns = shutil.get_terminal_size((narrowest, 24)).columns
    return console(
        history,
        diagnosis,
        width=max(narrowest, min(widest, columns)),
        color=sys.stdout.isatty(),
        unicode=_shows_unicode(),
    )


def _shows_unicode() -> bool:
    try:
        "█▁·×…".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        logger.warning("skipscope cannot write its report to %s (%s)", path, error)
