"""Each criterion of each link, on either side of its limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from skipscope.evidence.link import Pair, at_least, at_most, points, times
from skipscope.evidence.links import LINKS
from skipscope.evidence.outcome import ArmFacts, Cell, Evidence, Outcome, Reading
from skipscope.evidence.verdict import Answer, Check
from tests.evidence.values import changed, pair_of, run

INF, NAN = math.inf, math.nan
SHOWN, FAILED, ABSENT = "shown", "not shown", "not applicable"
IDLE = ArmFacts("idle", "alpha = 0", "idle", "pair", "shortcut and alpha")


def ask(number: int, evidence: Evidence) -> Answer:
    """One link's answer about arms p (plain) and q (residual)."""
    arms = {arm.name: arm for arm in evidence.arms}
    return LINKS[number - 1].ask(Pair(evidence, arms["p"], arms["q"]))


def check(answer: Answer, start: str) -> Check:
    return next(one for one in answer.checks if one.what.startswith(start))


def failed(answer: Answer) -> list[str]:
    """What is not met, and the reason names each of these."""
    missed = [one for one in answer.checks if not one.met]
    assert all(one.text in answer.reason for one in missed)
    return [one.what for one in missed]


def test_the_links_stand_in_the_order_of_the_argument() -> None:
    assert [kind.name for kind in LINKS] == [
        "controlled", "plain degrades", "residual holds", "early signal recovers",
        "scales interpretable", "initialisation ablation agrees", "best learning rate",
    ]  # fmt: skip
    assert all(kind.claim and kind.criterion for kind in LINKS)


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (at_least("error", 4.97, 5.0, points(0.0497), "5 points"), ("+4.97 points", ">= 5 points")),
        (at_least("error", 5.03, 5.0, points(0.0503), "5 points"), ("+5.0 points", ">= 5 points")),
        (at_least("loss", 9.996, 10.0, times(9.996), "x10"), ("x9.996", ">= x10")),
        (at_most("loss", 0.098, 0.096, "0.10", "0.10"), ("0.10", "<= 0.096")),
        (at_most("loss", 0.1004, 0.0998, "0.10", "0.10"), ("0.1004", "<= 0.10")),
        (at_most("loss", INF, 0.096, "diverged", "0.10"), ("diverged", "<= 0.10")),
    ],
)
def test_what_misses_its_limit_misses_it_as_printed(check: Check, told: tuple[str, str]) -> None:
    """4.97 to a tenth is 5.0, which would meet a limit of 5."""
    assert (check.text, check.limit) == told


def test_counts_that_miss_their_limit_miss_it_as_printed() -> None:
    """1005 of 100000 more: 1.005 % of the larger one is .995 %; of 1015 it is 1.0048 %."""
    more = changed(EQUAL, of("q"), parameters=101_015)
    answer = ask(1, changed(more, of("p"), parameters=100_000))
    assert check(answer, "parameters").text.startswith("1.005 % (")


# ---------------------------------------------------------------------------- 1 controlled

EQUAL = pair_of({10: [0.1, 0.0, 0.1, 0.0]}, {10: [0.1, 0.0, 0.1, 0.0]})


def of(arm: str, seed: int | None = None) -> Callable[[Cell], bool]:
    return lambda cell: cell.arm == arm and seed in (None, cell.seed)


def test_equal_arms_are_controlled() -> None:
    answer = ask(1, EQUAL)
    assert answer.state == SHOWN
    assert answer.reason.startswith("2 pairs of runs")
    assert answer.notes == ()


@pytest.mark.parametrize("field", ["parameters", "parameters_with_gradient"])
@pytest.mark.parametrize(
    ("count", "state"),
    [(10_000, SHOWN), (10_101, SHOWN), (10_102, FAILED), (9_900, SHOWN), (9_899, FAILED)],
)
def test_counts_within_one_percent(field: str, count: int, state: str) -> None:
    """101 of 10,101 is 0.99990 %, 102 of 10,102 is 1.00970 %; 100 of 10,000 is 1 %."""
    answer = ask(1, changed(EQUAL, of("q", 1), **{field: count}))
    assert answer.state == state
    if count != 10_000:  # what differs is printed, whether or not it may
        assert f"{count:,}" in " ".join([answer.reason, *answer.notes])


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"steps": 329}, "steps"),
        ({"steps": 331}, "steps"),
        ({"batches": "another order"}, "order of the samples"),
        ({"optimizer": "Adam"}, "optimizer"),
    ],
)
def test_the_budget_is_equal(values: Mapping[str, Any], what: str) -> None:
    answer = ask(1, changed(EQUAL, of("q", 0), **values))
    assert answer.state == FAILED
    assert failed(answer) == [what]


def test_a_run_that_diverged_may_end_early_and_no_other() -> None:
    lost = {"steps": 12, "batches": "of 12 steps", "finite": False, "train_loss": INF}
    assert ask(1, changed(EQUAL, of("q", 0), **lost)).state == SHOWN
    assert ask(1, changed(EQUAL, of("q", 0), **{**lost, "steps": 331})).state == FAILED
    assert ask(1, changed(EQUAL, of("q", 0), **{**lost, "steps": 330})).state == FAILED


def test_arms_that_differ_in_the_shortcut_alone_start_from_the_same_weights() -> None:
    assert "same budget, rates and initial weights" in ask(1, EQUAL).reason
    answer = ask(1, changed(EQUAL, of("q", 1), weights="others"))
    assert answer.state == FAILED
    told = "initial weights: p-d010-s1-lr0.01 drawn 10 1, q-d010-s1-lr0.01 others, needs equal"
    assert answer.reason == told


def test_arms_that_differ_in_more_may_start_from_others_and_it_is_told() -> None:
    plain, other = EQUAL.arms
    more = replace(EQUAL, arms=(plain, replace(other, differs="shortcut and width")))
    same = "initial weights, as they were drawn: equal"
    assert same in ask(1, more).notes
    answer = ask(1, changed(more, of("q", 1), weights="others"))
    assert answer.state == SHOWN
    assert "initial weights, as they were drawn: differ in 1 of 2 pairs" in answer.notes


def test_weights_that_were_not_recorded_are_told_of() -> None:
    answer = ask(1, changed(EQUAL, of("q", 1), weights=""))
    assert answer.state == SHOWN  # of the other pair
    assert answer.notes == ("initial weights: not recorded in 1 of 2 pairs",)
    answer = ask(1, changed(EQUAL, lambda cell: True, weights=""))
    assert (answer.state, answer.notes) == (
        SHOWN, ("initial weights: not recorded in 2 of 2 pairs",)
    )  # fmt: skip
    assert "initial weights" not in answer.reason


@pytest.mark.parametrize("alone", [run("p", 20), run("q", 10, 7), run("q", 10, 0, lr=0.1)])
def test_each_run_has_a_partner(alone: Outcome) -> None:
    answer = ask(1, replace(EQUAL, outcomes=(*EQUAL.outcomes, alone)))
    assert answer.state == FAILED
    assert f"{alone.cell.arm} at depth {alone.cell.depth}" in answer.reason


def test_an_arm_without_runs_is_no_control() -> None:
    answer = ask(1, pair_of({}, {10: [0.1, 0.0]}))
    assert (answer.state, answer.reason) == (ABSENT, "p has no runs")


# ------------------------------------------------------------------------ 2 plain degrades


@pytest.mark.parametrize(
    ("deep", "state", "missed"),
    [
        ([0.20, 0.15, 0.20, 0.15], SHOWN, ""),  # 5.0 points, x2
        ([0.20, 0.15, 0.20, 0.1499], FAILED, "training error"),  # in every seed
        ([0.1999, 0.15, 0.1999, 0.15], FAILED, "median training loss"),
        ([INF, 0.15, INF, 0.15], SHOWN, ""),  # its error counts as 1
        ([0.20, 0.15, INF, 0.0], SHOWN, ""),
    ],
)
def test_degradation_of_error_and_loss(deep: list[float], state: str, missed: str) -> None:
    answer = ask(2, pair_of({10: [0.1, 0.10, 0.1, 0.10], 50: deep}, {}))
    assert answer.state == state
    assert [what.startswith(missed) for what in failed(answer)] == [True] * bool(missed)


@pytest.mark.parametrize(
    ("losses", "rho", "state"),
    [
        # Depth ranks 1 2 3 4 5; 1 - 6 * sum d^2 / 120.
        ((0.1, 0.2, 0.4, 0.3, 0.6), 0.9, SHOWN),  # sum d^2 = 2
        ((0.1, 0.3, 0.2, 0.6, 0.5), 0.8, SHOWN),  # 4
        ((0.1, 0.4, 0.2, 0.3, 0.6), 0.7, FAILED),  # 6
        ((0.1, 0.101, 0.102, 0.1, 0.6), math.sqrt(0.5), FAILED),  # four tie: 2.5 each
    ],
)
def test_degradation_goes_along_depth(losses: Sequence[float], rho: float, state: str) -> None:
    """Ranks 2.5 2.5 2.5 2.5 5: products (1-3)(-.5)..., 5 / sqrt(10 * 5)."""
    by_depth = {10 * (k + 1): [loss, 0.1 * (k + 1)] for k, loss in enumerate(losses)}
    answer = ask(2, pair_of(by_depth, {}))
    assert check(answer, "rank correlation").value == pytest.approx(rho)
    assert answer.state == state


def test_onset_and_divergence_are_told() -> None:
    answer = ask(2, pair_of({10: [0.1, 0.0], 20: [0.1, 0.0], 50: [INF, 1.0]}, {}))
    assert answer.state == SHOWN
    assert "onset: depth 50" in answer.notes
    assert "diverged at depth 50: 1 run" in answer.notes


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {10: [0.1, 0.0]},  # one depth
    ],
)
def test_one_depth_tells_nothing_of_depth(plain: Mapping[int, Sequence[float]]) -> None:
    assert ask(2, pair_of(plain, {10: [0.1, 0.0]})).state == ABSENT
    assert ask(3, pair_of(plain, {10: [0.1, 0.0]})).state == ABSENT


def test_all_diverged_is_no_degradation() -> None:
    """Nothing trains at any depth: depth has not done it."""
    answer = ask(2, pair_of({10: [INF, 1.0], 50: [NAN, 1.0]}, {}))
    assert answer.state == FAILED
    assert len(failed(answer)) == 3


def test_seeds_are_compared_with_themselves() -> None:
    """Seed 0 alone ran deep, seed 1 alone shallow: there is no pair."""
    study = pair_of({10: [0.1, 0.0, 0.1, 0.0], 50: [1.0, 0.5, 1.0, 0.5]}, {})
    alone = tuple(
        one for one in study.outcomes if (one.cell.depth, one.cell.seed) in ((10, 1), (50, 0))
    )
    answer = ask(2, replace(study, outcomes=alone))
    assert (answer.state, answer.reason) == (ABSENT, "no seed ran at both depth 10 and depth 50")


# ------------------------------------------------------------------------ 3 residual holds

PLAIN = {10: [0.02, 0.0, 0.02, 0.0], 50: [2.0, 0.5, 2.0, 0.5]}


def held(
    deep: Sequence[float],
    *,
    shallow: Sequence[float] = (0.02, 0.0, 0.02, 0.0),
    plain: Sequence[float] = (2.0, 0.5, 2.0, 0.5),
    idle: float | None = 0.2,
) -> Answer:
    """Link 3 of two seeds at depth 10 and 50."""
    more = () if idle is None else (run("idle", 50, 0, idle), run("idle", 50, 1, idle))
    study = pair_of({**PLAIN, 50: plain}, {10: shallow, 50: deep}, *more, arms=(IDLE,))
    return ask(3, study)


@pytest.mark.parametrize(
    ("deep", "missed"),
    [
        ((0.02, 0.01, 0.02, 0.01), ""),  # 1.0 point above the shallow net
        ((0.02, 0.0101, 0.02, 0.0101), "median training error"),
        ((0.10, 0.0, 0.10, 0.0), ""),  # 2 x max(.02, .05)
        ((0.1001, 0.0, 0.1001, 0.0), "median training loss"),
        ((0.02, 0.0, INF, 1.0), "runs that are not finite"),
    ],
)
def test_the_residual_arm_alone(deep: Sequence[float], missed: str) -> None:
    answer = held(deep)
    assert answer.state == (FAILED if missed else SHOWN)
    assert any(what.startswith(missed) for what in failed(answer)) == bool(missed)


@pytest.mark.parametrize(("end", "state"), [(0.1999, SHOWN), (0.2001, FAILED)])
def test_the_limit_of_loss_grows_with_the_shallow_loss(end: float, state: str) -> None:
    shallow = (0.1, 0.0, 0.1, 0.0)
    assert held((end, 0.0, end, 0.0), shallow=shallow, idle=1.0).state == state


@pytest.mark.parametrize(
    ("plain_errors", "missed"),
    [
        ((0.05, 0.05), ""),  # median 5.0 points
        ((0.0499, 0.0499), "training error at depth 50, plain less residual, median"),
        ((0.0, 0.5), "training error at depth 50, plain less residual, least"),  # > 0 in every one
        ((0.001, 0.0991), ""),  # 5.005 in the median
    ],
)
def test_plain_is_worse_in_every_seed(plain_errors: Sequence[float], missed: str) -> None:
    answer = held((0.02, 0.0, 0.02, 0.0), plain=[2.0, plain_errors[0], 2.0, plain_errors[1]])
    assert answer.state == (FAILED if missed else SHOWN)
    assert [what.startswith(missed) for what in failed(answer)] == [True] * bool(missed)


@pytest.mark.parametrize(
    ("idle", "state"),
    [
        (0.0211, SHOWN),  # .02 is 5.2 % below
        (0.0210, FAILED),  # 4.8 %: a tie
        (0.01, FAILED),  # better without its branches
        (INF, SHOWN),
    ],
)
def test_a_net_that_ignores_its_depth_does_not_hold(idle: float, state: str) -> None:
    answer = held((0.02, 0.0, 0.02, 0.0), idle=idle)
    assert answer.state == state
    assert check(answer, "median training loss at depth 50 over").met == (state == SHOWN)


def test_without_the_idle_arm_it_cannot_be_said() -> None:
    answer = held((0.02, 0.0, 0.02, 0.0), idle=None)
    assert answer.state == ABSENT
    assert "alpha = 0" in answer.reason
    assert held((0.3, 0.0, 0.3, 0.0), idle=None).state == FAILED  # what fails, fails without it


def test_without_plain_at_the_deepest_there_is_nothing_to_compare() -> None:
    study = pair_of({10: [0.02, 0.0]}, {10: [0.02, 0.0], 50: [0.02, 0.0]})
    assert ask(3, study).state == ABSENT


# ------------------------------------------------------------------------- 4 early signal


def signals(
    plain: Mapping[str, float | None], residual: Mapping[str, float | None], **facts: Any
) -> Answer:
    """Link 4 of one seed at depth 50, the same readings at steps 0, 10 and 30."""
    study = pair_of({10: [1.0, 0.5], 50: [1.0, 0.5]}, {10: [0.1, 0.0], 50: [0.1, 0.0]})
    outcomes = tuple(
        replace(
            one,
            readings=tuple(
                Reading(step, **(plain if one.cell.arm == "p" else residual))
                for step in (0, 10, 30)
            ),
        )
        for one in study.outcomes
    )
    arms = tuple(replace(arm, **(facts if arm.name == "q" else {})) for arm in study.arms)
    return ask(4, replace(study, arms=arms, outcomes=outcomes))


def gradient(first: float, last: float = 1.0) -> dict[str, float]:
    return {"gradient_first": first, "gradient_last": last}


@pytest.mark.parametrize(
    ("plain", "residual", "state"),
    [
        (gradient(10**-3.9), gradient(10**-0.2), SHOWN),
        (gradient(10**-3.9), gradient(10**-1.0), SHOWN),
        (gradient(10**3.9), gradient(10**-1.0), SHOWN),  # an explosion is an imbalance too
        (gradient(1e-2), gradient(1e-1), SHOWN),  # a decade
        (gradient(1e-2), gradient(0.99e-1), FAILED),
        (gradient(1.0), gradient(1.0), FAILED),
        (gradient(0.0), gradient(1.0), SHOWN),  # plain has none at all
        (gradient(INF), gradient(1.0), SHOWN),
        (gradient(1e-3), gradient(INF), FAILED),
        (gradient(0.0), gradient(0.0), FAILED),  # without a gradient in either
        (gradient(NAN), gradient(NAN), FAILED),
        ({"effective_rank": 4.0}, {"effective_rank": 12.0}, SHOWN),
        ({"effective_rank": 4.0}, {"effective_rank": 11.99}, FAILED),
    ],
)
def test_signal_on_either_side(
    plain: Mapping[str, float], residual: Mapping[str, float], state: str
) -> None:
    assert signals(plain, residual).state == state


def test_rank_collapse_is_named_where_gradients_are_even() -> None:
    answer = signals(
        {**gradient(1.0), "effective_rank": 1.2}, {**gradient(1.0), "effective_rank": 12.2}
    )
    assert answer.state == SHOWN
    assert "gradients were not attenuated: the mechanism is rank collapse" in answer.reason
    assert "1.20 -> 12.2 (x10.2)" in answer.reason
    uneven = signals(
        {**gradient(0.09), "effective_rank": 1.2}, {**gradient(0.09), "effective_rank": 12.2}
    )
    assert "not attenuated" not in uneven.reason


def test_readings_before_the_signal_and_after_step_30_do_not_count() -> None:
    """A branch that starts at 0 has a gradient of its own kind at step 0."""
    study = pair_of({50: [1.0, 0.5]}, {50: [0.1, 0.0]})
    step_0, late = Reading(0, **gradient(1e-9)), Reading(31, **gradient(1e-9))

    def judged(start: int) -> Answer:
        own = {"p": (Reading(1, **gradient(1e-3)),), "q": (step_0, Reading(1, **gradient(1.0)))}
        outcomes = tuple(
            replace(one, readings=(*own[one.cell.arm], late)) for one in study.outcomes
        )
        arms = (study.arms[0], replace(study.arms[1], signal_from=start))
        return ask(4, replace(study, arms=arms, outcomes=outcomes))

    assert judged(1).state == SHOWN  # 3 decades to 0
    assert judged(0).state == FAILED  # 3 decades to 9


def test_an_explosion_that_is_over_after_a_step_counts() -> None:
    """With BatchNorm at depth 100: 8.3 decades at step 0, none at the steps after it."""
    study = pair_of({50: [1.0, 0.5]}, {50: [0.1, 0.0]})
    decades = {"p": (8.3, 0.3, 0.0, 0.6), "q": (1.5, 1.6, 1.4, 1.3)}
    outcomes = tuple(
        replace(
            one,
            readings=tuple(
                Reading(step, **gradient(10**value))
                for step, value in zip((0, 1, 10, 30), decades[one.cell.arm], strict=True)
            ),
        )
        for one in study.outcomes
    )
    answer = ask(4, replace(study, outcomes=outcomes))
    assert answer.state == SHOWN
    assert "8.3 -> 1.6 decades" in answer.reason


@pytest.mark.parametrize("missing", ["p", "q"])
def test_without_readings_of_both_arms_there_is_no_signal(missing: str) -> None:
    study = pair_of({50: [1.0, 0.5]}, {50: [0.1, 0.0]})
    assert ask(4, changed(study, of(missing), readings=())).state == ABSENT
    assert ask(4, pair_of({50: [1.0, 0.5]}, {10: [0.1, 0.0]})).state == ABSENT


def test_updates_of_the_first_block_are_told() -> None:
    answer = signals(
        {"update_first": 1e-6, **gradient(1e-3)}, {"update_first": 2e-3, **gradient(1)}
    )
    assert answer.notes == ("updates |dW|/|W| of the first block: 1.0e-6 -> 2.0e-3",)


# ------------------------------------------------------------------------------- 5 scales


def scaled(*r: float | None, findings: Sequence[tuple[str, str]] = (), start: int = 0) -> Answer:
    """Link 5 of a net with these median r at steps 0, 1, 2 ..."""
    study = pair_of({}, {10: [0.1, 0.0]})
    own = tuple(Reading(step, r_median=value) for step, value in enumerate(r))
    study = changed(study, of("q"), readings=own, findings=tuple(findings))
    arms = (study.arms[0], replace(study.arms[1], signal_from=start))
    return ask(5, replace(study, arms=arms))


@pytest.mark.parametrize(
    ("r", "state"),
    [
        (1e-3, SHOWN),
        (0.99e-3, FAILED),
        (2.0, SHOWN),
        (2.001, FAILED),
        (INF, FAILED),
        (NAN, FAILED),
        (None, ABSENT),
    ],
)
def test_median_r(r: float | None, state: str) -> None:
    assert scaled(r).state == state


def test_r_is_the_median_over_readings_once_branches_have_woken() -> None:
    assert scaled(0.0, 0.0, 0.1).state == FAILED
    assert scaled(0.0, 0.02, 0.1, start=1).state == SHOWN  # .06
    assert scaled(5.0, 1.0, 0.5).state == SHOWN  # the first may be large


@pytest.mark.parametrize("field", ["r_smallest", "r_largest"])
def test_each_r_is_finite(field: str) -> None:
    study = pair_of({}, {10: [0.1, 0.0]})
    odd = Reading(0, r_median=0.5, **{field: NAN})
    assert ask(5, changed(study, of("q"), readings=(odd,))).state == FAILED


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (("RES101", "error"), FAILED),
        (("RES201", "error"), FAILED),
        (("RES101", "warning"), SHOWN),
        (("RES301", "error"), SHOWN),
    ],
)
def test_grave_findings(finding: tuple[str, str], state: str) -> None:
    assert scaled(0.5, findings=[finding]).state == state


# ----------------------------------------------------------------------------- 6 ablation

HE = ArmFacts("he", "He", "control", "pair", "shortcut")
NEAR = ArmFacts("near", "last layer 0", "start", "pair", "shortcut", near_identity=True)
SMALL = ArmFacts("small", "alpha 1e-4", "too-small", "pair", "shortcut")


def at_30(loss: float | None) -> tuple[Reading, ...]:
    return (Reading(0, loss=2.3), Reading(10, loss=2.0), Reading(30, loss=loss))


def started(
    near: Sequence[tuple[float, float]],
    he: Sequence[tuple[float, float]],
    small: Sequence[float] = (0.5, 0.5),
    depth: int = 50,
    arms: Sequence[ArmFacts] = (HE, NEAR, SMALL),
) -> Answer:
    """Link 6: loss at step 30 and at the end of each seed; the residual arm ends at .1."""
    ran = [
        run(name, depth, seed, end, readings=at_30(early))
        for name, each in (("near", near), ("he", he))
        for seed, (early, end) in enumerate(each)
    ]
    ran += [run("small", depth, seed, end) for seed, end in enumerate(small)]
    known = {arm.name for arm in arms}
    study = pair_of({}, {depth: [0.1, 0.0, 0.1, 0.0]}, arms=arms)
    residual = (study.arms[0], replace(study.arms[1], near_identity=True))
    kept = tuple(one for one in ran if one.cell.arm in known)
    study = replace(study, arms=(*residual, *arms), outcomes=(*study.outcomes, *kept))
    return ask(6, changed(study, of("q"), readings=at_30(1.0)))


GOOD, BAD = [(1.0, 0.1), (1.0, 0.1)], [(2.0, 0.2), (2.0, 0.2)]


@pytest.mark.parametrize(
    ("near", "he", "state"),
    [
        (GOOD, BAD, SHOWN),
        ([(1.0, 0.1), (2.1, 0.1)], BAD, FAILED),  # one seed, at step 30
        ([(1.0, 0.1), (1.0, 0.21)], BAD, FAILED),  # one seed, at the end
        ([(2.0, 0.1), (1.0, 0.1)], BAD, FAILED),  # equal is not lower
        ([(2.1, 0.3), (2.1, 0.3)], [(2.0, 0.2), (2.0, INF)], SHOWN),  # but fewer diverged
        ([(2.1, 0.3), (2.1, INF)], [(2.0, 0.2), (2.0, INF)], FAILED),
        ([(1.0, INF), (1.0, INF)], [(2.0, INF), (2.0, INF)], FAILED),
        ([(1.0, 0.1), (1.0, 0.1)], [(NAN, 0.2), (INF, 0.2)], SHOWN),  # an overflow at step 30
    ],
)
def test_near_identity_starts(
    near: Sequence[tuple[float, float]], he: Sequence[tuple[float, float]], state: str
) -> None:
    """The residual arm, near the identity too, ends at 1.0 and .1."""
    answer = started(near, he)
    own = [one for one in answer.checks if one.what.startswith("near against he")]
    assert all(one.met for one in own) == (state == SHOWN)
    if state == FAILED:
        assert answer.state == FAILED


def test_all_near_identity_arms_have_to_agree() -> None:
    """The residual arm itself is one: 1.0 at step 30 is above .9."""
    assert started(GOOD, BAD).state == SHOWN
    answer = started([(0.5, 0.1), (0.5, 0.1)], [(0.9, 0.2), (0.9, 0.2)])
    assert answer.state == FAILED
    assert [what.split(" at ")[0] for what in failed(answer)] == ["q against he"]


@pytest.mark.parametrize(
    ("small", "state"),
    [((0.11, 0.11), SHOWN), ((0.1, 0.11), FAILED), ((0.05, 0.05), FAILED), ((INF, INF), SHOWN)],
)
def test_too_small_a_start_is_worse(small: Sequence[float], state: str) -> None:
    assert started(GOOD, BAD, small).state == state


def test_what_is_missing_for_the_ablation() -> None:
    assert started(GOOD, BAD, arms=(HE, NEAR)).state == ABSENT
    assert "too near" in started(GOOD, BAD, arms=(HE, NEAR)).reason
    assert started(GOOD, BAD, arms=(NEAR, SMALL)).state == ABSENT
    assert started(BAD, GOOD, arms=(HE, NEAR)).state == FAILED  # what fails, fails without it
    assert started(GOOD, BAD, depth=49).state == ABSENT
    assert started(GOOD, BAD, depth=50).state == SHOWN


def test_a_start_counts_as_it_is_marked() -> None:
    """What its r is at step 0 does not matter, whether it is marked or not."""
    marked = "arm is marked as starting near the identity (near_identity=True in its ArmFacts)"
    study = pair_of({}, {50: [0.1, 0.0]})
    assert ask(6, study).reason == f"no {marked}"
    near = replace(study.arms[1], near_identity=True)
    assert ask(6, replace(study, arms=(study.arms[0], near))).reason == f"every {marked}"
    assert (
        "marked as too near the identity (role 'too-small')"
        in started(GOOD, BAD, arms=(HE, NEAR)).reason
    )


def test_the_residual_arm_is_the_usual_start_where_it_is_not_near() -> None:
    """As with BatchNorm: He is the residual arm itself."""
    study = pair_of(
        {}, {50: [0.2, 0.0]}, run("near", 50, 0, 0.1, readings=at_30(1.0)), arms=(NEAR,)
    )
    answer = ask(6, changed(study, of("q"), readings=at_30(2.0)))
    assert answer.state == ABSENT  # no too-small arm
    assert answer.checks[0].what == "near against q at depth 50"
    assert answer.checks[0].met


def test_a_start_without_readings_is_not_better_early() -> None:
    study = pair_of({}, {50: [0.2, 0.0]}, run("near", 50, 0, 0.1, readings=()), arms=(NEAR,))
    assert ask(6, study).state == FAILED


# ------------------------------------------------------------------------ 7 learning rates


def swept(
    plain: Mapping[float, tuple[float, float]], residual: Mapping[float, tuple[float, float]]
) -> Answer:
    """Link 7 of one seed at depth 50: rate to loss and error."""
    study = pair_of({}, {})
    ran = [
        run(name, 50, 0, loss, error, lr=rate)
        for name, each in (("p", plain), ("q", residual))
        for rate, (loss, error) in each.items()
    ]
    return ask(7, replace(study, outcomes=tuple(ran)))


FINE = {0.01: (0.2, 0.0), 0.1: (0.1, 0.0), 1.0: (0.2, 0.0)}


@pytest.mark.parametrize(
    ("best", "state"),
    [
        ((1.0, 0.0), SHOWN),  # 10 times the loss
        ((0.999, 0.0499), FAILED),
        ((0.999, 0.05), SHOWN),  # 5 points of error
    ],
)
def test_best_rates_on_either_side(best: tuple[float, float], state: str) -> None:
    assert swept({0.01: (2.0, 0.5), 0.1: best, 1.0: (2.0, 0.5)}, FINE).state == state


@pytest.mark.parametrize("edge", [0.01, 1.0])
def test_a_best_rate_at_the_edge_says_nothing(edge: float) -> None:
    plain = {**dict.fromkeys((0.01, 0.1, 1.0), (2.0, 0.5)), edge: (1.5, 0.5)}
    answer = swept(plain, FINE)
    assert answer.state == FAILED
    assert failed(answer) == ["best rate of the plain arm"]


def test_plain_that_diverges_everywhere_says_nothing() -> None:
    answer = swept(dict.fromkeys((0.01, 0.1, 1.0), (INF, 1.0)), FINE)
    assert answer.state == FAILED
    assert "diverges at every rate" in answer.reason


def test_the_residual_arm_may_be_best_at_the_edge() -> None:
    plain = {0.01: (2.0, 0.5), 0.1: (1.5, 0.5), 1.0: (INF, 1.0)}
    answer = swept(plain, {**FINE, 1.0: (0.05, 0.0)})
    assert answer.state == SHOWN
    assert "x30" in answer.reason  # 1.5 / .05


def test_two_rates_are_no_grid_and_both_arms_need_it() -> None:
    two = {0.01: (2.0, 0.5), 0.1: (1.0, 0.5)}
    assert swept(two, FINE).state == ABSENT
    assert swept({**two, 5.0: (3.0, 0.9)}, FINE).state == ABSENT  # two in common


def test_the_deepest_grid_is_taken() -> None:
    study = pair_of({}, {})
    ran = [
        run(name, depth, 0, loss, 0.0, lr=rate)
        for depth, worst in ((20, 1.0), (50, 3.0))
        for name, losses in (("p", (worst, worst / 2, worst)), ("q", (0.1, 0.1, 0.1)))
        for rate, loss in zip((0.01, 0.1, 1.0), losses, strict=True)
    ]
    answer = ask(7, replace(study, outcomes=(*ran, run("p", 100))))
    assert answer.reason.startswith("depth 50, 3 rates: best plain loss 1.50")
