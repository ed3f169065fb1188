"""The report for programs: everything that the other reports show, under a versioned schema.

Strict JSON: a number that is not finite is the string "NaN", "Infinity" or "-Infinity", one that
was not measured is null. Characters beyond ASCII are escaped.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from skipscope.records import Diagnosis
from skipscope.reports import _words
from skipscope.reports._collect import view
from skipscope.reports.strict import dumps

if TYPE_CHECKING:
    from skipscope.history import History

SCHEMA = "skipscope-report/1"


def json(history: History, diagnosis: Diagnosis) -> str:
    """The report as one JSON object."""
    shown = view(history, diagnosis)
    return dumps(
        {"schema": SCHEMA, "headline": _words.headline(shown), **dataclasses.asdict(shown)}
    )
