"""Two runs side by side, each number worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from skipscope.comparison import compare
from skipscope.comparison.records import ComparisonNumbers, FindingPair, Pair
from skipscope.comparison.sites import correspond
from skipscope.history import History
from skipscope.records import Diagnosis, Passed, Run, Skipped
from skipscope.reports import console
from tests.offline.builders import (
    add_facts,
    add_updates,
    make_group,
    make_history,
    make_map,
    make_parameter,
    make_site,
)
from tests.offline.report_values import DOMINANT, FOLLOWER, NOTE

STEPS = (0, 1, 2, 4, 8)


def run(
    r: Any, run_id: str = "a", *, steps: Any = STEPS, sites: Any = None, **options: Any
) -> History:
    """A run whose r is the same at each capture."""
    rows = np.stack([np.asarray(r, float)] * len(steps))
    history = make_history(rows, steps=steps, sites=sites, run=Run(run_id=run_id, model="Net"))
    return add_updates(history, groups=(make_group(**options),))


def numbers(a: History, b: History, **settings: Any) -> ComparisonNumbers:
    settings.setdefault("diagnoses", (Diagnosis(), Diagnosis()))
    return compare(a, b, **settings).numbers


def row(found: ComparisonNumbers, start: str) -> Pair:
    return next(pair for pair in found.training if pair.what.startswith(start))


# -------------------------------------------------------------------------- along depth


def test_profile_and_depth_numbers() -> None:
    """r .75 and c 0: growth 1.25 a site; r 0: 1. Two sites."""
    found = numbers(run([0.75, 0.75]), run([0.0, 0.75], "b"))
    (stream,) = found.streams
    assert (stream.match, stream.sites_a, stream.sites_b) == ("name", 2, 2)
    first, second = stream.sites
    assert first.numbers == (
        Pair("branch_ratio", 0.75, 0.0),
        Pair("rms_sum", 1.25, 1.0),
        Pair("growth", 1.25, 1.0),
        Pair("gradient_gain", 1.25, 1.0),
    )
    assert second.numbers[1] == Pair("rms_sum", 1.5625, 1.25)
    assert found.last == (8, 8)
    assert found.first == (0, 0)
    for held in (stream.start, stream.now):
        depth = {pair.what: (pair.a, pair.b) for pair in held}
        assert depth["total_growth"] == pytest.approx((1.5625, 1.25))
        assert depth["residual_budget"] == pytest.approx((math.log(1.5625),) * 2)
        assert depth["depth_multiplier"] == pytest.approx((1.5625, 1.25))
        assert depth["depth_factor"] == pytest.approx((1.25, math.sqrt(1.25)))
        assert depth["gradient_ratio"] == pytest.approx((1.25, 1.25))


def test_the_profile_is_of_the_last_step_that_both_captured() -> None:
    """Until step 2 r is .5 in both; A is captured until 4, B until 8."""
    a = make_history(np.array([[0.5] * 3] * 3 + [[0.9] * 3]), steps=[0, 1, 2, 4], run=Run("a"))
    b = make_history(np.array([[0.5] * 3] * 3 + [[0.1] * 3]), steps=[0, 1, 2, 8], run=Run("b"))
    found = numbers(a, b)
    assert found.last == (2, 2)
    assert [pair.numbers[0] for pair in found.streams[0].sites] == [
        Pair("branch_ratio", 0.5, 0.5)
    ] * 3
    (note,) = found.notes
    assert note.startswith("A was captured until step 4, B until step 8: the profile is of step 2,")


def test_no_common_step_is_said() -> None:
    found = numbers(run([0.5] * 3, steps=[0, 2]), run([0.25] * 3, "b", steps=[1, 3]))
    assert (found.first, found.last) == (None, (2, 3))
    assert found.streams[0].sites[0].numbers[0] == Pair("branch_ratio", 0.5, 0.25)
    assert "no step was captured in both" in found.notes[0]


def test_what_was_not_measured_is_none_and_nan_is_a_result() -> None:
    have = np.full((1, 3), 31)
    have[0, 1] = 0
    a = make_history([[0.5, 0.5, 0.5]], have=have)
    b = make_history([[0.5, 0.5, 0.5]], ff=[[1.0, np.nan, np.inf]])
    found = numbers(a, b)
    pair = found.streams[0].sites[1].numbers[0]
    assert pair.a is None
    assert pair.b is not None
    assert math.isnan(pair.b)
    text = compare(a, b).report()
    assert "NaN" in text
    json.loads(compare(a, b).report("json"))


# -------------------------------------------------------------------------- which sites


def sites(count: int, prefix: str = "blocks.", left_out: int | None = None) -> tuple[Any, ...]:
    made = [make_site(k, name=f"{prefix}{k}", module=f"{prefix}{k}") for k in range(count)]
    kept = [one for k, one in enumerate(made) if k != left_out]
    return tuple(replace(one, index=k, depth=k) for k, one in enumerate(kept))


def test_one_site_fewer_is_matched_by_name() -> None:
    match, why, places = correspond(sites(12), sites(12, left_out=5))
    assert (match, why) == ("name", "")
    assert places == tuple((k, k if k < 5 else k - 1) for k in range(12) if k != 5)


def test_other_names_are_matched_by_position() -> None:
    match, why, places = correspond(sites(4), sites(4, "layers."))
    assert (match, why) == ("position", "names differ")
    assert places == ((0, 0), (1, 1), (2, 2), (3, 3))


@pytest.mark.parametrize(
    ("a", "b", "places"),
    [
        (4, 10, ((0, 0), (1, 3), (2, 6), (3, 9))),
        (10, 4, ((0, 0), (3, 1), (6, 2), (9, 3))),
        (1, 5, ((0, 0),)),
    ],
)
def test_other_depths_are_matched_by_relative_depth(
    a: int, b: int, places: tuple[tuple[int, int], ...]
) -> None:
    """blocks.3 is the last of four and the fourth of ten: a name does not make them one."""
    assert correspond(sites(a), sites(b)) == ("relative depth", f"{a} and {b} sites", places)


def test_runs_of_other_depth_say_how_they_were_matched() -> None:
    text = str(compare(run([0.5] * 4), run([0.5] * 10, "b")))
    assert "4 and 10, matched by relative depth (4 and 10 sites)" in text
    assert "6 sites of B without a counterpart" in text
    assert "depth depth site" in text


def test_streams_that_one_run_alone_has() -> None:
    two = make_map(*(make_site(k, stream=k // 3, depth=k % 3) for k in range(6)))
    found = numbers(run([0.5] * 3), run([0.5] * 6, "b", sites=two))
    assert found.alone == ("stream 1 of B (3 sites)",)
    assert len(found.streams) == 1


def test_streams_without_a_counterpart_have_a_heading_of_their_own() -> None:
    """Beside a plain net no stream has one, and what stands before is the table of losses."""
    plain = History(Run(run_id="plain"))
    plain.append_capture(0, np.zeros((0, 30)), np.zeros(0), np.zeros(0))
    lines = str(compare(run([0.5] * 3), plain)).splitlines()
    (at,) = [k for k, line in enumerate(lines) if line.startswith("alone ")]
    assert lines[at] == "alone      stream 0 of A (3 sites)"
    assert lines[at - 1] == "Streams without a counterpart"


def test_a_plain_net_has_no_profile_and_the_rest_compares() -> None:
    plain = History(Run(run_id="plain"))
    plain.append_capture(0, np.zeros((0, 30)), np.zeros(0), np.zeros(0))
    add_facts(plain, loss=[2.0, 1.0])
    residual = add_facts(run([0.5] * 3), loss=[2.0, 0.5])
    found = numbers(plain, residual)
    assert found.notes == ("A has no residual additions: no profile to compare",)
    assert (found.first, found.last, found.streams) == (None, None, ())
    assert row(found, "loss at step 1") == Pair("loss at step 1", 1.0, 0.5)
    assert "no profile to compare" in str(compare(plain, residual))


# -------------------------------------------------------------------------- findings


def told(*findings: Any, passed: str = "", skipped: str = "") -> Diagnosis:
    return Diagnosis(
        findings,
        (Passed(passed, "some-rule"),) if passed else (),
        (Skipped(skipped, "some-rule", "needs 8 sites"),) if skipped else (),
    )


def changes(a: Diagnosis, b: Diagnosis, **settings: Any) -> list[tuple[str, str, str]]:
    found = numbers(run([0.5] * 3), run([0.5] * 3, "b"), diagnoses=(a, b), **settings)
    return [(one.change, one.code, one.other) for one in found.findings]


def test_gained_lost_and_kept() -> None:
    assert changes(
        told(DOMINANT, NOTE, passed="RES201"), told(FOLLOWER, NOTE, skipped="RES101")
    ) == [
        ("gained", "RES201", "passed there"),
        ("lost", "RES101", "could not look there: needs 8 sites"),
        ("kept", "RES504", ""),
    ]


def test_one_rule_at_another_place_is_not_the_same_finding() -> None:
    elsewhere = replace(DOMINANT, where=("blocks.0",))
    assert changes(told(DOMINANT), told(elsewhere)) == [
        ("gained", "RES101", "found at blocks.2 there"),
        ("lost", "RES101", "found at blocks.0 there"),
    ]


def test_places_that_overlap_are_the_same_finding_and_a_severity_may_change() -> None:
    wider = replace(DOMINANT, where=("blocks.1", "blocks.2"), severity="error")
    (pair,) = numbers(
        run([0.5] * 3), run([0.5] * 3, "b"), diagnoses=(told(DOMINANT), told(wider))
    ).findings
    assert (pair.change, pair.severity_a, pair.severity_b) == ("kept", "warning", "error")
    assert pair.where_b == ("blocks.1", "blocks.2")


def test_where_names_do_not_compare_the_rule_does() -> None:
    elsewhere = replace(DOMINANT, where=("blocks.7",))
    a, b = run([0.5] * 4), run([0.5] * 10, "b")
    (pair,) = numbers(a, b, diagnoses=(told(DOMINANT), told(elsewhere))).findings
    assert (pair.change, pair.where_a, pair.where_b) == ("kept", ("blocks.2",), ("blocks.7",))


def test_what_has_ended_does_not_stand() -> None:
    ended = replace(DOMINANT, status="resolved")
    assert changes(told(DOMINANT), told(ended)) == [("lost", "RES101", "has ended there")]
    assert changes(told(ended), told(ended)) == []


def test_the_rules_are_asked_where_nobody_said() -> None:
    """One branch of twelve at r 34: RES101 in B alone."""
    healthy, sick = np.full(12, 0.35), np.full(12, 0.35)
    sick[5] = 34.0
    found = compare(run(healthy), run(sick, "b")).numbers.findings
    pair: FindingPair = next(one for one in found if one.code == "RES101")
    assert (pair.change, pair.where_b, pair.other) == ("gained", ("blocks.5",), "passed there")


# -------------------------------------------------------------------------- training


def test_losses_at_equal_steps() -> None:
    a = add_facts(run([0.5] * 3), loss=[4.0, 3.0, 2.0, 2.5])
    b = add_facts(run([0.5] * 3, "b"), loss=[4.0, 1.0, 3.5, 3.0, 0.5, 0.75])
    found = numbers(a, b)
    assert found.common_step == 3
    assert row(found, "first loss") == Pair("first loss", 4.0, 4.0)
    assert row(found, "loss at step 3") == Pair("loss at step 3", 2.5, 3.0)
    assert row(found, "best loss up to") == Pair("best loss up to step 3", 2.0, 1.0, 2, 1)
    assert row(found, "last loss") == Pair("last loss", 2.5, 0.75, 3, 5)
    assert row(found, "best loss") in found.training
    assert Pair("best loss", 2.0, 0.5, 2, 4) in found.training
    text = " ".join(str(compare(a, b)).split())
    assert "A ends at step 3, B at step 5: equal steps end at step 3" in text


def test_watched_steps_are_those_that_the_report_counts() -> None:
    """Of steps 0 to 4 updates were looked at in three: NaN where they were not."""
    a = add_facts(run([0.5] * 3), skipped=[0, 0, math.nan, math.nan, 0])
    b = add_facts(run([0.5] * 3, "b"), skipped=[0, 1, math.nan, math.nan, math.nan])
    assert (numbers(a, b).a.steps, numbers(a, b).b.steps) == (3, 2)
    text = " ".join(str(compare(a, b)).split())
    assert "3 watched steps" in text
    assert "equal steps end" not in text  # both end at step 4
    assert "0 of 3 watched steps skipped" in " ".join(console(a, Diagnosis()).split())


def test_the_last_tenth_has_a_median() -> None:
    """Steps 0 to 40; those above 36: 10, 1, 1, 1 and 1, 2, 3, 4."""
    late = np.ones(41)
    late[37] = 10.0
    a = add_facts(run([0.5] * 3), loss=late)
    rising = np.full(41, 9.0)
    rising[37:] = [1, 2, 3, 4]
    b = add_facts(run([0.5] * 3, "b"), loss=rising)
    assert row(numbers(a, b), "median loss") == Pair("median loss, last tenth up to 40", 1.0, 2.5)


def test_a_loss_that_broke() -> None:
    a = add_facts(run([0.5] * 3), loss=[2.0, 1.0, 1.5])
    b = add_facts(run([0.5] * 3, "b"), loss=[2.0, math.inf, math.nan])
    found = numbers(a, b)
    assert row(found, "loss not finite") == Pair("loss not finite from step", None, 1.0)
    assert row(found, "best loss").b == 2.0


def test_no_loss_in_common() -> None:
    a = add_facts(run([0.5] * 3), loss=[2.0, 1.0], steps=[0, 1])
    b = add_facts(run([0.5] * 3, "b"), loss=[2.0, 1.0], steps=[5, 6])
    found = numbers(a, b)
    assert found.common_step is None
    assert row(found, "last loss") == Pair("last loss", 1.0, 1.0, 1, 6)
    assert "nothing is compared at equal steps" in " ".join(str(compare(a, b)).split())


def test_learning_rates_and_updates() -> None:
    a = add_facts(run([0.5] * 3), lr=[1e-3, 4e-3, 2e-3])
    b = add_facts(run([0.5] * 3, "b"), lr=[1e-2, 1e-2, 1e-2])
    found = numbers(a, b)
    assert row(found, "lr, first") == Pair("lr, first", 1e-3, 1e-2)
    assert row(found, "lr, highest") == Pair("lr, highest", 4e-3, 1e-2)
    assert row(found, "lr, last") == Pair("lr, last", 2e-3, 1e-2)
    assert row(found, "median dW/W").a == pytest.approx(1e-3)


def test_gradients_and_updates_of_the_first_and_the_last_block() -> None:
    a = add_updates(make_history([[0.5] * 3]), gradient=[[2.0, 1.0, 0.5]], ratio=[[1, 2, 3]])
    b = add_updates(make_history([[0.5] * 3]), gradient=[[1.0, 9.0, 4.0]], ratio=[[4, 5, 6]])
    found = numbers(a, b)
    assert row(found, "gradient, first / last") == Pair(
        "gradient, first / last block, step 0", pytest.approx(4.0), pytest.approx(0.25)
    )
    assert row(found, "dW/W of the last") == Pair(
        "dW/W of the last block, step 0", pytest.approx(3.0), pytest.approx(6.0)
    )


def test_a_plain_run_takes_the_blocks_of_the_other_by_name() -> None:
    """|g| of both matrices of a block together: 5 of 3 and 4; 2.5 of 1.5 and 2."""
    names = [f"blocks.{block}.{matrix}.weight" for block in (0, 1) for matrix in (1, 2)]
    both = tuple(
        make_parameter(k, name=name, block=name[:8], sites=(k // 2,))
        for k, name in enumerate(names)
    )
    none = tuple(replace(one, block="", sites=()) for one in both)
    residual = add_updates(make_history([[0.5] * 2]), gradient=[[1.0] * 4], parameters=both)
    gradient = [[3.0, 4.0, 1.5, 2.0]]
    plain = add_updates(
        History(), gradient=gradient, ratio=[[2, 2, 6, 6]], parameters=none, steps=[0]
    )
    for found in (numbers(plain, residual), numbers(residual, plain)):
        pair = row(found, "gradient, first / last")
        assert sorted((pair.a or 0, pair.b or 0)) == pytest.approx([1.0, 2.0])
    found = numbers(plain, residual)
    assert row(found, "dW/W of the first").a == pytest.approx(2.0)
    assert row(found, "dW/W of the last").a == pytest.approx(6.0)
    # names that no block of the other has: nothing to hold against each other
    apart = tuple(replace(one, name=f"net.{one.name}") for one in none)
    alone = add_updates(History(), gradient=gradient, parameters=apart, steps=[0])
    assert row(numbers(alone, residual), "gradient, first / last").a is None


# -------------------------------------------------------------------------- what was set


def test_differences() -> None:
    a = run([0.5] * 3, lr=1e-3, betas=0.9)
    b = run([0.5] * 3, "b", lr=1e-2)
    b.set_run(Run(run_id="b", model="Other", preset="debug", rules={"ignore": '["RES1"]'}))
    found = {one.what: (one.a, one.b) for one in numbers(a, b).differences}
    assert found == {
        "model": ("Net", "Other"),
        "preset": ("train", "debug"),
        "rules: ignore": ("-", '["RES1"]'),
        "lr": ("0.001", "0.01"),
        "betas": ("0.9", "-"),
    }


def test_differences_of_the_build() -> None:
    other = make_map(*(make_site(k, norm_placement="post-norm", alpha=0.5) for k in range(4)))
    found = {
        one.what: (one.a, one.b)
        for one in numbers(run([0.5] * 3), run([0.5] * 4, "b", sites=other)).differences
    }
    assert found == {
        "sites": ("3", "4"),
        "norms": ("pre-norm", "post-norm"),
        "alpha of the sums": ("1", "0.5"),
        "trained elements": ("768", "1024"),
    }


def test_matrices_that_start_at_another_size() -> None:
    """4 and 1, 4 and 0 (a zero start); 4 and 4.2 is another draw."""
    a = add_updates(make_history([[0.5] * 3]), weight=[[4.0, 4.0, 4.0]])
    b = add_updates(make_history([[0.5] * 3]), weight=[[1.0, 0.0, 4.2]])
    found = {one.what: (one.a, one.b) for one in numbers(a, b).differences}
    assert found == {"matrices start at": ("x1", "x0.125 (median) in 2 of 3")}


def test_one_run_twice() -> None:
    history = add_facts(run([0.5] * 12), loss=[2.0, 1.0])
    made = compare(history, history)
    assert made.numbers.notes == ("A and B are one run",)
    assert made.numbers.differences == ()
    assert {one.change for one in made.numbers.findings} <= {"kept"}
    assert all(pair.a == pair.b for pair in made.numbers.training)
    for site in made.numbers.streams[0].sites:
        assert all(pair.a == pair.b for pair in site.numbers)


def test_two_empty_histories() -> None:
    assert "no profile to compare" in str(compare(History(), History()))
    assert compare(History(), History()).report("markdown")


# -------------------------------------------------------------------------- pages


@pytest.mark.parametrize("width", [70, 80, 120])
def test_a_page_keeps_its_width(width: int) -> None:
    names = tuple(
        make_site(k, name=f"model.backbone.encoder.layers.{k}.attention.output") for k in range(12)
    )
    a = add_facts(run(np.full(12, 0.5), sites=make_map(*names)), loss=[1.0, 0.5])
    b = add_facts(run(np.full(12, 3e4), "b", sites=make_map(*names)), loss=[1.0, 1e9])
    text = compare(a, b, names=("lightning_logs/version_0", "elsewhere")).report(width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "output" in text


def test_a_deep_net_shows_a_choice_and_json_all() -> None:
    a, b = run(np.full(120, 0.1)), run(np.full(120, 0.1), "b")
    made = compare(a, b)
    text = made.report(unicode=False)
    assert text.isascii()
    assert "80 pairs between them left out" in " ".join(text.split())
    assert text.count("blocks.") < 60
    read = json.loads(made.report("json"))
    assert read["schema"] == "skipscope-comparison/1"
    assert len(read["streams"][0]["sites"]) == 120
    assert made.report("markdown").count("`blocks.") == 120


def test_what_is_given_wrongly_is_named() -> None:
    for given, name in ((("a", History()), "a"), ((History(), "a"), "b")):
        with pytest.raises(TypeError, match=f"compare: {name} must be a History, got 'a'; give"):
            compare(*given)  # type: ignore[arg-type]
    for names in (("a",), "ab", ("a", "b", "c")):
        with pytest.raises(ValueError, match="compare: names are two, of a and of b, got"):
            compare(History(), History(), names=names)  # type: ignore[arg-type]


def test_no_such_form() -> None:
    with pytest.raises(ValueError, match="no form 'html'"):
        compare(History(), History()).report("html")
