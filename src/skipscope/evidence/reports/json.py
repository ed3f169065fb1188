"""A study's verdict for programs: all that was measured and all that was said of it.

Strict JSON: a number that is not finite is the string "NaN", "Infinity" or "-Infinity", one that
was not measured is null. Characters beyond ASCII are escaped.
"""

from __future__ import annotations

import dataclasses

from skipscope.evidence.landmarks import LANDMARKS
from skipscope.evidence.outcome import Evidence
from skipscope.evidence.verdict import Verdict
from skipscope.reports.strict import dumps

SCHEMA = "skipscope-study/1"


def json(evidence: Evidence, verdict: Verdict) -> str:
    """The verdict, the runs that it is about, and the landmarks apart from both."""
    report = {
        "schema": SCHEMA,
        "headline": verdict.headline,
        "verdict": dataclasses.asdict(verdict),
        "evidence": dataclasses.asdict(evidence),
        "landmarks": [dataclasses.asdict(one) for one in LANDMARKS],
    }
    return dumps(report)
