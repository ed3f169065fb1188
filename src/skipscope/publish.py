"""What the monitor says: warnings as they come; at the end of an epoch reports and pictures."""

from __future__ import annotations

import io
import logging
import shutil
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from skipscope.episodes import GRAVITY
from skipscope.history import History
from skipscope.loggers import Loggers
from skipscope.options import Options
from skipscope.records import Diagnosis, Finding, Severity

logger = logging.getLogger("skipscope")
_FILES = {"markdown": "report.md", "json": "report.json"}
#: Narrower and wider consoles than these get a report of this width.
_WIDTHS = (80, 120)


class Outlet:
    """Where a report goes out. What cannot take it costs that report; it is told once."""

    def __init__(self) -> None:
        self.failed = False

    def give(
        self,
        give: Callable[..., Any],
        *args: Any,
        refusals: tuple[type[Exception], ...] = (OSError, ImportError),
    ) -> Any:
        """Calls `give`; None where the machine, or somebody else's code, refused.

        Args:
            give: makes a report or gives it away.
            *args: what it takes.
            refusals: what is no error of ours. Out of file handles, an import fails too.
        """
        try:
            return give(*args)
        except refusals as refusal:
            if not self.failed:
                self.failed = True
                logger.warning(
                    "skipscope cannot give out its report (%s: %s); measuring goes on.",
                    type(refusal).__name__,
                    refusal,
                )
            return None


def publish(
    history: History,
    diagnosis: Diagnosis,
    options: Options,
    *,
    loggers: Loggers,
    show: Callable[[str], None],
    write: Callable[[str, str], None],
    step: int,
    outlet: Outlet,
) -> None:
    """Makes the report in every form that is wanted, and gives each to who takes it."""
    if "console" in options.report:
        text = outlet.give(console_report, history, diagnosis)
        if text is not None:
            outlet.give(show, text, refusals=(Exception,))
    for form, name in _FILES.items():
        if form in options.report and options.dirpath is not None:
            text = outlet.give(_made, form, history, diagnosis)
            if text is not None:
                write(name, text)
    if loggers.active:
        outlet.give(loggers.pictures, history, diagnosis, step)
        text = outlet.give(_made, "markdown", history, diagnosis)
        if text is not None:
            loggers.text(text, step)


def _made(form: str, history: History, diagnosis: Diagnosis) -> str:
    from skipscope.reports import REPORTS  # rich is not loaded until a report is wanted

    return REPORTS[form](history, diagnosis)


def say(text: str) -> None:
    """Prints, and leaves nothing behind in a standard output that does not take it.

    What a closed pipe or a full disk leaves in its buffer would fail once more in the training's
    own next `print`. What the console cannot show becomes "?".
    """
    stdout = sys.stdout
    if stdout is None:  # a process without a console
        return
    encoding = getattr(stdout, "encoding", None) or "ascii"
    data = f"{text}\n".encode(encoding, "replace")
    raw = getattr(getattr(stdout, "buffer", None), "raw", None)
    if not isinstance(raw, io.FileIO):  # a notebook's, a test's
        stdout.write(data.decode(encoding))
        return
    stdout.flush()
    rest = memoryview(data)
    while rest:
        written = raw.write(rest)
        if written is None:
            raise BlockingIOError("standard output takes no more for now")
        rest = rest[written:]


def announce(diagnosis: Diagnosis, known: dict[tuple[str, str], Severity]) -> None:
    """Logs each root finding once, under its own logger's name, so that it can be filtered.

    One that has ended is forgotten, and logged again when it comes back. One that is graver than
    before is logged again.

    Args:
        diagnosis: what the rules say now.
        known: code and place of what was logged, and how grave it was; changed here.
    """
    ended = [finding for finding in diagnosis.findings if finding.status == "resolved"]
    there = [finding for finding in diagnosis.findings if finding.status != "resolved"]
    for place in _places(*ended) - _places(*there):
        known.pop(place, None)
    for finding in diagnosis.standing:
        said = [GRAVITY[known.get(place, "info")] for place in _places(finding)]
        if GRAVITY[finding.severity] <= min(said):
            continue
        known.update(dict.fromkeys(_places(finding), finding.severity))
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
        color=_is_terminal(),
        unicode=_shows_unicode(),
    )


def _is_terminal() -> bool:
    stdout = sys.stdout
    return stdout is not None and not stdout.closed and stdout.isatty()


def _shows_unicode() -> bool:
    try:
        "█▁·×…".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
