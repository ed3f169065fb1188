"""The report for programs: everything that the other reports show, under a versioned schema.

Strict JSON: a number that is not finite is the string "NaN", "Infinity" or "-Infinity", one that
was not measured is null. Characters beyond ASCII are escaped.
"""

from __future__ import annotations

import dataclasses
import json as _json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skipscope.records import Diagnosis
from skipscope.reports import _words
from skipscope.reports._collect import view

if TYPE_CHECKING:
    from skipscope.history import History

SCHEMA = "skipscope-report/1"


def json(history: History, diagnosis: Diagnosis) -> str:
    """The report as one JSON object."""
    shown = view(history, diagnosis)
    report = {"schema": SCHEMA, "headline": _words.headline(shown), **dataclasses.asdict(shown)}
    return _json.dumps(_strict(report), allow_nan=False, indent=2) + "\n"


def _strict(value: Any) -> Any:
    """`value` in the types that JSON has."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _strict(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(held) for held in value]
    return value
