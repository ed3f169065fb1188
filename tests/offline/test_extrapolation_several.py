"""Two curves that fit alike are the ends of a range; which start, is asked of the branches."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from skipscope import theory
from skipscope.extrapolation import extrapolate
from skipscope.extrapolation.fit import Fit, Floats, _standing, fit
from skipscope.history import History
from tests.offline.builders import (
    make_history,
    make_map,
    make_site,
)
from tests.offline.extrapolated import L, normalised, stage_of, text_of, unnormed, weights

# ------------------------------------------------------------- which of two curves it follows


def between(a: float, sites: int = L) -> Floats:
    """r of a stream halfway between linear variance and a factor a site, independent branches."""
    k = np.arange(sites + 1)
    logs = (np.log1p(k / a) + np.log1p(sites / a) * k / sites) / 2
    ratios: Floats = np.sqrt(np.expm1(np.diff(logs)))
    return ratios


def ends(r: Floats) -> tuple[float, float]:
    """a and the factor of the profile after the first sum: by trying each a, and by a line."""
    logs = np.concatenate([[0.0], np.cumsum(np.log1p(r[1:] ** 2))])
    k = np.arange(len(logs))
    tried = np.exp(np.linspace(math.log(1.0), math.log(1e5), 40001))
    off = logs - np.log1p(k / tried[:, None])
    return float(tried[off.var(axis=1).argmin()]), math.exp(np.polyfit(k, logs, 1)[0])


def test_both_stand_where_both_fit_alike() -> None:
    """1/v falls by equal steps faster than a line, slower than a factor."""
    k = np.arange(L)
    linear, geometric = np.log1p(k / 10), np.log1p(L / 10) * k / L
    found = fit(np.exp((linear + geometric) / 2))
    assert found.shapes == ("linear", "geometric")
    assert found.reason == "no law fits clearly better than the other"
    assert len(found.check) == 3


def test_a_fit_that_is_not_good_enough_is_so_as_printed() -> None:
    """0.9496 with two digits is the limit itself."""
    near, far = Fit("linear", 1.0, 0.1, 0.9496), Fit("geometric", 1.0, 0.2, 0.5)
    assert _standing(near, far, flat=False) == (
        (),
        "no law fits: the better R^2 is 0.9496, below 0.95",
    )


@pytest.mark.parametrize(("other", "shapes"), [(0.95, 2), (0.949, 0), (0.91, 1)])
def test_the_end_of_a_range_fits_well_itself(other: float, shapes: int) -> None:
    """Squares of .02 against .05 and .051 are less than 4 times apart, of .09 they are more."""
    near, far = (Fit("linear", 1.0, math.sqrt(1 - one), one) for one in (0.98, other))
    standing, reason = _standing(near, far, flat=False)
    assert len(standing) == shapes
    assert ("one of them not well: R^2 0.949, below 0.95" in reason) == (shapes == 0)


def test_what_both_say_is_a_range() -> None:
    r = between(20.0)
    history = weights(make_history([r]))
    found = stage_of(history, "4x")
    assert found.forward.laws == found.gradient.laws == ("normalised", "constant")
    assert found.forward.law is None
    assert found.extrapolated[0].growth is None
    linear, factor = found.otherwise[:2]
    assert (linear.law, factor.law) == ("normalised", "constant")
    first, (a, q) = 1 + r[0] ** 2, ends(r)
    assert linear.growth == pytest.approx(math.sqrt(first * (1 + 95 / a)), rel=1e-3)
    assert factor.growth == pytest.approx(math.sqrt(first * q**95), rel=1e-6)
    measured = np.log1p(r[1:] ** 2).sum()
    assert linear.budget == pytest.approx(math.log1p(math.expm1(measured) * 95 / 23))
    assert factor.budget == pytest.approx(measured * 95 / 23)
    # the gradient passes through the same factors, the last site first
    assert linear.multiplier is not None
    assert factor.multiplier is not None
    assert linear.multiplier < factor.multiplier
    text = text_of(history, "4x")
    low, high = (f"x{one.growth:.2f}" for one in (linear, factor))
    said = f"4x growth between {low} (linear variance) and {high} (a factor a site)"
    budgets = f"B {linear.budget:.2f} to {factor.budget:.2f}"
    assert f"range {said}, {budgets}, depth multiplier x" in text
    assert "which is not the law of this gradient" not in text
    assert "stream linear variance and a factor a site fit alike" in text
    assert "expect growth near that of linear variance" in text
    assert f"96 4x if normalised {low}" in text
    assert f"96 4x if constant {high}" in text
    whole = extrapolate(history, "4x")
    assert said in whole.report("markdown")
    (moment,) = json.loads(whole.report("json"))["moments"]
    written = moment["streams"][0]["stages"][0]
    assert written["forward"]["laws"] == ["normalised", "constant"]
    assert [one["growth"] for one in written["otherwise"][:2]] == [linear.growth, factor.growth]


def test_a_range_of_branches_that_shrink_is_bounded() -> None:
    """Scaled last matrices, as GPT-2 starts: both curves end at what the measured net has."""
    r = between(20.0)
    found = stage_of(weights(make_history([r]), 0.25 / math.sqrt(L)), "4x", "1000x")
    assert found.forward.laws == ("normalised-scaled", "depth-scaled")
    first, (a, q) = 1 + r[0] ** 2, ends(r)
    linear, far, factor, farther = found.otherwise[:4]
    assert linear.growth == pytest.approx(math.sqrt(first * (1 + 95 / (4 * a))), rel=1e-3)
    assert factor.growth == pytest.approx(math.sqrt(first) * (1 + (q - 1) / 4) ** (95 / 2))
    assert far.growth == pytest.approx(math.sqrt(first * (1 + L / a)), rel=1e-3)
    assert farther.growth == pytest.approx(math.sqrt(first * math.exp(L * (q - 1))), rel=1e-3)
    assert [one.law for one in found.otherwise[4:]] == ["normalised"] * 2 + ["constant"] * 2
    text = text_of(weights(make_history([r]), 0.25 / math.sqrt(L)), "4x")
    assert "or normalised or constant: the branches of the deeper net start as large" in text
    assert "expect growth near" not in text
    assert "d^n takes every further block to multiply like the mean one, which is not" in text


def test_neither_curve_nor_start_are_told() -> None:
    found = stage_of(make_history([between(20.0)]), "4x")
    assert [one.law for one in found.otherwise] == [
        "normalised", "constant", "normalised-scaled", "depth-scaled",
    ]  # fmt: skip
    text = text_of(make_history([between(20.0)]), "4x")
    assert "either normalised or constant: the branches of the deeper net start as large" in text
    assert "or normalised-scaled or depth-scaled: the deeper the net, the smaller" in text
    assert text.count("4x growth between") == 2


def test_linear_variance_of_branches_that_shrink() -> None:
    """Of 24 sites each adds 1 to a mean square of 2; of n each adds 24/n."""
    found = stage_of(weights(make_history([normalised(2.0)]), 0.25 / math.sqrt(L)), "4x", "1000x")
    assert found.forward.law == found.gradient.law == "normalised-scaled"
    for at, n in zip(found.extrapolated, (96, 24000), strict=True):
        square = 3 + (n - 1) * 24 / n
        assert at.growth == at.multiplier == pytest.approx(math.sqrt(square / 2), rel=1e-6)
        assert at.budget == pytest.approx(math.log(square / 3), rel=1e-6)
        # the law itself, of branches that add 24 before 1/sqrt(L): a is 2/24
        law = theory.expected_variance_growth(0, n, "normalised-scaled", a=2 / 24)
        assert at.growth == pytest.approx(math.sqrt(law), rel=0.02)
    assert [one.law for one in found.otherwise] == ["normalised"] * 2
    assert found.otherwise[0].growth == pytest.approx(math.sqrt(98 / 2), rel=1e-6)


def test_a_range_of_the_gradient_alone_leaves_growth_its_law() -> None:
    found = stage_of(weights(make_history([normalised(2.0)], b=between(20.0))), "4x")
    assert (found.forward.law, found.gradient.laws) == ("normalised", ("normalised", "constant"))
    linear, factor = found.otherwise[:2]
    assert linear.growth == factor.growth == pytest.approx(7.0, rel=1e-6)
    assert linear.multiplier is not None
    assert factor.multiplier is not None
    assert linear.multiplier != pytest.approx(factor.multiplier, rel=0.1)
    text = text_of(weights(make_history([normalised(2.0)], b=between(20.0))), "4x")
    assert "range 4x growth x7.00, B 3.49, depth multiplier between" in text


def test_on_a_rescaled_stream_no_start_changes_the_gradient() -> None:
    sites = make_map(*(make_site(k, norm_placement="post-norm", link=("norm",)) for k in range(L)))
    found = stage_of(make_history([between(20.0)], sites=sites, shortcut_rms=1.0), "4x")
    assert found.gradient.laws == ("normalised", "constant")
    assert [one.law for one in found.otherwise] == ["normalised", "constant"]


@pytest.mark.parametrize("r", [0.01, 0.06])
def test_a_flat_stream_has_the_range_of_its_laws(r: float) -> None:
    """23 sites of 1 + r^2: the RMS grows by 0.1 % and by 4.2 %, too little to tell a shape."""
    history = weights(make_history([np.full(L, r)]))
    found = stage_of(history, "4x")
    assert found.forward.laws == found.gradient.laws == ("normalised", "constant")
    linear, factor = found.otherwise[:2]
    assert factor.growth == pytest.approx((1 + r * r) ** 48)
    assert linear.growth == pytest.approx(math.sqrt(1 + 96 * r * r), rel=0.02)
    text = text_of(history, "4x")
    assert "stream flat, varies by under 5 %; linear variance and a factor a site fit alike" in text
    assert "gradients flat, varies by under 5 %; linear variance and a factor" in text


def wobbling(r: float) -> History:
    """Branches of this r that lie along their shortcut and against it, by turns."""
    by_turns = np.where(np.arange(L) % 2, 1.0, -1.0)
    return make_history([np.full(L, r)], cosine=by_turns, gradient_cosine=by_turns)


def test_a_flat_stream_without_a_shape_has_no_law_and_one_wording() -> None:
    found = stage_of(wobbling(0.02), "4x")
    assert found.forward.law is None
    assert found.gradient.law is None
    assert found.extrapolated[0].growth is None
    assert found.otherwise == ()
    text = text_of(wobbling(0.02), "4x")
    assert "stream flat: no shape, it varies by under 5 %" in text
    assert "gradients flat: no shape, it varies by under 5 %" in text
    assert "R^2" not in text
    assert "stream law" not in text
    assert "gradients law" not in text


def test_five_percent_is_where_a_shape_begins() -> None:
    """(1 + r^2)^(23/2) is 1.051 at r = 0.066."""
    fits = stage_of(make_history([np.full(L, 0.066)]), "4x").forward.fits
    assert fits is not None
    assert fits.shapes == ("geometric",)


def test_a_flat_gradient_has_no_law_behind_a_stream_with_one() -> None:
    by_turns = np.where(np.arange(L) % 2, 1.0, -1.0)
    made = unnormed([np.full(L, 0.5)], b=0.01, gradient_cosine=by_turns)
    history = weights(made)
    found = stage_of(history, "2x", "4x")
    assert (found.forward.law, found.gradient.answers) == ("constant", ())
    text = text_of(history, "2x", "4x")
    other = text.split(" or the same curve")[1].split(" d^n ")[0]
    assert "first/last" not in other
    # under the other law the rate shrinks with the depth: r^2 is 6/96 at 96 sites
    assert f"; 4x growth x{math.sqrt(1.25) * (1 + 6 / 96) ** (95 / 2):.3g}" in other
