"""Laws against numbers worked out apart from them: fact by fact, or step by step along depth."""

from __future__ import annotations

import math

import pytest

from skipscope import theory


@pytest.mark.parametrize(
    ("d", "n", "expected"),
    [(0.8, 20, 0.0115), (0.98, 20, 0.668), (1, 20, 1.0), (1.02, 20, 1.486), (0.8, 50, 1.427e-5)],
)
def test_depth_multiplier_of_the_scalar_model(d: float, n: int, expected: float) -> None:
    assert theory.depth_multiplier(d, n) == pytest.approx(expected, rel=3e-3)


def test_attenuation_of_fifty_blocks() -> None:
    assert round(1 / theory.depth_multiplier(0.8, 50)) == 70065


def test_depth_factor_is_the_inverse() -> None:
    assert theory.depth_factor(5.35e-6, 48) == pytest.approx(math.exp(math.log(5.35e-6) / 48))
    with pytest.raises(ValueError, match="0-th root"):
        theory.depth_factor(1.0, 0)
    with pytest.raises(ValueError, match="root of -1"):
        theory.depth_factor(-1.0, 3)


def test_growth_is_the_law_of_cosines() -> None:
    # s = (4, 0), f = (0, 3): |y| = 5; f = (3, 0): |y| = 7; f = (-4, 0): |y| = 0
    assert theory.growth(3 / 4) == 5 / 4
    assert theory.growth(3 / 4, 1.0) == 7 / 4
    assert theory.growth(1.0, -1.0) == 0.0


@pytest.mark.parametrize(("r", "expected"), [(0.1, 0.005), (0.3, 0.042), (1.0, 0.293)])
def test_block_influence_of_independent_branches(r: float, expected: float) -> None:
    assert theory.block_influence(r) == pytest.approx(expected, abs=5e-4)


def test_block_influence_small_ratio_and_limits() -> None:
    assert theory.block_influence(0.01, 0.6) == pytest.approx(0.01**2 * (1 - 0.36) / 2, rel=0.02)
    assert theory.block_influence(0.5, 1.0) == pytest.approx(0.0, abs=1e-15)
    with pytest.raises(ValueError, match="cancels"):
        theory.block_influence(1.0, -1.0)


@pytest.mark.parametrize(
    ("law", "branch"),
    [("normalised", lambda stream, depth: 1.0), ("constant", lambda stream, depth: stream)],
)
def test_laws_follow_from_adding_variances(law: theory.Law, branch) -> None:  # type: ignore[no-untyped-def]
    """Walk down 16 additions of independent branches; x_0 has mean square 4, so a is 4."""
    stream, budget, before = 4.0, 0.0, 0.0
    for k in range(16):
        if k == 8:
            before = stream
        added = branch(stream, 16)
        assert theory.expected_branch_ratio(k, law, a=4.0) == pytest.approx(
            math.sqrt(added / stream)
        )
        budget += math.log(1 + added / stream)
        stream += added
    assert theory.expected_budget(16, law, a=4.0) == pytest.approx(budget)
    halves = math.sqrt(stream / before)
    assert theory.expected_half_depth_growth(16, law, a=4.0) == pytest.approx(halves)


def test_depth_scaled_is_flat_and_bounded() -> None:
    ratios = {theory.expected_branch_ratio(k, "depth-scaled", depth=25) for k in range(25)}
    assert ratios == {0.2}
    # sum over 25 additions of ln(1 + 0.04)
    assert theory.expected_budget(25, "depth-scaled") == pytest.approx(25 * math.log(1.04))
    assert theory.expected_budget(10**5, "depth-scaled") < 1.0


def test_normalised_and_scaled_is_linear_and_bounded() -> None:
    """x_0 has mean square 4; each of 16 branches of mean square 1 adds 1/16."""
    law: theory.Law = "normalised-scaled"
    for k in range(16):
        ratio = theory.expected_branch_ratio(k, law, a=4.0, depth=16)
        assert ratio == pytest.approx(math.sqrt((1 / 16) / (4 + k / 16)))
    assert theory.expected_variance_growth(8, 16, law, a=4.0) == pytest.approx(5 / 4.5)
    assert theory.expected_half_depth_growth(16, law, a=4.0) == pytest.approx(math.sqrt(5 / 4.5))
    for depth in (16, 10**5):
        assert theory.expected_budget(depth, law, a=4.0) == pytest.approx(math.log(5 / 4))


def test_half_depth_growth_stays_below_the_square_root_of_two() -> None:
    for depth in (2, 8, 100, 10_000):
        assert theory.expected_half_depth_growth(depth, a=0.5) < math.sqrt(2)


def test_unknown_law_and_too_shallow() -> None:
    with pytest.raises(ValueError, match="no law 'linear'"):
        theory.expected_branch_ratio(0, "linear")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="half depth of 1"):
        theory.expected_half_depth_growth(1)
