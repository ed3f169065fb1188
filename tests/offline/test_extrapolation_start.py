"""How the branches of a deeper net start, and both answers where that is not told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from skipscope.extrapolation import extrapolate
from skipscope.records import Run
from tests.offline.builders import (
    add_updates,
    make_history,
    make_map,
    make_parameter,
    make_site,
)
from tests.offline.extrapolated import L, normalised, stage_of, text_of, unnormed, weights

EITHER = ("constant", "depth-scaled")

# -------------------------------------------------------- which law one curve stands for


@pytest.mark.parametrize(
    ("r", "last", "other", "inputs", "law"),
    [
        (0.9, 0.02 / math.sqrt(L), 0.02, 16, "depth-scaled"),  # against what B alone says
        (0.1, 0.02, 0.02, 16, "constant"),  # r is 30 times what the weights make of the stream
        # RMS 1/sqrt(inputs): the last matrix has four times as many
        (0.9, 0.125 / math.sqrt(L), 0.25, 64, "depth-scaled"),
        (0.9, 0.125, 0.25, 64, "constant"),
        # r^2 up to 2/24 of what the weights can make: the code may hold a factor of 1/sqrt(24)
        (0.30, 0.25, 0.25, 16, "constant"),
        (0.28, 0.25, 0.25, 16, None),
        (0.1, 0.077, 0.25, 16, None),  # neither 1 nor 1/sqrt(24)
        (0.9, 0.077, 0.25, 16, None),
    ],
)
def test_the_weights_tell_two_laws_of_one_curve_apart(
    r: float, last: float, other: float, inputs: int, law: str | None
) -> None:
    history = weights(unnormed([np.full(L, r)]), last, other, inputs)
    assert stage_of(history, "4x").forward.law == law


def test_the_gradient_keeps_its_own_reading_where_the_stream_has_no_law() -> None:
    """The stream is mixed, the gradient gains 1.1^.5 a site, the last matrices are scaled."""
    r = np.where(np.arange(L) < 12, normalised(1.0), 0.8)
    history = make_history([r], b=math.sqrt(0.1))
    found = stage_of(weights(history, 0.02 / math.sqrt(L), 0.02), "4x")
    assert found.forward.law is None
    assert found.gradient.law == "depth-scaled"
    (at,) = found.extrapolated
    assert at.multiplier == pytest.approx(math.sqrt(1.1) * (1 + 0.1 / 4) ** (95 / 2))


def test_a_coefficient_of_the_sum_tells_too() -> None:
    sites = make_map(*(make_site(k, alpha=1 / math.sqrt(L)) for k in range(L)))
    found = stage_of(make_history([np.full(L, 0.9)], sites=sites), "4x")
    assert found.forward.law == "depth-scaled"
    assert "1/sqrt(24)" in found.forward.reason


@pytest.mark.parametrize(
    ("r", "factor", "law"),
    [
        (0.9, 1 / math.sqrt(L), "depth-scaled"),  # whatever the size of r
        (0.1, 1 / math.sqrt(L), "depth-scaled"),
        (0.9, 1.0, "constant"),
        (0.9, 0.1, None),  # a number, or 0.49/sqrt(24)? Nothing tells
    ],
)
def test_the_factor_of_scale_branches_tells(r: float, factor: float, law: str | None) -> None:
    found = stage_of(weights(unnormed([np.full(L, r)]), factor=factor), "4x")
    assert found.forward.law == law
    assert ("0.1, which is not 1/sqrt(24)" in found.forward.reason) == (law is None)


def test_a_factor_beside_scaled_matrices_is_no_longer_that_of_the_depth() -> None:
    """1/sqrt(24) twice is 1/24."""
    history = weights(unnormed([np.full(L, 0.5)]), 0.25 / 24**0.5, factor=24**-0.5)
    assert stage_of(history).forward.laws == EITHER


def test_matrices_differ_by_their_sampling() -> None:
    """The RMS of 256 normal entries scatters by 1/sqrt(512) = 4.4 %, up to 14 % over 48 of them."""
    draws = np.random.default_rng(3).normal(size=(2, L, 16, 16))
    last, other = np.sqrt((draws**2).mean((2, 3))) * 0.25
    assert np.abs(other / np.median(other) - 1).max() > 0.1
    history = unnormed([np.full(L, 0.5)])
    assert stage_of(weights(history, last / math.sqrt(L), other)).forward.law == "depth-scaled"
    history = unnormed([np.full(L, 0.5)])
    assert stage_of(weights(history, last, other)).forward.law == "constant"


def test_one_matrix_that_is_not_scaled_is_more_than_chance() -> None:
    last = np.full(L, 0.25 / math.sqrt(L))
    last[7] = 0.25
    assert stage_of(weights(unnormed([np.full(L, 0.5)]), last)).forward.laws == EITHER


def test_weights_of_a_resumed_run_are_no_start() -> None:
    history = make_history([np.full(L, 0.9)], run=Run(fresh=False))
    assert stage_of(weights(history, 0.25 / math.sqrt(L))).forward.laws == EITHER


def test_kernels_count_like_matrices() -> None:
    """A 3x3 kernel of 8 channels reads 72 numbers: of RMS 1/sqrt(72) it keeps their size."""
    for shrunk, law in ((1.0, "constant"), (1 / math.sqrt(L), "depth-scaled")):
        history = unnormed([np.full(L, 0.5)])
        kernels = tuple(
            make_parameter(
                k,
                name=f"blocks.{k // 2}.conv{k % 2}",
                shape=(8, 8, 3, 3),
                role=f"{k % 2}",
                sites=(k // 2,),
            )
            for k in range(2 * L)
        )
        norms = [math.sqrt(8) * (shrunk if k % 2 else 1.0) for k in range(2 * L)]
        found = stage_of(add_updates(history, weight=np.array(norms), parameters=kernels))
        assert found.forward.law == law


def test_the_depth_may_be_that_of_the_stream() -> None:
    """Two stages of ten, their branches times 1/sqrt(20)."""
    sites = make_map(
        *(make_site(k, norm_placement="none") for k in range(10)),
        *(make_site(k, norm_placement="none", stage=1) for k in range(10, 20)),
    )
    history = weights(make_history([np.full(20, 0.5)], sites=sites), factor=1 / math.sqrt(20))
    stream = extrapolate(history).numbers.moments[0].streams[0]
    assert [one.forward.law for one in stream.stages] == ["depth-scaled", "depth-scaled"]


def test_behind_a_norm_what_is_seen_decides() -> None:
    """r is not that of the matrices there: were the code to multiply, a small stream hides it."""
    found = stage_of(weights(make_history([np.full(L, 0.9)])), "4x")
    assert found.forward.law == "constant"
    assert "behind a norm a factor in the code would not show" in found.forward.reason
    assert [one.law for one in found.otherwise] == ["depth-scaled"]
    assert stage_of(weights(make_history([np.full(L, 0.9)]), 0.077)).forward.laws == EITHER


def test_branches_that_started_at_0_tell_nothing_later() -> None:
    history = unnormed(np.stack([np.zeros(L), np.full(L, 0.9)]), steps=[0, 50])
    later = extrapolate(weights(history)).numbers.moments[1].streams[0].stages[0]
    assert later.forward.laws == EITHER
    assert [one.law for one in later.otherwise] == ["constant"] * 2 + ["depth-scaled"] * 2


def test_what_is_not_told_has_both_answers_and_no_choice() -> None:
    """r = 0.5 without weights: 1.25 a site at 96 sites, or 1 + 0.25/4."""
    history = unnormed([np.full(L, 0.5)])
    found = stage_of(history, "4x")
    assert found.forward.law is found.gradient.law is None
    assert found.extrapolated[0].growth is None
    same, scaled = found.otherwise
    assert (same.law, scaled.law) == ("constant", "depth-scaled")
    assert same.growth == pytest.approx(1.25**48)
    assert same.budget == pytest.approx(95 * math.log(1.25))
    assert same.multiplier == pytest.approx(1.25**48)
    shrunk = math.sqrt(1.25) * (1 + 0.25 / 4) ** (95 / 2)
    assert scaled.growth == scaled.multiplier == pytest.approx(shrunk)
    assert scaled.budget == pytest.approx(95 * math.log(1 + 0.25 / 4))
    text = text_of(history, "4x")
    assert "the history does not tell which law of two holds, RMS x1.118 a site here" in text
    assert "96 4x if constant x" in text
    assert "96 4x if depth-scaled x19.9" in text
    assert "either constant: the branches of the deeper net start as large as here" in text
    assert "or depth-scaled: the deeper the net, the smaller they start" in text
    assert "stream law" not in text
    assert "not the law of this gradient" not in text


def test_a_gradient_whose_law_is_not_told_has_both_answers_behind_a_stream_without_one() -> None:
    r = np.where(np.arange(L) < 12, normalised(1.0), 0.8)
    found = stage_of(make_history([r], b=math.sqrt(0.1)), "4x")
    assert (found.forward.laws, found.gradient.laws) == ((), EITHER)
    same, scaled = found.otherwise
    assert same.growth is scaled.growth is None
    assert same.multiplier == pytest.approx(1.1**48)
    assert scaled.multiplier == pytest.approx(math.sqrt(1.1) * (1 + 0.1 / 4) ** (95 / 2))
