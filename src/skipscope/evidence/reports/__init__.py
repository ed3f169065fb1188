"""A study's verdict as text: one file a format, all over the same tables of words.

To add a format, write its function and add its line to `FILES`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from skipscope.evidence.outcome import Evidence
from skipscope.evidence.reports.console import console
from skipscope.evidence.reports.csv import csv
from skipscope.evidence.reports.html import html
from skipscope.evidence.reports.json import json
from skipscope.evidence.reports.markdown import markdown
from skipscope.evidence.verdict import Verdict

__all__ = ["FILES", "console", "csv", "html", "json", "markdown", "write_reports"]

#: Every format, by the name of its file.
FILES: dict[str, Callable[[Evidence, Verdict], str]] = {
    "verdict.txt": console,
    "verdict.md": markdown,
    "verdict.html": html,
    "verdict.json": json,
    "runs.csv": csv,
}


def write_reports(evidence: Evidence, verdict: Verdict, folder: Path | str) -> list[Path]:
    """Write every format into a folder, which is made where it is not there.

    Raises:
        OSError: the folder or a file cannot be written.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for name, report in FILES.items():
        path = place / name
        path.write_text(report(evidence, verdict), encoding="utf-8", newline="\n")
        written.append(path)
    return written
