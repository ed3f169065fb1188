"""Reports: a history and its diagnosis as text. One file a format; all show the same view.

To add a format, write its function and add one line to `REPORTS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from skipscope.records import Diagnosis
from skipscope.reports.console import console
from skipscope.reports.json import json
from skipscope.reports.markdown import markdown

if TYPE_CHECKING:
    from skipscope.history import History

__all__ = ["REPORTS", "Report", "console", "json", "markdown"]


class Report(Protocol):
    """What every format is: text, from what was recorded and what the rules say of it."""

    def __call__(self, history: History, diagnosis: Diagnosis, /) -> str:
        """The report as text."""
        ...


#: Every format by name, in the order in which `skipscope report --help` lists them.
REPORTS: dict[str, Report] = {
    "console": console,
    "markdown": markdown,
    "json": json,
}
