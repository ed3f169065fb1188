"""The JSON report keeps to its schema: every field is there, of its type, and none is undocumented.

The check below knows the few words of JSON Schema that the file uses; another one is an error.
"""

from __future__ import annotations

import copy
import json as stdlib_json
import math
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skipscope.diagnose import diagnose
from skipscope.history import History
from skipscope.records import Diagnosis, Skipped
from skipscope.reports import json
from skipscope.reports.json import SCHEMA
from tests.offline.builders import add_facts, add_updates, make_history
from tests.offline.report_values import DOMINANT, GATE, calm, run_of, sick

PAGE = Path(__file__).parents[2] / "docs" / "report-schema.md"
FORM: dict[str, Any] = stdlib_json.loads(
    (files("skipscope.reports") / "report.schema.json").read_text(encoding="utf-8")
)
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
WORDS = {
    "$schema", "$id", "$defs", "$ref", "title", "description", "type", "enum", "const", "pattern",
    "anyOf", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
}  # fmt: skip


def problems(value: Any, form: dict[str, Any], at: str = "$") -> list[str]:
    """Where a value differs from its form."""
    assert form.keys() <= WORDS, form.keys() - WORDS
    if "$ref" in form:
        return problems(value, FORM["$defs"][form["$ref"].removeprefix("#/$defs/")], at)
    if "anyOf" in form:
        found = [problems(value, one, at) for one in form["anyOf"]]
        return [] if [] in found else [f"{at}: {value!r} is none of these", *found[0]]
    kind = form.get("type")
    right = kind is None or (
        isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
    )
    if not right:
        return [f"{at}: {value!r} is no {kind}"]
    if value not in form.get("enum", [value]) or value != form.get("const", value):
        return [f"{at}: {value!r} is not allowed"]
    if isinstance(value, str) and not re.search(form.get("pattern", ""), value):
        return [f"{at}: {value!r} is not of this form"]
    if isinstance(value, list):
        return _of_list(value, form, at)
    return _of_object(value, form, at) if isinstance(value, dict) else []


def _of_list(value: list[Any], form: dict[str, Any], at: str) -> list[str]:
    if not form.get("minItems", 0) <= len(value) <= form.get("maxItems", math.inf):
        return [f"{at}: {len(value)} items"]
    return [p for k, one in enumerate(value) for p in problems(one, form["items"], f"{at}[{k}]")]


def _of_object(value: dict[str, Any], form: dict[str, Any], at: str) -> list[str]:
    known = form.get("properties", {})
    found = [f"{at}: no {name}" for name in form.get("required", ()) if name not in value]
    for name, one in value.items():
        inner = known.get(name, form.get("additionalProperties"))
        where = f"{at}.{name}"
        found += [f"{where}: not documented"] if inner is None else problems(one, inner, where)
    return found


def broken_numbers() -> History:
    """NaN, infinite and missing numbers in the last capture."""
    have = np.full((8, 4), 31)
    have[-1, 3] = 0
    history = run_of(4, have=have, unseen=(GATE,))
    row = history.sums[-1].copy()
    row[1, 4], row[2, 4] = math.nan, math.inf  # ff
    history.append_capture(100, row, history.have[-1], np.full(4, 3))
    return history


def diagnosed() -> tuple[History, Diagnosis]:
    """A run that real rules judge: one finding stands, another has ended."""
    r = np.full((12, 12), 0.35)
    r[:, 7] = 34
    r[:4, 2] = 34
    history = make_history(r)
    add_updates(history)
    add_facts(history, loss=np.linspace(2, 1, 12))
    return history, diagnose(history)


ENDED = replace(DOMINANT, where=("blocks.3",), last_step=16, status="resolved", ongoing=False)
REPORTS = {
    "healthy": (run_of(12), calm()),
    "sick": (run_of(12, {2: 34.0}, unseen=(GATE,)), sick(ENDED, replace(ENDED, told=True))),
    "two streams": (run_of(12, streams=2), calm((Skipped("RES401", "x", "updates are off"),))),
    "broken numbers": (
        broken_numbers(),
        Diagnosis((replace(DOMINANT, evidence={"value": math.nan, "r": math.inf}),)),
    ),
    "empty": (History(), Diagnosis()),
    "diagnosed": diagnosed(),
    "empty and diagnosed": (History(), diagnose(History())),
}


@pytest.mark.parametrize("run", REPORTS.values(), ids=REPORTS.keys())
def test_reports_keep_to_the_schema(run: tuple[History, Diagnosis]) -> None:
    report = stdlib_json.loads(json(*run), parse_constant=pytest.fail)
    assert problems(report, FORM) == []


def test_the_check_itself_finds_what_is_wrong() -> None:
    report = stdlib_json.loads(json(*REPORTS["sick"]))
    finding = ("roots", 0, "finding")
    for path, value, problem in (
        ((*finding, "severity"), "fatal", "$.roots[0].finding.severity: 'fatal' is not allowed"),
        ((*finding, "first_step"), True, "$.roots[0].finding.first_step: True is no integer"),
        ((*finding, "code"), "RES1", "$.roots[0].finding.code: 'RES1' is not of this form"),
        (("sites", 0, "growth"), "inf", "$.sites[0].growth: 'inf' is none of these"),
        (("sites", 0, "colour"), "red", "$.sites[0].colour: not documented"),
        (("schema",), "skipscope-report/2", "$.schema: 'skipscope-report/2' is not allowed"),
        (("passed", 0), ["RES101"], "$.passed[0]: 1 items"),
    ):
        wrong = copy.deepcopy(report)
        held = wrong
        for step in path[:-1]:
            held = held[step]
        held[path[-1]] = value
        assert problems(wrong, FORM)[0] == problem
    del report["roots"]
    assert problems(report, FORM) == ["$: no roots"]


def test_schema_and_page_have_the_version_of_the_report() -> None:
    assert FORM["properties"]["schema"]["const"] == SCHEMA
    page = PAGE.read_text(encoding="utf-8")
    assert f"`{SCHEMA}`" in page
    absent = [name for name in FORM["properties"] if f"| `{name}` |" not in page]
    absent += [n for n in FORM["$defs"]["finding"]["properties"] if f"| `{n}` |" not in page]
    assert absent == []
