"""From a history to a diagnosis: outcomes, choices, thresholds, grouping, novelty."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skipscope.rules as rules_package
from skipscope.diagnose import choose, diagnose, group
from skipscope.history import History
from skipscope.records import Finding
from skipscope.reports import console
from skipscope.rule import Hit, NotMeasurable, Rule, either, rule
from skipscope.rule import docs as rule_docs
from skipscope.rule.gates import Warmup, after_warmup, warmup
from skipscope.rule.siblings import blocks, stages
from skipscope.rules import RULES
from tests.offline.builders import add_facts, add_updates, make_history, make_map, make_site
from tests.offline.rule_values import chain, law, staged

SPARSE = (0, 1, 2, 4, 8, 16, 32)
DOC = "Test.\n\n" + "\n".join(f"{heading}:\n    * words" for heading in rule_docs.HEADINGS)


def healthy(count: int = 12) -> History:
    history = make_history(np.tile(0.4 * law(chain(count)), (7, 1)), steps=SPARSE)
    add_updates(history)
    return add_facts(history, loss=np.linspace(2, 1, 40))


def drowned() -> History:
    """Block 7 of 12 at r = 34; shortcut sizes and later r follow."""
    r = np.full(12, 0.35)
    r[7], r[8:] = 34, 0.009
    history = make_history(np.tile(r, (7, 1)), steps=SPARSE)
    add_updates(history)
    return add_facts(history, loss=np.linspace(2, 1, 40))


def test_every_rule_has_one_outcome() -> None:
    for history in (healthy(), drowned(), healthy(4), History()):
        found = diagnose(history)
        codes = [p.code for p in found.passed] + [s.code for s in found.skipped]
        assert sorted({f.code for f in found.findings} | set(codes)) == sorted(RULES)
        assert len(codes) == len(set(codes))
        assert all(s.reason for s in found.skipped)


def test_a_healthy_run_passes() -> None:
    found = diagnose(healthy())
    assert not found.findings
    assert {p.code for p in found.passed} >= {"RES101", "RES103", "RES201", "RES301", "RES901"}
    assert all(skip.reason.startswith("needs") for skip in found.skipped)
    assert (found.step, found.epoch) == (39, 0)


def test_an_empty_history_skips_everything() -> None:
    assert {s.code for s in diagnose(History()).skipped} == set(RULES)


def test_one_dominating_branch_is_the_only_root() -> None:
    found = diagnose(drowned())
    assert [(f.code, f.where) for f in found.roots] == [("RES101", ("blocks.7",))]
    (finding,) = found.roots
    assert finding.severity == "warning"
    assert 1 <= len(finding.advice) <= 3
    assert finding.evidence["value"] == 34


def test_the_demo_names_its_block_in_the_first_epoch() -> None:
    """Three stages of four batch-norm blocks, one branch scaled; default captures."""
    sites = staged(4, 4, 4)
    r = np.tile(law(sites), (7, 1))
    r[:, 6] = 15
    r[:, 7] /= 15
    history = make_history(r, sites=sites, steps=SPARSE)
    assert [f.where for f in diagnose(history).roots] == [("stages.1.2",)]


def test_exponential_growth_is_one_root_about_the_model() -> None:
    history = make_history(np.full((3, 48), 1.35))
    found = diagnose(history)
    assert [(f.code, f.where) for f in found.roots] == [("RES201", ("model",))]
    following = {(f.code, f.follows) for f in found.findings if f.follows}
    assert ("RES101", ("RES201", "model")) in following


def test_select_and_ignore() -> None:
    assert [r.code for r in choose(["RES101", "nothing-found"], None)] == ["RES101", "RES901"]
    assert choose(["res101", "Nothing-Found"], None) == choose(["RES101", "RES901"], None)
    without = [r.code for r in choose(["RES1"], ["dead-branch"])]
    assert without == [code for code in RULES if code.startswith("RES1") and code != "RES103"]
    for kind in ("select", "ignore"):
        with pytest.raises(ValueError, match=rf"{kind}: no rule 'RES11' .*did you mean RES10"):
            diagnose(healthy(), **{kind: ["RES11"]})


def test_rules_are_named_in_a_list() -> None:
    """Of a mere string each letter would be the start of a code, and R of all codes."""
    wrong: Any
    for kind in ("select", "ignore"):
        for wrong, told in (("RES101", r"write \['RES101'\]"), (101, "got 101"), ([1], "got 1")):
            with pytest.raises(ValueError, match=f"^{kind} must be a list of strings.*{told}"):
                diagnose(healthy(), **{kind: wrong})
    assert choose(iter(["RES101"]), None) == choose(["RES101"], None)


def test_thresholds() -> None:
    r = 0.35 * np.ones((3, 12))
    r[:, 5] = 1.5
    history = make_history(r)
    assert not diagnose(history, select=["RES101"]).findings
    for name in ("RES101", "branch-dominance"):
        assert diagnose(history, select=["RES101"], thresholds={name: {"above": 3.0}}).findings
    wanted = {"RES101": {"above": 3.0, "patience": 4}}
    assert not diagnose(history, select=["RES101"], thresholds=wanted).findings
    with pytest.raises(ValueError, match=r"RES101 has no threshold 'abov' .*mean above"):
        diagnose(history, select=["RES901"], thresholds={"RES101": {"abov": 1}})
    with pytest.raises(ValueError, match="thresholds: no rule 'RES999'"):
        diagnose(history, thresholds={"RES999": {"above": 1}})


@pytest.mark.parametrize("name", ["above", "siblings", "patience", "min_steps"])
@pytest.mark.parametrize("value", ["x", None, True, [3], np.nan, np.inf, -np.inf, 1j])
def test_what_is_no_number_is_no_threshold(name: str, value: object) -> None:
    """Refused at once, also for a rule that does not look."""
    wrong: Any = {"RES101": {name: value}}
    with pytest.raises(ValueError, match=f"'{name}' of RES101 must be .* number.*, got") as told:
        diagnose(History(), select=["RES901"], thresholds=wrong)
    assert repr(value) in str(told.value)


@pytest.mark.parametrize("name", ["siblings", "reach", "patience", "min_steps"])
@pytest.mark.parametrize("value", [-1, 2.5])
def test_what_counts_is_a_whole_number(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"'{name}' of RES101 must be a whole number of 0 or more"):
        RULES["RES101"].with_overrides({name: value})
    as_float = RULES["RES101"].with_overrides({name: 2.0})
    assert {**as_float.thresholds, **vars(as_float)}[name] == 2


@pytest.mark.parametrize(
    ("code", "name"),
    [("RES101", "above"), ("RES102", "notable"), ("RES301", "decades"), ("RES401", "hot")],
)
def test_what_cannot_be_negative_has_no_negative_threshold(code: str, name: str) -> None:
    """Ratios, shares and multiples; a cosine, a slope or a logarithm may be below 0."""
    wanted = rf"'{name}' of {code} must be a finite number of 0 or more, got -0\.5"
    with pytest.raises(ValueError, match=wanted):
        diagnose(History(), select=["RES901"], thresholds={code: {name: -0.5}})
    assert RULES[code].with_overrides({name: 0.0}).thresholds[name] == 0


@pytest.mark.parametrize(
    ("code", "name"), [("RES101", "slope"), ("RES105", "offset"), ("RES206", "opposed")]
)
def test_what_can_be_negative_has_thresholds_on_both_sides(code: str, name: str) -> None:
    for value in (-0.5, 0.5):
        assert RULES[code].with_overrides({name: value}).thresholds[name] == value
    with pytest.raises(ValueError, match=f"'{name}' of {code} must be a finite number, got inf"):
        RULES[code].with_overrides({name: np.inf})


def test_thresholds_of_a_rule_have_names() -> None:
    wrong: Any = {"RES101": 3.0}
    with pytest.raises(ValueError, match=r"thresholds: 'RES101' must have names .*, got 3\.0"):
        diagnose(History(), thresholds=wrong)


def test_new_is_what_the_previous_diagnosis_did_not_hold() -> None:
    first = diagnose(drowned())
    assert first.findings[0].new
    assert first.findings[0].status == "new"
    again = diagnose(drowned(), previous=first)
    assert not again.findings[0].new
    assert {finding.status for finding in again.findings} == {"continuing"}
    assert diagnose(drowned(), previous=diagnose(healthy())).findings[0].new


def test_what_was_found_and_is_no_more_is_resolved() -> None:
    first = diagnose(drowned())
    after = diagnose(healthy(), previous=first)
    assert {finding.status for finding in after.findings} == {"resolved"}
    assert [f.where for f in after.resolved] == [("blocks.7",)]
    assert not after.standing
    assert after.count("info", "warning", "error") == 0
    later = diagnose(healthy(), previous=after)
    assert not later.resolved
    assert {(f.code, f.told) for f in later.findings} == {(f.code, True) for f in first.findings}


def found(code: str, where: str, first: int = 0, last: int = 9) -> Finding:
    return Finding(code, "", "warning", (where,), first, last, "")


def grouped(*findings: Finding) -> list[tuple[str, str] | None]:
    return [one.follows for one in group(findings, tuple(RULES.values()), chain(12))]


def test_grouping_follows_depth_and_time() -> None:
    root = found("RES101", "blocks.7")
    assert grouped(root, found("RES201", "model")) == [None, ("RES101", "blocks.7")]
    assert grouped(root, found("RES103", "blocks.9")) == [None, ("RES101", "blocks.7")]
    assert grouped(root, found("RES103", "blocks.3")) == [None, None]
    assert grouped(found("RES101", "blocks.7", 20, 30), found("RES201", "model")) == [None, None]
    assert grouped(found("RES101", "model"), found("RES201", "model")) == [
        ("RES201", "model"),
        None,
    ]
    assert grouped(root, found("RES901", "model")) == [None, None]


def test_what_was_there_before_the_first_step_follows_from_nothing_later() -> None:
    cause, early = found("RES401", "model", 2, 9), found("RES201", "model", 0, 9)
    assert grouped(cause, early) == [None, None]
    # Both are of training: the limit of the effect is lower, and is crossed first.
    assert grouped(cause, replace(early, first_step=1)) == [None, ("RES401", "model")]
    rules = tuple(RULES.values())
    both = [cause, early]  # RES401 could not look before: it may have begun by then
    assert group(both, rules, chain(12), since=[0, 0])[1].follows == ("RES401", "model")


def test_steps_too_large_that_end_in_nan_are_one_error() -> None:
    """Weights 4 times as large after the first step (a limit of 3), and a loss that is NaN."""
    history = make_history(np.tile(0.4 * law(chain(12)), (2, 1)), steps=(0, 1))
    add_updates(history, weight=np.array([[4.0], [16.0]]))
    add_facts(history, loss=np.array([2.0, np.nan]))
    judged = diagnose(history, select=["RES401", "RES902"])
    assert {(f.code, f.severity, f.follows is None) for f in judged.findings} == {
        ("RES401", "error", True),
        ("RES902", "error", False),
    }
    assert (judged.count("error"), judged.count("warning")) == (1, 0)


def test_a_finding_at_one_site_marks_that_site_alone() -> None:
    """Two sites a block: the branch of blocks.3/mlp is at r = 34, its neighbours are healthy."""
    sites = make_map(
        *(
            make_site(k, name=f"blocks.{k // 2}/{part}", module=f"blocks.{k // 2}", source=part)
            for k in range(16)
            for part in (("attn", "mlp")[k % 2],)
        )
    )
    r = np.full(16, 0.35)
    r[7] = 34
    history = make_history(np.tile(r, (7, 1)), steps=SPARSE, sites=sites)
    diagnosis = diagnose(history, select=["RES101"])
    assert [f.where for f in diagnosis.roots] == [("blocks.3/mlp",)]
    lines = console(history, diagnosis).splitlines()
    assert [line.split()[2] for line in lines if line.startswith("!")] == ["blocks.3/mlp"]


def test_what_a_branch_is_made_of_lies_in_its_site() -> None:
    """A frozen weight is in no site's parameters, so only its path tells."""
    sites = make_map(make_site(0, name="net.1/mlp", module="net.1", parameters=()))
    dead, frozen = found("RES103", "net.1/mlp"), found("RES104", "net.1.mlp.0.weight")
    (_, follows) = group([dead, frozen], tuple(RULES.values()), sites)
    assert follows.follows == ("RES103", "net.1/mlp")


def test_some_follow_only_at_the_same_sites() -> None:
    root = found("RES103", "blocks.3")
    assert grouped(root, found("RES104", "blocks.3.alpha")) == [None, ("RES103", "blocks.3")]
    assert grouped(root, found("RES104", "blocks.5.fc1")) == [None, None]
    assert grouped(root, found("RES104", "head")) == [None, None]
    unseen = found("RES901", "other.2")
    assert grouped(unseen, found("RES104", "other.2.fc1")) == [None, ("RES901", "other.2")]
    assert grouped(unseen, found("RES104", "other.20.fc1")) == [None, None]


@pytest.mark.parametrize(
    ("root", "child"),
    [("RES503", "RES201"), ("RES506", "RES205"), ("RES507", "RES504")],
)
def test_wiring_explains_what_the_stream_does(root: str, child: str) -> None:
    assert grouped(found(root, "blocks.3"), found(child, "model"))[1] == (root, "blocks.3")


@pytest.mark.parametrize(
    ("root", "child"),
    [("RES105", "RES205"), ("RES403", "RES402"), ("RES401", "RES902")],
)
def test_what_concerns_the_whole_explains_what_does(root: str, child: str) -> None:
    assert grouped(found(root, "model"), found(child, "model"))[1] == (root, "model")


def test_a_place_without_a_site_may_be_anywhere() -> None:
    """A block that lacks its addition is no site: what is dead before it follows from it too."""
    root = found("RES503", "other.5")
    assert grouped(root, found("RES103", "blocks.3")) == [None, ("RES503", "other.5")]
    assert grouped(root, found("RES402", "model")) == [None, ("RES503", "other.5")]
    assert grouped(found("RES503", "blocks.5"), found("RES103", "blocks.3")) == [None, None]


def test_gradient_findings_concern_the_whole_stream_whatever_they_name() -> None:
    spread = replace(found("RES301", "blocks.0"), where=("blocks.0", "blocks.1"))
    assert grouped(found("RES304", "blocks.7"), spread) == [None, ("RES304", "blocks.7")]
    assert grouped(found("RES302", "blocks.0"), spread)[1] == ("RES302", "blocks.0")


def test_of_two_that_could_explain_each_other_the_earlier_one_does() -> None:
    heat, large = found("RES401", "model"), found("RES101", "blocks.4")
    later = replace(large, first_step=heat.first_step + 1)
    assert grouped(heat, later) == [None, ("RES401", "model")]
    # In one step the branch was large before the update: a forward showed it.
    assert grouped(heat, large) == [("RES101", "blocks.4"), None]
    assert grouped(replace(heat, first_step=heat.first_step + 1), large)[1] is None


def test_a_loss_at_chance_and_a_collapse_each_explain_the_other() -> None:
    chance, collapse = found("RES001", "model", 10, 500), found("RES205", "model", 100, 500)
    assert grouped(chance, collapse) == [None, ("RES001", "model")]  # labels by chance, say
    assert grouped(chance, replace(collapse, first_step=0)) == [("RES205", "model"), None]


def test_rows_alike_in_a_net_that_hardly_moves() -> None:
    cold, alike = found("RES402", "model", 0, 900), found("RES205", "model", 500, 900)
    assert grouped(cold, alike) == [None, ("RES402", "model")]
    assert grouped(replace(cold, first_step=600), alike) == [("RES205", "model"), None]


def test_streams_do_not_explain_each_other() -> None:
    sites = make_map(*(make_site(k, stream=k % 2, depth=k // 2) for k in range(8)))
    findings = [found("RES101", "blocks.2"), found("RES103", "blocks.5")]
    assert [f.follows for f in group(findings, tuple(RULES.values()), sites)] == [None, None]


def test_an_unexpected_error_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(sites):  # type: ignore[no-untyped-def]
        raise RuntimeError("broken")
        yield

    monkeypatch.setattr("skipscope.diagnose.RULES", {"RES999": declared(broken)})
    with pytest.raises(RuntimeError, match="broken"):
        diagnose(healthy())


# --------------------------------------------------------------------------- how a rule is made


def declared(function, **gates) -> Rule:  # type: ignore[no-untyped-def]
    function.__doc__ = DOC
    return rule(code="RES999", name="test", **gates)(function)


def one_hit(branch_ratio, gate, *, above: float = 1.0):  # type: ignore[no-untyped-def]
    shown = branch_ratio.values > above
    for streak in gate.streaks(branch_ratio.steps, shown, branch_ratio.missing):
        where = (branch_ratio.columns[streak.column],)
        yield Hit(where, 0.0, "", "", *streak.steps)


def test_gates_of_a_whole_rule() -> None:
    history = add_facts(make_history(np.full((5, 4), 2.0)), lr=np.geomspace(1e-5, 1e-3, 5))
    add = {"history": history}
    from skipscope.rule.inputs import Inputs

    inputs = Inputs({}, add["history"])
    assert len(declared(one_hit).run(inputs)) == 4
    assert not declared(one_hit, patience=6).run(inputs)
    for gates, reason in (
        ({"needs_sites": 8}, "needs 8 sites in one stage, has 4"),
        ({"min_steps": 500}, "needs 500 steps, has 4"),
        ({"after_warmup": True}, "needs the end of warm-up, not reached at step 4"),
    ):
        with pytest.raises(NotMeasurable, match=reason):
            declared(one_hit, **gates).run(inputs)
    late = make_history(np.full((5, 4), 2.0), steps=range(5, 10))
    with pytest.raises(NotMeasurable, match="needs a capture of step 0 of a fresh run"):
        declared(one_hit, initial_only=True).run(Inputs({}, late))


def test_wrong_names_are_found_when_a_rule_is_declared() -> None:
    def wrong(branch_ration):  # type: ignore[no-untyped-def]
        yield

    def open_threshold(branch_ratio, *, above):  # type: ignore[no-untyped-def]
        yield

    def bare(branch_ratio):  # type: ignore[no-untyped-def]
        """No headings."""
        yield

    with pytest.raises(TypeError, match=r"branch_ration.*did you mean branch_ratio"):
        declared(wrong)
    with pytest.raises(TypeError, match="threshold 'above' has no default"):
        declared(open_threshold)
    with pytest.raises(ValueError, match="lacks the heading"):
        rule(code="RES999", name="test")(bare)


def test_a_rule_says_which_thresholds_have_a_sign() -> None:
    def below_zero(branch_ratio, *, opposed=-0.5):  # type: ignore[no-untyped-def]
        yield

    with pytest.raises(TypeError, match=r"threshold 'opposed' is -0\.5, so name it in signed"):
        declared(below_zero)
    with pytest.raises(TypeError, match="no threshold 'oposed' to be signed; did you mean opposed"):
        declared(below_zero, signed=("oposed",))
    assert declared(below_zero, signed=("opposed",)).thresholds == {"opposed": -0.5}


def test_either_skips_only_when_no_arm_can_look() -> None:
    def blind(reason: str):  # type: ignore[no-untyped-def]
        raise NotMeasurable(reason)
        yield

    assert list(either(blind("a"), iter(()))) == []
    with pytest.raises(NotMeasurable, match="a; b"):
        list(either(blind("a"), blind("b"), blind("a")))


@pytest.mark.parametrize(("r", "found"), [(17.1, 1), (3.0, 0)])
def test_arms_that_could_not_look_are_named_and_the_findings_stay(r: float, found: int) -> None:
    """Four blocks of GPT-2: two siblings are in reach, which tell of the gravest only."""
    sites = make_map(
        *(make_site(k, module=f"h.{k // 2}", source=f"net.py:{k % 2}") for k in range(8)),
        embedding_fed=True,
    )
    ratios = np.tile([0.14, 0.24, 0.12, 0.25, 0.11, r, 0.012, 0.029], (6, 1))
    told = diagnose(make_history(ratios, sites=sites), select=["RES101"])
    assert [one.where for one in told.findings] == [("blocks.5",)] * found
    assert [one.code for one in told.passed] == ["RES101"] * (1 - found)
    (part,) = told.in_part
    assert (part.code, part.name) == ("RES101", "branch-dominance")
    assert part.reason == "one site: needs 3 siblings within 6 places, has 2"
    assert not told.skipped


def test_what_an_arm_found_counts_although_no_arm_could_look_whole() -> None:
    """Four blocks of one branch: too few for the law of a stage, too."""
    history = make_history(np.tile([0.5, 0.4, 17.0, 0.02], (6, 1)))
    told = diagnose(history, select=["RES101"])
    assert [one.where for one in told.findings] == [("blocks.2",)]
    assert not told.skipped
    assert {one.reason.split(":")[0] for one in told.in_part} >= {"one site"}


def test_a_rule_that_looked_whole_is_in_no_part_and_one_that_could_not_is_skipped() -> None:
    r = np.full((6, 12), 0.2)
    assert not diagnose(make_history(r), select=["RES101"]).in_part
    none = diagnose(History(), select=["RES101"])
    assert not none.in_part
    assert none.skipped


@pytest.mark.parametrize("one", RULES.values(), ids=lambda one: one.code)
def test_every_rule_explains_itself(one: Rule) -> None:
    sections = rule_docs.sections(one.doc)
    assert all(sections.values())
    assert 1 <= len(one.advice) <= 3
    lines = rule_docs.bullets(sections["Thresholds"])
    assert [line.split(":")[0] for line in lines] == list(one.thresholds)
    assert one.code in one.explain()
    rooms = Path(rules_package.__file__).parents[1]
    source = (rooms / "remedies" / "__init__.py").read_text("utf-8")
    remedies = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert set(re.findall(r"skipscope\.remedies\.(\w+)", one.doc)) <= remedies  # none is invented


def test_a_rule_is_one_file_and_one_line() -> None:
    folder = Path(rules_package.__file__).parent
    files = sorted(path.stem for path in folder.glob("res*.py"))
    assert sorted(code.lower() for code in RULES) == files
    for path in folder.glob("res*.py"):
        imported = [n.module for n in ast.walk(ast.parse(path.read_text()))
                    if isinstance(n, ast.ImportFrom)]  # fmt: skip
        assert not [name for name in imported if name and name.startswith("skipscope.rules")]


NEW_RULE = """
from skipscope.rule import Hit, rule


@rule(code="RES999", name="every-site", severity="info")
def every_site(branch_ratio):
    '''%s'''
    yield Hit(branch_ratio.columns, 1.0, "", "new", 0, 0)
"""

RUN_IT = """
from tests.offline.builders import make_history
from skipscope.diagnose import diagnose
print([f.where for f in diagnose(make_history([[0.3, 0.2]]), select=["RES999"]).findings])
"""


def test_a_rule_added_as_one_file_and_one_line_runs(tmp_path: Path) -> None:
    package = Path(rules_package.__file__).parents[1]
    copy = shutil.copytree(package, tmp_path / "skipscope")
    (copy / "rules" / "res999.py").write_text(NEW_RULE % DOC)
    table = copy / "rules" / "__init__.py"
    line = '    "res901",'
    table.write_text(table.read_text().replace(line, f'    "res999",\n{line}'))
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", RUN_IT],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[('blocks.0', 'blocks.1')]", done.stderr


# --------------------------------------------------------------------- warm-up, blocks, stages


def lr_table(values):  # type: ignore[no-untyped-def]
    return add_facts(History(), lr=np.asarray(values, float)[:, None]).table("lr")


def test_warmup() -> None:
    from tests.offline.builders import make_group

    constant = lr_table(np.full(30, 1e-3))
    assert warmup(constant, None, ()) == Warmup(0, 29)
    assert warmup(lr_table(np.full(9, 1e-3)), None, ()).end is None
    ramp = np.minimum(np.arange(1, 301) / 100, 1) * 1e-3
    assert 99 <= (warmup(lr_table(ramp), None, ()).end or 0) <= 111
    slow = np.minimum(np.arange(1, 4001) / 3000, 1) * 1e-3  # under 1 % in 10 steps from 1000 on
    group_of = make_group(0, initial_lr=1e-3)
    assert 1000 <= (warmup(lr_table(slow), None, ()).end or 0) <= 1012
    assert 1495 <= (warmup(lr_table(slow), None, (group_of,)).end or 0) <= 1505
    decayed = 1e-3 * np.cos(np.linspace(0, 1.5, 200))
    assert warmup(lr_table(decayed), None, (make_group(0, initial_lr=1e-3),)).end == 0
    restart = np.concatenate([np.full(50, 1e-3), np.linspace(1e-4, 1e-3, 50)])
    assert warmup(lr_table(restart), None, ()).end == 0


def test_a_constant_learning_rate_is_not_called_a_warmup() -> None:
    """After 8 steps nobody knows yet; after 10 it is told. A rate that rises is a warm-up."""
    with pytest.raises(NotMeasurable, match=r"needs 10 steps, to tell that .* warm up, has 8"):
        after_warmup(warmup(lr_table([0.1] * 8), None, ()))
    assert after_warmup(warmup(lr_table([0.1] * 10), None, ())) == 0
    with pytest.raises(NotMeasurable, match="needs the end of warm-up, not reached at step 7"):
        after_warmup(warmup(lr_table(np.arange(1, 9) / 10), None, ()))


def test_blocks_and_exempt_sites() -> None:
    paths = ("enc.block.0.layer.0", "enc.block.0.layer.1", "enc.block.1.layer.0")
    sites = make_map(*(make_site(k, module=path) for k, path in enumerate(paths)),
                     embedding_fed=True)  # fmt: skip
    assert list(blocks(sites.sites).values()) == ["enc.block.0", "enc.block.0", "enc.block.1"]
    assert stages(sites)[0].exempt == {0, 1}
    shared = make_map(
        *(
            make_site(k, module="layer", source=f"n.py:{k % 2}", occurrence=k // 2)
            for k in range(4)
        ),
        embedding_fed=True,
    )
    assert stages(shared)[0].exempt == {0, 1}
    assert stages(staged(3, 3))[1].exempt == {3}
    two = make_map(*(make_site(k, stream=k // 2, module=f"{'ab'[k // 2]}.{k}") for k in range(4)))
    assert [stage.where for stage in stages(two)] == ["a", "b"]


def test_a_note_hides_no_warning() -> None:
    """An explanation that is only a note leaves a warning where it is."""
    names = {"explains": ("RES201",), "explains_here": (), "explains_overall": ()}
    note, warning = (
        Finding(code, "name", severity, ("blocks.0",), 0, 9, "message")
        for code, severity in (("RES103", "info"), ("RES201", "warning"))
    )
    rules = [replace(RULES["RES103"], **names), RULES["RES201"]]
    sites = make_map(make_site(0))
    assert all(finding.follows is None for finding in group([note, warning], rules, sites))
    heavy = replace(note, severity="warning")
    (_, follows) = group([heavy, warning], rules, sites)
    assert follows.follows == ("RES103", "blocks.0")


def test_two_in_one_step_that_explain_each_other_have_one_root() -> None:
    """Of two about a whole model in one step the first in the table is the root."""
    collapse, heat = (
        Finding(code, "name", "error", (where,), 3, 9, "message")
        for code, where in (("RES302", "blocks"), ("RES401", "model"))
    )
    rules = [RULES["RES302"], RULES["RES401"]]
    for findings, root in (
        ([collapse, heat], "RES302"),
        ([collapse, replace(heat, first_step=2)], "RES401"),
        ([replace(collapse, first_step=2), heat], "RES302"),
    ):
        roots = [f.code for f in group(findings, rules, make_map()) if f.follows is None]
        assert roots == [root]
