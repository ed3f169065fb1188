"""Findings appear, persist and clear: new, continuing, resolved, and said once."""

from __future__ import annotations

import json as stdlib_json
import logging
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from skipscope.diagnose import diagnose
from skipscope.episodes import compare, earliest, lift, looks, settle, weigh
from skipscope.history import History
from skipscope.publish import announce, summary
from skipscope.records import Diagnosis, Finding, Severity
from skipscope.reports import console, json, markdown
from skipscope.rule import Hit, Inputs, Rule, Warmup, rule
from skipscope.rule.docs import HEADINGS
from skipscope.rules import RULES
from tests.offline.builders import add_facts, add_updates, make_history, make_map, make_site

SITES = 12
DOC = "Test.\n\n" + "\n".join(f"{heading}:\n    * words" for heading in HEADINGS)


def run_of(sick: Sequence[bool], *, block: int = 5, every: int = 50) -> History:
    """One capture each 50 steps; at the sick ones the branch of one block is at r = 34."""
    r = np.full((len(sick), SITES), 0.35)
    r[np.asarray(sick), block] = 34
    return make_history(r, steps=np.arange(len(sick)) * every)


def judged(sick: str, previous: Diagnosis | None = None) -> Diagnosis:
    """RES101 alone (three captures in a row) on a run written as "..###.."."""
    return diagnose(run_of([one == "#" for one in sick]), select=["RES101"], previous=previous)


def states(diagnosis: Diagnosis) -> list[tuple[str, int, int, bool]]:
    return [(f.status, f.first_step, f.last_step, f.told) for f in diagnosis.findings]


def found(code: str = "RES101", where: str = "blocks.5", **changes: object) -> Finding:
    facts: dict[str, object] = {
        "name": "branch-dominance", "severity": "warning", "first_step": 100, "last_step": 450,
        "message": "r 34.0",
    }  # fmt: skip
    return Finding(code, where=(where,), **{**facts, **changes})  # type: ignore[arg-type]


# ------------------------------------------------------------------------------ one episode


def test_an_episode_appears_persists_and_clears() -> None:
    first = judged("..###")
    assert states(first) == [("new", 100, 200, False)]
    assert first.findings[0].ongoing
    second = judged("..####", first)
    assert states(second) == [("continuing", 100, 250, False)]
    third = judged("..#####..", second)  # two clean captures, three are asked for
    assert states(third) == [("continuing", 100, 300, False)]
    assert not third.findings[0].ongoing
    fourth = judged("..#####...", third)
    assert states(fourth) == [("resolved", 100, 300, False)]
    assert fourth.count("warning") == 0
    assert fourth.standing == ()
    assert fourth.resolved == fourth.roots
    fifth = judged("..#####.....", fourth)
    assert states(fifth) == [("resolved", 100, 300, True)]
    assert fifth.resolved == ()


def test_what_comes_back_is_new_again() -> None:
    ended = judged("###...")
    assert states(ended) == [("resolved", 0, 100, False)]
    back = judged("###...###", ended)
    assert [state for state in states(back) if not state[3]] == [("new", 300, 400, False)]
    assert ("resolved", 0, 100, True) in states(back)  # kept, and not said again
    assert back.count("warning") == 1


def test_an_episode_between_two_reports_is_told_once() -> None:
    first = judged("###...")
    second = judged("###...####...", first)
    assert ("resolved", 300, 450, False) in states(second)
    third = judged("###...####....", second)
    assert {told for *_, told in states(third)} == {True}


def test_a_capture_without_the_site_is_no_look() -> None:
    sick = np.full((9, SITES), 0.35)
    sick[:3, 5] = 34
    have = np.full((9, SITES), 31)
    have[3:, 5] = 0  # not called any more
    (finding,) = diagnose(make_history(sick, have=have), select=["RES101"]).findings
    assert (finding.status, finding.ongoing) == ("new", True)
    have[6:, 5] = 31
    (finding,) = diagnose(make_history(sick, have=have), select=["RES101"]).findings
    assert (finding.status, finding.ongoing) == ("resolved", False)


def test_patience_is_a_threshold_of_ending_too() -> None:
    history = run_of([True] * 5 + [False] * 4)
    for patience, status in ((3, "resolved"), (5, "new")):
        wanted = {"RES101": {"patience": patience}}
        (finding,) = diagnose(history, select=["RES101"], thresholds=wanted).findings
        assert finding.status == status


# ------------------------------------------------------------------------------ where a rule looks


def declared(function, **gates) -> Rule:  # type: ignore[no-untyped-def]
    function.__doc__ = DOC
    return rule(code="RES999", name="test", **gates)(function)


def by_captures(branch_ratio, loss=None):  # type: ignore[no-untyped-def]
    yield


def by_updates(gradient_norm, lr):  # type: ignore[no-untyped-def]
    yield


def by_what_is_there(branch_ratio=None, loss=None):  # type: ignore[no-untyped-def]
    yield


def by_map(sites, captures):  # type: ignore[no-untyped-def]
    yield


def test_a_rule_looks_where_all_that_it_needs_was_measured() -> None:
    history = make_history(np.full((3, 4), 0.5), steps=[0, 10, 20])
    rotating = np.full((4, 4), 7)
    rotating[1, 2] = rotating[3, 2] = 0
    add_updates(history, steps=[0, 5, 10, 20], have=rotating)
    add_facts(history, loss=np.ones(26))
    inputs = Inputs({}, history)

    def at(function, where: str) -> list[int]:  # type: ignore[no-untyped-def]
        return looks(declared(function), inputs, (where,)).tolist()

    assert at(by_captures, "blocks.2") == [0, 10, 20]
    assert at(by_updates, "blocks.1") == [0, 5, 10, 20]
    assert at(by_updates, "blocks.2.weight") == at(by_updates, "blocks.2") == [0, 10]
    assert at(by_updates, "model") == [0, 5, 10, 20]
    assert at(by_what_is_there, "blocks.2") == [0, 10, 20]
    assert at(by_map, "blocks.2") == [0, 10, 20]
    alone = add_facts(History(), loss=np.ones(3))
    assert looks(declared(by_what_is_there), Inputs({}, alone), ("model",)).tolist() == [0, 1, 2]
    assert looks(declared(by_map), Inputs({}), ("model",)).tolist() == []


def test_names_of_several_sites_of_a_module_are_its_places() -> None:
    sites = make_map(
        make_site(0, name="blocks.1/attn", module="blocks.1"),
        make_site(1, name="blocks.10/attn", module="blocks.10"),
    )
    history = make_history(np.full((2, 2), 0.5), sites=sites, have=[[31, 31], [0, 31]])
    inputs = Inputs({}, history)
    assert looks(declared(by_captures), inputs, ("blocks.1",)).tolist() == [0]
    assert looks(declared(by_captures), inputs, ("blocks.10",)).tolist() == [0, 1]


def test_what_is_about_the_start_does_not_end() -> None:
    inputs = Inputs({}, run_of([False] * 9))
    at_start = found(first_step=0, last_step=0)
    assert settle(at_start, RULES["RES101"], inputs).status == "resolved"
    assert settle(at_start, RULES["RES101"], inputs, stands=True).status == "new"
    assert RULES["RES105"].initial_only

    def start(branch_ratio):  # type: ignore[no-untyped-def]
        yield Hit(("blocks.5",), 1.0, "", "", 0, 0)

    late = declared(start, initial_only=True)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("skipscope.diagnose.RULES", "skipscope.rules.RULES"):
            patch.setattr(module, {"RES999": late})
        (finding,) = diagnose(run_of([False] * 9)).findings
    assert (finding.status, finding.ongoing) == ("new", False)


# ------------------------------------------------------------------------------ against the last


def test_what_no_rule_yields_any_more_is_resolved() -> None:
    before = [found()]
    (gone,) = compare([], before, {"RES101"})
    assert (gone.status, gone.told, gone.ongoing) == ("resolved", False, False)
    (told,) = compare([], [gone], {"RES101"})
    assert (told.status, told.told) == ("resolved", True)


def test_a_rule_that_cannot_look_takes_nothing_back() -> None:
    (kept,) = compare([], [found()], set())
    assert (kept.status, kept.ongoing) == ("continuing", False)


def test_a_rule_that_was_not_asked_is_not_carried_on() -> None:
    before = judged("###")
    assert diagnose(run_of([True] * 3), select=["RES103"], previous=before).findings == ()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "continuing"),
        ({"where": ("blocks.5", "blocks.6")}, "new"),
        ({"severity": "error"}, "new"),
        ({"severity": "info"}, "continuing"),
        ({"first_step": 500, "last_step": 600}, "continuing"),  # it never was resolved
    ],
)
def test_new_is_another_place_or_graver(changes: dict[str, object], status: str) -> None:
    present = replace(found(), **changes)  # type: ignore[arg-type]
    assert [f.status for f in compare([present], [found()], {"RES101"})] == [status]


def test_a_cause_stands_as_long_as_its_effect() -> None:
    cause = found(status="resolved", ongoing=False)
    effect = found("RES201", "model", follows=("RES101", "blocks.5"))
    assert [f.status for f in lift([cause, effect], [])] == ["new", "new"]
    assert [f.status for f in lift([cause, effect], [found()])] == ["continuing", "new"]
    over = replace(effect, status="resolved", ongoing=False)
    assert [f.status for f in lift([cause, over], [])] == ["resolved", "resolved"]
    at_start = replace(effect, ongoing=False)
    assert [f.status for f in lift([cause, at_start], [])] == ["resolved", "resolved"]
    assert [f.status for f in lift([replace(cause, status="new"), at_start], [])] == ["new", "new"]


def test_what_ended_with_its_cause_does_not_come_back_by_itself() -> None:
    """RES105 is about step 0 and follows from RES101 here."""
    asked = {"select": ["RES101", "RES105"]}
    first = diagnose(run_of([True] * 3), **asked)
    assert {(f.code, f.status) for f in first.findings} == {("RES101", "new"), ("RES105", "new")}
    assert [f.code for f in first.standing] == ["RES101"]
    over = diagnose(run_of([True] * 3 + [False] * 3), previous=first, **asked)
    assert {f.status for f in over.findings} == {"resolved"}
    assert len(over.resolved) == 1
    later = diagnose(run_of([True] * 3 + [False] * 6), previous=over, **asked)
    assert {(f.status, f.told) for f in later.findings} == {("resolved", True)}


def test_a_root_is_as_grave_as_what_follows_from_it() -> None:
    cause = found(status="continuing")
    effect = found("RES902", "model", severity="error", follows=("RES101", "blocks.5"))
    root, other = weigh([cause, effect], [found()])
    assert (root.severity, root.status, other) == ("error", "new", effect)  # graver than it was
    assert root.evidence["severity by"] == "RES902 branch-dominance"
    assert weigh([cause, effect], [root])[0].status == "continuing"
    diagnosis = Diagnosis((root, other))
    assert (diagnosis.count("error"), diagnosis.count("warning")) == (1, 0)
    assert summary(RUN, diagnosis, "skipscope")["skipscope/errors"] == 1.0
    milder = replace(effect, severity="info")
    assert weigh([cause, milder], [found()]) == [cause, milder]
    over = replace(effect, status="resolved")
    assert weigh([cause, over], [found()])[0] == cause  # what has ended does not count
    ended = replace(cause, status="resolved")
    assert [f.severity for f in weigh([ended, over], [root])] == ["error", "error"]
    assert [f.status for f in weigh([ended, over], [root])] == ["resolved", "resolved"]
    elsewhere = replace(effect, follows=("RES101", "blocks.1"))
    assert weigh([cause, elsewhere], [])[0] == cause


@pytest.mark.parametrize("gone", [np.nan, np.inf])
def test_a_stream_that_is_not_finite_has_not_recovered(gone: float) -> None:
    """Growth of 2 a site from step 0; from the third capture on every sum is NaN or infinite."""
    r = np.full((6, SITES), 3.0)
    r[2:] = gone
    with np.errstate(invalid="ignore"):
        history = make_history(r)
    first = diagnose(make_history(r[:2]), select=["RES201"])
    assert first.count("error", "warning") == 1
    (finding,) = [f for f in first.findings if f.code == "RES201"]
    later = diagnose(history, select=["RES201"], previous=first)
    assert {f.status for f in later.findings if f.where == finding.where} == {"continuing"}
    ours = Inputs({}, history)
    assert looks(declared(by_captures), ours, ("blocks.2",)).tolist() == [0, 1]


def test_what_a_rule_could_have_seen_began_after_its_last_look() -> None:
    inputs = Inputs({}, make_history(np.full((3, 4), 0.5), steps=[0, 10, 20]))
    seen = declared(by_captures)
    where = found(where="blocks.2", first_step=20, last_step=20)
    assert earliest(where, seen, inputs) == 11
    assert earliest(replace(where, first_step=0), seen, inputs) == 0
    assert earliest(where, replace(seen, min_steps=99), inputs) == 0  # its gate is closed
    heated = Inputs({"warmup": Warmup(10, 20)}, inputs.history)
    assert earliest(where, replace(seen, after_warmup=True), heated) == 11
    late = Inputs({"warmup": Warmup(15, 20)}, inputs.history)
    assert earliest(where, replace(seen, after_warmup=True), late) == 0  # never looked before


# ------------------------------------------------------------------------------ what is said

RUN = make_history(np.full((9, SITES), 0.35), steps=np.arange(9) * 100)
ENDED = found(status="resolved", ongoing=False)
LINE = "resolved: RES101 at blocks.5, steps 100 to 450"


def test_the_first_line_counts_what_has_ended() -> None:
    standing = found(where="blocks.1"), found(where="blocks.2", status="continuing")
    first = console(RUN, Diagnosis((*standing, ENDED), step=800)).splitlines()[0]
    assert first == "skipscope  epoch 0  step 800  12 sites  2 warnings (1 new), 1 resolved"
    for diagnosis, verdict in (
        (diagnose(RUN, select=["RES101"]), "healthy, 1 resolved"),
        (Diagnosis(), "no findings, no rule looked, 1 resolved"),
        (diagnose(RUN, select=["RES101", "RES001"]), "no findings, 1 resolved, 1 rule skipped"),
    ):
        with_it = replace(diagnosis, findings=(ENDED,))
        assert console(RUN, with_it).splitlines()[0].endswith(f"12 sites  {verdict}")


def test_what_has_ended_is_one_line_once() -> None:
    told = found(where="blocks.8", status="resolved", ongoing=False, told=True)
    diagnosis = Diagnosis((ENDED, told), step=800)
    text = console(RUN, diagnosis)
    assert re.findall("^resolved.*$", text, re.MULTILINE) == [LINE]
    assert "warning" not in text
    assert not re.search(r"^!", text, re.MULTILINE)
    assert markdown(RUN, diagnosis).count("resolved: ") == 1
    report = stdlib_json.loads(json(RUN, diagnosis))
    assert report["roots"] == []
    kept = [(root["finding"]["where"], root["finding"]["told"]) for root in report["resolved"]]
    assert kept == [(["blocks.5"], False), (["blocks.8"], True)]
    assert report["sites"][5]["findings"] == []


def test_many_that_have_ended_are_counted() -> None:
    many = tuple(replace(ENDED, where=(f"blocks.{at}",)) for at in range(6))
    lines = [x for x in console(RUN, Diagnosis(many)).splitlines() if x.startswith("resolved")]
    assert len(lines) == 4
    assert lines[-1] == "resolved: 3 more (RES101, RES101, RES101)"
    deep = make_history(np.full((3, 120), 0.35))
    lines = [x for x in console(deep, Diagnosis(many)).splitlines() if x.startswith("resolved")]
    assert lines == ["resolved: 6 in all (RES101, RES101, RES101 and 3 more)"]
    assert len(console(deep, Diagnosis((*many, found()))).splitlines()) <= 50


def test_effects_that_have_ended_are_not_shown() -> None:
    effect = found("RES201", "model", follows=("RES101", "blocks.5"), status="resolved")
    assert "follows" not in console(RUN, Diagnosis((found(), effect)))
    assert "follows  RES201" in console(RUN, Diagnosis((found(), replace(effect, status="new"))))


def test_numbers_to_watch_count_what_stands() -> None:
    grave = found("RES902", severity="error")
    numbers = summary(RUN, Diagnosis((ENDED, grave)), "skipscope")
    assert (numbers["skipscope/warnings"], numbers["skipscope/errors"]) == (0.0, 1.0)


def test_the_log_has_each_episode_once(caplog: pytest.LogCaptureFixture) -> None:
    known: dict[tuple[str, str], Severity] = {}

    def said(*findings: Finding) -> int:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            announce(Diagnosis(findings), known)
        return len(caplog.records)

    assert said(found()) == 1
    assert said(found(status="continuing")) == 0
    assert said(found(status="continuing", ongoing=False)) == 0
    assert said(ENDED) == 0
    assert said(replace(ENDED, told=True), found(first_step=600, last_step=800)) == 1
    assert said(replace(ENDED, told=True), found(first_step=600, last_step=850)) == 0
    assert said(found(status="continuing", severity="error")) == 1
    assert said(found(status="continuing", severity="error")) == 0
    assert said(found(status="continuing")) == 0
