"""Extrapolation against closed forms of depth, worked out by hand from r alone."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from skipscope import theory
from skipscope.extrapolation import extrapolate
from skipscope.extrapolation.fit import fit
from tests.offline.builders import make_history, make_map, make_site
from tests.offline.extrapolated import L, normalised, stage_of, text_of, unnormed, weights

# -------------------------------------------------------------------------- exact laws


@pytest.mark.parametrize("a", [0.5, 2.0, 24.0])
def test_linear_variance(a: float) -> None:
    """x_0 has mean square a and every branch adds 1: a + n after n of them."""
    found = stage_of(make_history([normalised(a)]), "4x", 100)
    assert found.forward.law == found.gradient.law == "normalised"
    assert found.forward.fits is not None
    assert found.forward.fits.linear.r_squared == pytest.approx(1.0)
    for at, n in zip(found.extrapolated, (96, 100), strict=True):
        assert at.sites == n
        assert at.growth == pytest.approx(math.sqrt((a + n) / a), rel=1e-6)
        # B is taken without the first site
        assert at.budget == pytest.approx(math.log((a + n) / (a + 1)), rel=1e-6)
        assert at.gradient == pytest.approx(math.sqrt((a + n) / (a + 1)), rel=1e-6)
        assert at.multiplier == pytest.approx(math.sqrt((a + n) / a), rel=1e-6)
        law = theory.expected_variance_growth(0, n, "normalised", a=a)
        assert at.growth == pytest.approx(math.sqrt(law), rel=1e-6)
        assert at.budget == pytest.approx(
            theory.expected_budget(n - 1, "normalised", a=a + 1), rel=1e-6
        )
    # the same curve, were the branches of the deeper net scaled by its own depth: the first site,
    # outside the law, adds 1 as here, each of the others L/n
    for at, n in zip(found.otherwise, (96, 100), strict=True):
        assert at.law == "normalised-scaled"
        added = (n - 1) * L / n
        assert at.growth == pytest.approx(math.sqrt((a + 1 + added) / a), rel=1e-6)
        assert at.budget == pytest.approx(math.log((a + 1 + added) / (a + 1)), rel=1e-6)
        assert at.multiplier == pytest.approx(math.sqrt((a + 1 + added) / a), rel=1e-6)


@pytest.mark.parametrize("r", [0.5, 1.0])
def test_one_factor_a_block(r: float) -> None:
    found = stage_of(weights(unnormed([np.full(L, r)])), "4x", "2x")
    assert found.forward.law == found.gradient.law == "constant"
    for at, n in zip(found.extrapolated, (96, 48), strict=True):
        assert at.growth == pytest.approx((1 + r * r) ** (n / 2), rel=1e-9)
        assert at.budget == pytest.approx((n - 1) * math.log(1 + r * r), rel=1e-9)
        assert at.multiplier == pytest.approx((1 + r * r) ** (n / 2), rel=1e-9)
        law = theory.expected_variance_growth(0, n, "constant", scale=r)
        assert at.growth == pytest.approx(math.sqrt(law), rel=1e-9)


def test_branches_scaled_with_depth_stay_bounded() -> None:
    """r = 1/sqrt(24); at 96 sites 1/sqrt(96). The first site, outside the law, stays as it is."""
    made = make_history([np.full(L, 1 / math.sqrt(L))])
    found = stage_of(weights(made, 0.25 / math.sqrt(L)), "4x", "1000x")
    assert found.forward.law == found.gradient.law == "depth-scaled"
    first = math.sqrt(1 + 1 / 24)
    near, far = found.extrapolated
    assert near.growth == pytest.approx(first * (1 + 1 / 96) ** (95 / 2), rel=1e-9)
    assert near.budget == pytest.approx(95 * math.log(1 + 1 / 96), rel=1e-9)
    assert near.multiplier == pytest.approx(first * (1 + 1 / 96) ** (95 / 2), rel=1e-9)
    law = theory.expected_variance_growth(1, 96, "depth-scaled")
    assert near.growth == pytest.approx(first * math.sqrt(law), rel=1e-9)
    assert far.growth == pytest.approx(first * math.sqrt(math.e), rel=1e-4)
    assert far.budget == pytest.approx(1.0, rel=1e-3)
    # the same curve, were the branches of the deeper net not scaled by its own depth
    assert found.otherwise[0].law == "constant"
    assert found.otherwise[0].growth == pytest.approx((1 + 1 / 24) ** 48, rel=1e-9)
    assert found.otherwise[0].budget == pytest.approx(95 * math.log(1 + 1 / 24), rel=1e-9)


def test_zero_branches_stay_zero_at_any_depth() -> None:
    found = stage_of(make_history([np.zeros(L)]), "4x")
    (at,) = found.extrapolated
    assert (at.growth, at.budget, at.multiplier) == (1.0, 0.0, 1.0)
    assert found.otherwise == ()


def test_branches_of_zero_are_said_to_be_the_same_under_every_law() -> None:
    text = text_of(make_history([np.zeros(L)]), "4x")
    assert "stream the same at every depth" in text
    assert "gradients the same at every depth" in text
    assert "96 4x any x1.00" in text
    assert "not the law of this gradient" not in text
    assert "R^2" not in text


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ("pre-norm", True),
        ("pre-activation", True),
        ("sandwich", True),
        ("none", False),
        ("branch-norm", False),
    ],
)
def test_an_exponential_of_normalised_branches_is_not_to_be_trusted(
    placement: str, said: bool
) -> None:
    sites = make_map(*(make_site(k, norm_placement=placement) for k in range(L)))
    words = "a branch that reads a normalised input cannot keep growing with its stream"
    assert (words in text_of(make_history([np.full(L, 0.5)], sites=sites), "4x")) is said
    assert words not in text_of(make_history([normalised(1.0)], sites=sites), "4x")


def test_aligned_branches_keep_their_own_budget() -> None:
    """c = 1: y = (1 + r) s, so growth is 1.5 a site while B counts ln(1 + r^2)."""
    found = stage_of(weights(unnormed([np.full(L, 0.5)], cosine=1.0)), "2x")
    (at,) = found.extrapolated
    assert at.growth == pytest.approx(1.5**48, rel=1e-9)
    assert at.budget == pytest.approx(47 * math.log(1.25), rel=1e-9)
    text = str(extrapolate(make_history([np.full(L, 0.5)], cosine=1.0), "2x"))
    assert "not independent (median cosine +1.00)" in " ".join(text.split())


# -------------------------------------------------------------------------- fits


def test_noise_leaves_the_law_and_moves_the_number_little() -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, L)
    found = stage_of(make_history([normalised(1.0) * np.exp(noise)]), "4x")
    assert found.forward.law == "normalised"
    assert found.forward.fits is not None
    assert 0.98 < (found.forward.fits.linear.r_squared or 0) < 1
    assert found.extrapolated[0].growth == pytest.approx(math.sqrt(97), rel=0.15)


def test_the_check_extrapolates_within_the_run() -> None:
    """v = 1, 2 ... 17: half of it says (16 + 1)/1, as the whole does."""
    found = fit(np.arange(1.0, 18.0))
    assert found.check == pytest.approx((math.log(17), math.log(17)), rel=1e-6)


def test_no_law_and_no_number_for_a_mixed_profile() -> None:
    """Twelve normalised blocks, then twelve that multiply."""
    r = np.where(np.arange(L) < 12, normalised(1.0), 0.8)
    made = extrapolate(make_history([r]), "4x")
    stage = made.numbers.moments[0].streams[0].stages[0]
    assert stage.forward.law is None
    assert stage.gradient.law is None
    assert stage.forward.reason.startswith("no law fits")
    (at,) = stage.extrapolated
    assert (at.growth, at.budget, at.gradient, at.multiplier) == (None, None, None, None)
    scalar = made.numbers.moments[0].streams[0].scalar
    assert scalar is not None
    assert scalar.at == ()
    assert "4x " not in str(made).split("\n", 1)[1]


def test_a_falling_stream_follows_no_law() -> None:
    found = stage_of(make_history([np.full(L, 0.2)], cosine=-1.0), "4x")
    assert found.forward.reason == "no law fits: the stream shrinks along depth"
    assert found.extrapolated[0].growth is None


def test_a_gradient_that_falls_by_a_factor_a_block() -> None:
    """Each block passes 0.8 on: d = 0.8, as 0.8^20 = 0.01153."""
    history = make_history([np.full(20, 0.2)], b=0.2, gradient_cosine=-1.0)
    made = extrapolate(history, "1x", 50)
    scalar = made.numbers.moments[0].streams[0].scalar
    assert scalar is not None
    assert scalar.factor == pytest.approx(0.8)
    assert scalar.multiplier == pytest.approx(0.01153, rel=1e-3)
    assert [n for _, n, _ in scalar.at] == [20, 50]
    assert scalar.at[1][2] == pytest.approx(1.427e-5, rel=1e-3)
    assert stage_of(history, 50).extrapolated[0].multiplier == pytest.approx(0.8**50)
    assert "0.8^20 = 0.01153 measured" in str(made)


@pytest.mark.parametrize("b", [0.2, 0.123456, 1.7e-5, 1e-9])
def test_a_power_is_that_of_the_base_as_it_is_printed(b: float) -> None:
    """A reader who types 0.999983^400 into a calculator sees what stands behind the sign."""
    history = make_history([np.full(20, 0.2)], b=b, gradient_cosine=-1.0)
    powers = re.findall(
        r"([\d.]+)\^(\d+) = (\S+?)(?:,| measured|$)", str(extrapolate(history, "20x")), re.MULTILINE
    )
    assert powers[0][1] == "20"
    assert len(powers) == 1 + (b > 0.1)  # one that hardly falls follows no law
    for base, count, printed in powers:
        assert printed == f"{float(base) ** int(count):.4g}"
        assert float(printed) == pytest.approx((1 - b) ** int(count), rel=1e-3)


# -------------------------------------------------------------------------- stages, streams


def test_each_stage_has_its_own_law() -> None:
    """Ten normalised sites, then ten that multiply, behind a projection: growth from each input."""
    sites = make_map(
        *(make_site(k, norm_placement="none") for k in range(10)),
        *(
            make_site(
                k, norm_placement="none", stage=1, kind="projection" if k == 10 else "identity"
            )
            for k in range(10, 20)
        ),
    )
    r = np.concatenate([normalised(1.0, 10), np.full(10, 0.8)])
    made = extrapolate(weights(make_history([r], sites=sites)), "2x", 60)
    stream = made.numbers.moments[0].streams[0]
    one, two = stream.stages
    assert (one.forward.law, two.forward.law) == ("normalised", "constant")
    assert [at.sites for at in one.extrapolated] == [20, 30]  # 60 of 20 in all: three times
    assert one.extrapolated[0].growth == pytest.approx(math.sqrt(21))
    assert two.extrapolated[1].growth == pytest.approx(1.64**15)
    assert one.extrapolated[0].multiplier is None  # of the stream, not of a stage


def test_streams_are_told_apart() -> None:
    sites = make_map(
        *(make_site(k, norm_placement="none", stream=k // 12, depth=k % 12) for k in range(24)),
    )
    r = np.concatenate([normalised(1.0, 12), np.full(12, 0.7)])
    made = extrapolate(weights(make_history([r], sites=sites)), "2x")
    laws = [s.stages[0].forward.law for s in made.numbers.moments[0].streams]
    assert laws == ["normalised", "constant"]
    assert "Initialisation, step 0, stream 1" in str(made)


def test_behind_an_embedding_two_sites_stay_out() -> None:
    sites = make_map(*(make_site(k, norm_placement="none") for k in range(L)), embedding_fed=True)
    r = np.concatenate([[5.0, 3.0], np.full(L - 2, 0.5)])
    found = stage_of(weights(make_history([r], sites=sites)), "2x")
    assert found.counted == L - 2
    head = math.sqrt((1 + 25) * (1 + 9))
    assert found.extrapolated[0].growth == pytest.approx(head * 1.25 ** (46 / 2))
    assert found.extrapolated[0].budget == pytest.approx(46 * math.log(1.25))


def test_post_norm_has_no_law_of_growth_and_keeps_that_of_the_gradient() -> None:
    sites = make_map(*(make_site(k, norm_placement="post-norm", link=("norm",)) for k in range(L)))
    found = stage_of(make_history([np.full(L, 0.5)], sites=sites, shortcut_rms=1.0), "2x")
    assert found.forward.law is None
    assert "rescaled" in found.forward.reason
    assert found.extrapolated[0].growth is None
    assert found.extrapolated[0].multiplier == pytest.approx(1.25**24)


def test_without_a_gradient_at_the_input_the_sums_tell() -> None:
    """The first x is a raw input: G over 23 sites, so d = G^(1/23)."""
    have = np.full((1, L), 31)
    have[0, 0] = 1 | 2 | 4
    made = extrapolate(make_history([np.full(L, 0.5)], have=have), "2x")
    scalar = made.numbers.moments[0].streams[0].scalar
    assert scalar is not None
    assert (scalar.start, scalar.blocks) == ("first sum", 23)
    assert scalar.factor == pytest.approx(math.sqrt(1.25))
    assert scalar.at[0][1:] == (47, pytest.approx(1.25**23.5))
    assert made.numbers.moments[0].streams[0].stages[0].extrapolated[0].multiplier is None
