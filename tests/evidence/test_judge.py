"""A whole study: the states of every chain, the comparison of arms, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from skipscope.evidence import judge
from skipscope.evidence.outcome import ArmFacts, Evidence
from skipscope.evidence.verdict import Chain, Comparison
from tests.evidence.values import changed, digits, pair_of, run, seeds, without

S, N, A = "shown", "not shown", "not applicable"


def states(chain: Chain) -> list[str]:
    return [link.answer.state for link in chain.links]


def chain(evidence: Evidence, pair: str) -> Chain:
    return next(one for one in judge(evidence).chains if one.pair == pair)


def compared(evidence: Evidence, pair: str) -> Comparison:
    return next(one for one in judge(evidence).comparisons if one.pair == pair)


def test_the_study_of_digits() -> None:
    verdict = judge(digits())
    assert [(one.pair, states(one)) for one in verdict.chains] == [
        ("no norm", [S] * 7),
        ("batch norm", [S, S, A, S, S, A, A]),
    ]
    assert verdict.headline == (
        "digits: no norm 7 of 7 links shown; batch norm 4 of 7 links shown, not applicable: 3, 6, 7"
    )
    no_norm, batch_norm = (one.links for one in verdict.chains)
    for links, number, numbers in (
        (no_norm, 2, ("onset: depth 20", "x256", "+89.5 points")),  # 2.30 / .009
        (no_norm, 3, ("90.0 points", "0.010 against 0.10")),
        (no_norm, 4, ("1.20 -> 12.2 (x10.2)", "rank collapse")),
        (no_norm, 5, ("0.14",)),
        (no_norm, 6, ("0 of 3 against 3 of 3 diverged", "0.10 against 0.010")),
        (no_norm, 7, ("depth 50", "1.41", "8.0e-4", "x1762")),  # 1.41 / .0008
        (batch_norm, 2, ("onset: depth 20", "x110")),  # 2.32 / .021
        (batch_norm, 4, ("3.9 -> 0.5 decades",)),
    ):
        for text in numbers:
            assert text in links[number - 1].answer.reason


def test_he_without_norm_is_the_control_that_fails() -> None:
    """As the residual arm of the pair: it diverges at 50, so it does not hold."""
    study = digits()
    arms = tuple(
        replace(arm, role={"he": "residual", "sqrt": "start"}.get(arm.name, arm.role))  # type: ignore[arg-type]
        for arm in study.arms
    )
    main = tuple(one for one in study.outcomes if one.cell.lr == study.lr)
    found = chain(replace(study, arms=arms, outcomes=main), "no norm")
    assert found.residual == "he"
    assert states(found)[:3] == [S, S, N]
    assert "6 of 12" in found.links[2].answer.reason


def test_more_than_the_shortcut_is_said() -> None:
    found = chain(digits(), "no norm")
    assert not found.one_factor
    assert found.caution == (
        "the arms differ in shortcut and last-layer scale: more than the shortcut (the shortcut "
        "alone: he, diverged at depth 100)"
    )
    assert chain(digits(), "batch norm").caution == ""
    assert "no arm changes it alone" in chain(without(digits(), "he"), "no norm").caution


WITHOUT_CHANCE = "at depth 50 a block has nothing of the gradient"


def straw_man(study: Evidence) -> Evidence:
    arms = (replace(study.arms[0], straw_man=WITHOUT_CHANCE), *study.arms[1:])
    return replace(study, arms=arms)


def test_no_link_compares_with_a_straw_man() -> None:
    found = chain(straw_man(digits()), "no norm")
    assert states(found) == [S, A, A, A, S, S, A]
    for number in (2, 3, 4, 7):
        reason = found.links[number - 1].answer.reason
        assert reason == f"plain is no fair comparison: {WITHOUT_CHANCE}"
    assert found.caution.startswith(
        f"plain is a straw man, and no link compares with it: {WITHOUT_CHANCE}; the arms differ in"
    )


def test_what_fails_fails_beside_a_straw_man_too() -> None:
    study = changed(straw_man(digits()), lambda cell: cell.arm == "sqrt", train_loss=math.inf)
    link = chain(study, "no norm").links[2]
    assert link.answer.state == N
    assert "runs that are not finite: 12 of 12" in link.answer.reason


@pytest.mark.parametrize(
    ("arm", "number", "state"),
    [("idle", 3, A), ("too-small", 6, A), ("he", 6, A)],
)
def test_a_missing_arm_takes_its_link_with_it(arm: str, number: int, state: str) -> None:
    found = states(chain(without(digits(), arm), "no norm"))
    assert found[number - 1] == state
    assert found[: number - 1] + found[number:] == [S] * 6


def test_a_pair_without_a_plain_arm_has_no_chain() -> None:
    verdict = judge(without(digits(), "plain"))
    assert [one.pair for one in verdict.chains] == ["batch norm"]
    assert "no norm" in [one.pair for one in verdict.comparisons]


def test_an_arm_that_never_ran() -> None:
    study = digits()
    study = replace(study, outcomes=tuple(o for o in study.outcomes if o.cell.arm != "plain"))
    verdict = judge(study)
    assert verdict.missing == ("plain",)
    assert states(verdict.chains[0]) == [A, A, A, A, S, S, A]


def test_nothing_ran() -> None:
    verdict = judge(replace(digits(), outcomes=()))
    assert [set(states(one)) for one in verdict.chains] == [{A}, {A}]
    assert (verdict.rows, verdict.comparisons) == ((), ())


def test_everything_diverged() -> None:
    study = changed(digits(), lambda cell: True, finite=False, train_loss=math.nan)
    for one in judge(study).chains:
        assert S not in states(one)[1:3]
        assert one.links[6].answer.state in (N, A)


def test_one_seed_is_enough_for_a_chain() -> None:
    study = digits()
    study = replace(study, outcomes=tuple(o for o in study.outcomes if o.cell.seed == 1))
    found = chain(study, "no norm")
    assert states(found) == [S] * 7
    assert "+90.0 points or more in the only seed" in found.links[1].answer.reason


SPREAD = "it takes 3 or more to tell an effect from the luck of a start"


@pytest.mark.parametrize(
    ("left", "caution"),
    [
        ((1,), f"one seed shows no spread: {SPREAD}"),
        ((0, 2), f"2 seeds show little spread: {SPREAD}"),
        ((0, 1, 2), ""),
        ((), ""),
    ],
)
def test_few_seeds_are_cautioned(left: Sequence[int], caution: str) -> None:
    study = digits()
    kept = tuple(one for one in study.outcomes if one.cell.seed in left)
    assert chain(replace(study, outcomes=kept), "batch norm").caution == caution


def test_only_seeds_that_both_arms_ran_from_count() -> None:
    study = digits()
    kept = [o for o in study.outcomes if o.cell.arm != "bn-plain" or o.cell.seed == 0]
    found = chain(replace(study, outcomes=tuple(kept)), "batch norm")
    assert found.caution.startswith("one seed")


def test_one_depth_cannot_speak_of_depth() -> None:
    study = digits()
    study = replace(study, outcomes=tuple(o for o in study.outcomes if o.cell.depth == 50))
    assert states(chain(study, "no norm")) == [S, A, A, S, S, S, S]


def test_a_net_that_is_said_to_be_finite_with_a_loss_that_is_not() -> None:
    study = changed(digits(), lambda cell: cell.arm == "sqrt", train_loss=math.inf)
    assert chain(study, "no norm").links[2].answer.state == N


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: replace(e, outcomes=(*e.outcomes, e.outcomes[0])), "two outcomes of the cell"),
        (lambda e: replace(e, arms=(*e.arms, e.arms[0])), "two arms plain"),
        (lambda e: replace(e, arms=e.arms[1:]), "outcomes of plain, which is no arm"),
    ],
)
def test_a_study_that_says_two_things_is_refused(change: object, words: str) -> None:
    assert callable(change)
    with pytest.raises(ValueError, match=words):
        judge(change(digits()))


# ------------------------------------------------------------------------------ validation


@pytest.mark.parametrize(
    ("train", "held_out", "only_validation"),
    [
        ((0.01, 0.0), (0.08, 0.05), True),  # 1 point apart in training, 3 in validation
        ((0.0101, 0.0), (0.08, 0.05), False),
        ((0.0, 0.0), (0.08, 0.06), False),  # 2 points are not more than 2
        ((0.0, 0.0), (0.0801, 0.06), True),
        ((0.0, 0.0), (0.05, 0.08), True),  # whichever is worse
    ],
)
def test_what_validation_alone_tells_apart(
    train: Sequence[float], held_out: Sequence[float], only_validation: bool
) -> None:
    study = pair_of({50: [0.1, train[0]]}, {50: [0.1, train[1]]})
    study = changed(study, lambda cell: cell.arm == "p", validation_error=held_out[0])
    study = changed(study, lambda cell: cell.arm == "q", validation_error=held_out[1])
    (found,) = judge(study).chains[0].validation
    assert found.only_validation is only_validation
    assert (found.train_error, found.validation_error) == (tuple(train), tuple(held_out))


def test_validation_decides_nothing() -> None:
    """The worst of validations leaves every link as it was."""
    study = digits()
    bad = changed(study, lambda cell: True, validation_error=1.0, validation_loss=math.inf)
    assert [states(one) for one in judge(bad).chains] == [states(o) for o in judge(study).chains]


# ----------------------------------------------------------------------------- comparison

VARIANTS = tuple(
    ArmFacts(name, name, "other", "shortcuts") for name in ("identity", "all-projection", "plain")
)
#: Final training loss of convolutional nets at depth 8, 20, 56, 110.
CNN = {
    "identity": (0.25, 0.18, 0.15, 0.66),
    "all-projection": (0.175, 0.21, 0.75, 1.28),
    "plain": (0.19, 1.3, 1.8, 2.3),
}


def variants() -> Evidence:
    outcomes = [
        one
        for name, losses in CNN.items()
        for depth, loss in zip((8, 20, 56, 110), losses, strict=True)
        for one in seeds(name, depth, loss, 0.0)
    ]
    return Evidence("shortcuts", "shortcut variants", VARIANTS, tuple(outcomes), lr=0.01)


def test_arms_without_a_chain_are_ranked_by_depth() -> None:
    verdict = judge(variants())
    assert verdict.chains == ()
    assert verdict.headline.startswith("shortcuts: arms compared, no chain")
    (found,) = verdict.comparisons
    assert not any(place.tied for _, places in found.places for place in places)
    assert [(depth, [place.arm for place in places]) for depth, places in found.places] == [
        # .175 * 1.04 = .1820 is below .19 * .96 = .1824, and the medians are 8 % apart: no tie
        (8, ["all-projection", "plain", "identity"]),
        (20, ["identity", "all-projection", "plain"]),
        (56, ["identity", "all-projection", "plain"]),
        (110, ["identity", "all-projection", "plain"]),
    ]
    assert found.places[3][1][0].ahead == "3 of 3"
    assert found.notes[0] == (
        "which arm is best depends on depth: all-projection at 8, identity at 20 to 110"
    )
    # 2.3 / .19; each depth's best seed is above the worst of the best before it
    assert "plain: loss x12.1 from depth 8 to 110, rank correlation +1.00, onset at depth 20" in (
        found.notes
    )


def test_two_that_lead_in_a_tie() -> None:
    other = ArmFacts("r", "other", "other", "pair")
    study = pair_of(
        {10: [0.102, 0.0], 50: [0.9, 0.0]},
        {10: [0.1, 0.0], 50: [0.9, 0.0]},
        run("r", 10, 0, 0.5),
        run("r", 50, 0, 0.1),
        arms=[other],
    )
    assert compared(study, "pair").notes[0] == (
        "which arm is best depends on depth: p = q at 10, r at 50"
    )


def test_a_tie_is_between_two_and_not_passed_on() -> None:
    """Ranges [.1, .2], [.15, .3] and [.25, .4]: the middle one meets both others."""
    other = ArmFacts("r", "other", "other", "pair")
    study = pair_of(
        {10: [0.15, 0.0, 0.3, 0.0, 0.2, 0.0]},
        {10: [0.1, 0.0, 0.2, 0.0, 0.12, 0.0]},
        *(run("r", 10, seed, loss) for seed, loss in enumerate((0.25, 0.4, 0.35))),
        arms=[other],
    )
    places = compared(study, "pair").places[0][1]
    assert [(place.arm, place.tied) for place in places] == [
        ("q", ("p",)), ("p", ("q", "r")), ("r", ("p",)),
    ]  # fmt: skip


def test_an_arm_that_leads_everywhere_does_not_depend_on_depth() -> None:
    """Alone at depth 50, and in a tie with plain at depth 10."""
    study = pair_of({10: [0.1, 0.0], 50: [0.9, 0.0]}, {10: [0.1, 0.0], 50: [0.1, 0.0]})
    assert not [note for note in compared(study, "pair").notes if "which arm is best" in note]


def test_seeds_in_which_the_first_is_ahead() -> None:
    study = pair_of({50: [0.1, 0.0, 0.3, 0.0, 0.1, 0.0]}, {50: [0.5, 0.0, 0.2, 0.0, 0.5, 0.0]})
    assert compared(study, "pair").places[0][1][0].ahead == "2 of 3"


def test_arms_that_ran_at_no_common_depth_are_not_compared() -> None:
    assert judge(pair_of({10: [0.1, 0.0]}, {20: [0.1, 0.0]})).comparisons == ()


def test_arms_that_only_validation_tells_apart() -> None:
    study = changed(variants(), lambda cell: cell.arm == "plain", validation_error=0.5)
    found = compared(study, "shortcuts").validation
    assert {(one.arms, one.depth) for one in found} == {
        (two, depth)
        for two in (("identity", "plain"), ("all-projection", "plain"))
        for depth in (8, 20, 56, 110)
    }


def test_rows_tell_the_main_rate_from_the_grid() -> None:
    verdict = judge(digits())
    own = [row for row in verdict.rows if (row.arm, row.depth) == ("plain", 50)]
    assert [(row.lr, row.main) for row in own] == [
        (0.001, False), (0.01, True), (0.03, False), (0.3, False),
    ]  # fmt: skip
    assert [row.steps_to_90 for row in own] == ["> 330"] * 4
    he = next(row for row in verdict.rows if (row.arm, row.depth) == ("he", 100))
    assert (he.loss.diverged, he.loss.lost, he.error.median) == (3, True, 1.0)
    assert he.steps_to_90 == "diverged"  # not "> N": it had no N steps


def test_a_rate_that_was_computed_is_the_same_rate() -> None:
    study = pair_of({10: [0.1, 0.0]}, {10: [0.1, 0.0]})
    outcomes = tuple(replace(o, cell=replace(o.cell, lr=0.1 * 3)) for o in study.outcomes)
    verdict = judge(replace(study, outcomes=outcomes, lr=0.3))
    assert [row.main for row in verdict.rows] == [True, True]


def test_batch_statistics_stand_beside_the_net_as_it_predicts() -> None:
    study = pair_of({10: [2.0, 0.9, 2.0, 0.9]}, {10: [0.1, 0.0]}, run("q", 10, 5))
    study = changed(study, lambda c: c.arm == "p", train_loss_batch=0.5, train_error_batch=0.25)
    rows = {row.arm: row for row in judge(study).rows}
    assert rows["p"].loss_batch is not None
    assert (rows["p"].loss_batch.median, rows["p"].error_batch.median) == (0.5, 0.25)  # type: ignore[union-attr]
    assert rows["q"].loss_batch is None
