"""What the monitor says: warnings as they come; at the end of an epoch reports and pictures."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from skipscope.history import History
from skipscope.loggers import Loggers
from skipscope.options import Options
from skipscope.records import Diagnosis, Finding

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


def announce(diagnosis: Diagnosis, known: set[tuple[str, str]]) -> None:
    """Logs each root finding once, under its own logger's name, so that it can be filtered.

    One that has ended is forgotten, and logged again when it comes back.

    Args:
        diagnosis: what the rules say now.
        known: code and place of what was logged; changed here.
    """
    ended = [finding for finding in diagnosis.findings if finding.status == "resolved"]
    there = [finding for finding in diagnosis.findings if finding.status != "resolved"]
    known -= _places(*ended) - _places(*there)
    for finding in diagnosis.standing:
        places = _places(finding)
        if finding.severity == "info" or places <= known:
            continue
        known |= places
        logging.getLogger(f"skipscope.{finding.code}").warning(
            "step %d: %s %s at %s: %s (skipscope explain %s)",
            diagnosis.step,
            finding.code,
            finding.name,
            ", ".join(finding.where),
            finding.message,
            finding.code,
        )


def _places(*findings: Finding) -> set[tuple[str, str]]:
    return {(finding.code, place) for finding in findings for place in finding.where}


def summary(history: History, diagnosis: Diagnosis, name: str) -> dict[str, float]:
    """Counts of findings, and r of the last capture, by the tags that a trainer can watch."""
    ratios = history.table("branch_ratio")
    last = ratios.values[-1] if len(ratios.steps) else np.empty(0)
    last = last[~np.isnan(last)]
    return {
        f"{name}/warnings": float(diagnosis.count("warning")),
        f"{name}/errors": float(diagnosis.count("error")),
        f"{name}/r_median": float(np.median(last)) if last.size else float("nan"),
        f"{name}/r_max": float(last.max()) if last.size else float("nan"),
    }


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
