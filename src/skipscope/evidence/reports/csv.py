"""A study's runs for a spreadsheet: a row each, in the order in which they ran."""

from __future__ import annotations

import csv as _csv
import dataclasses
import io
from typing import Any

from skipscope.evidence.outcome import ArmFacts, Cell, Evidence, Outcome
from skipscope.evidence.verdict import Verdict
from skipscope.reports._text import visible

FORMULA = ("=", "+", "-", "@")  #: what a spreadsheet takes a formula by
#: Facts of its arm that stand in each row.
ARM = ("title", "role", "pair", "differs", "near_identity")
CELL = tuple(one.name for one in dataclasses.fields(Cell))
#: What has no place in one cell of a table; `findings` is written as text.
LEFT_OUT = ("cell", "readings", "findings")
OUTCOME = tuple(one.name for one in dataclasses.fields(Outcome) if one.name not in LEFT_OUT)


def csv(evidence: Evidence, verdict: Verdict) -> str:
    """One row a run: "inf" and "nan" as such, nothing where there is no value.

    Text that a spreadsheet would compute gets an apostrophe in front, which it does not show.
    """
    del verdict  # a spreadsheet is for one's own conclusions
    arms = {arm.name: arm for arm in evidence.arms}
    out = io.StringIO()
    writer = _csv.writer(out, lineterminator="\n")
    writer.writerow([*CELL, *ARM, *OUTCOME, "findings"])
    writer.writerows(_row(arms[run.cell.arm], run) for run in evidence.outcomes)
    return out.getvalue()


def _row(arm: ArmFacts, run: Outcome) -> list[Any]:
    found = " ".join(f"{code}:{severity}" for code, severity in run.findings)
    values = [
        *(getattr(run.cell, name) for name in CELL),
        *(getattr(arm, name) for name in ARM),
        *(getattr(run, name) for name in OUTCOME),
        found,
    ]
    return [_text(value) if isinstance(value, str) else value for value in values]


def _text(value: str) -> str:
    shown = visible(value)
    return f"'{shown}" if shown.lstrip()[:1] in FORMULA else shown
