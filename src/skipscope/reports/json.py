"""The report for programs: everything that the other reports show, under a versioned schema.

Strict JSON: a number that is not finite is the string "NaN", "Infinity" or "-Infinity", one that
was not measured is null. Characters beyond ASCII are escaped.
"""

from __future__ import annotations

import dataclasses
import json as _json
from typing import TYPE_CHECKING

from skipscope.records import Diagnosis
from skipscope.reports import _words
from skipscope.reports._collect import view
from skipscope.reports._strict import strict

if TYPE_CHECKING:
    from skipscope.history import History

SCHEMA = "skipscope-report/1"


def json(history: History, diagnosis: Diagnosis) -> str:
    """The report as one JSON object."""
    shown = view(history, diagnosis)
    report = {"schema": SCHEMA, "headline": _words.headline(shown), **dataclasses.asdict(shown)}
    return _json.dumps(strict(report), allow_nan=False, indent=2) + "\n"
