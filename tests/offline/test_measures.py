"""Measures against numbers worked out by hand from small arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from skipscope import measures
from skipscope.history import History, Table
from skipscope.measure import Measure, collect, measure
from skipscope.measure.chains import chains
from skipscope.records import (
    FACTS,
    HAVE_FORWARD,
    HAVE_GRAD,
    HAVE_GRADIENT,
    HAVE_INPUT,
    HAVE_INPUT_GRAD,
    HAVE_SPLIT,
    HAVE_UPDATE,
    HAVE_WEIGHT,
    SUMS,
    SiteMap,
)
from tests.offline.builders import (
    add_facts,
    add_updates,
    make_history,
    make_map,
    make_parameter,
    make_site,
)

NAN, INF = float("nan"), float("inf")


def captured(
    *sites: dict[str, float], have: npt.ArrayLike = 31, plan: SiteMap | None = None
) -> History:
    """One capture with exactly these fields; the rest is 0."""
    history = History()
    history.set_sites(plan or make_map(*(make_site(k) for k in range(len(sites)))))
    sums = [[site.get(field.name, 0.0) for field in SUMS] for site in sites]
    history.append_capture(0, sums, np.broadcast_to(np.asarray(have), len(sites)), [0] * len(sites))
    return history


def value(history: History, name: str, column: int = 0) -> float:
    """The only row's value; a missing one must be asked for with `missing`."""
    table = history.table(name)
    assert not table.missing[-1, column], f"{name} is missing"
    return float(table.values[-1, column])


def missing(history: History, name: str, column: int = 0) -> bool:
    table = history.table(name)
    assert np.isnan(table.values[table.missing]).all()
    return bool(table.missing[-1, column])


# s = (3, 4), f = (0, 5), y = (3, 9), x = (6, 8): the shortcut is x/2.
# g_y = (1, 2), identity part (0.5, 1), branch part (1, -1): g_x = (1.5, 0).
TWO = {
    "n": 2, "s": 7, "f": 5, "ss": 25, "ff": 25, "sf": 20, "yy": 90,
    "max_s": 4, "max_f": 5, "max_y": 9, "min_f": 0,
    "n_x": 2, "x": 14, "xx": 100, "max_x": 8,
    "rows": 2, "samples": 4, "zero_s": 1, "zero_f": 3, "influence": 0.5, "r_median": 0.75,
    "gy": 5, "gx": 2.25, "gi": 1.25, "gb": 2, "gib": -0.5, "gxy": 1.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("branch_ratio", 1.0),
        ("branch_ratio_median", 0.75),
        ("cosine", 0.8),
        ("growth", math.sqrt(90 / 25)),
        ("stream_growth", math.sqrt(0.9)),
        ("block_influence", 0.25),
        ("adapter_ratio", 0.5),
        ("zero_branch_share", 0.75),
        ("zero_shortcut_share", 0.25),
        ("rms_shortcut", math.sqrt(12.5)),
        ("rms_branch", math.sqrt(12.5)),
        ("rms_sum", math.sqrt(45)),
        ("rms_input", math.sqrt(50)),
        ("mean_shortcut", 3.5),
        ("mean_branch", 2.5),
        ("mean_sum", 6.0),
        ("mean_input", 7.0),
        ("std_shortcut", 0.5),
        ("std_branch", 2.5),
        ("std_sum", 3.0),
        ("std_input", 1.0),
        ("max_shortcut", 4.0),
        ("max_branch", 5.0),
        ("max_sum", 9.0),
        ("max_input", 8.0),
        ("min_branch", 0.0),
        ("grad_sum_norm", math.sqrt(5)),
        ("grad_input_norm", 1.5),
        ("gradient_gain", 1.5 / math.sqrt(5)),
        ("branch_gradient", math.sqrt(2)),
        ("identity_gradient", math.sqrt(1.25)),
        ("gradient_branch_ratio", math.sqrt(1.6)),
        ("gradient_cosine", -0.5 / math.sqrt(2.5)),
    ],
)
def test_site_measure(name: str, expected: float) -> None:
    assert value(captured(TWO), name) == pytest.approx(expected, rel=1e-14)


def test_growth_follows_from_ratio_and_cosine() -> None:
    history = captured(TWO)
    r, c = value(history, "branch_ratio"), value(history, "cosine")
    assert value(history, "growth") == pytest.approx(math.sqrt(1 + 2 * r * c + r * r))


def test_mean_shift() -> None:
    # two rows (1, 2) and (3, 2): channel means 2 and 2, mean square 18/4 = 4.5
    assert value(captured({"n": 4, "yy": 18, "channel": 4}), "mean_shift") == 8.0
    # rows all alike, and rounding that makes the rest negative: nothing but mean
    assert value(captured({"n": 2, "yy": 90, "channel": 45}), "mean_shift") == INF
    assert value(captured({"n": 2, "yy": 90, "channel": 45.0001}), "mean_shift") == INF


def test_row_alignment() -> None:
    # unit rows at 0, 60 and 180 degrees: cosines 1/2, -1 and -1/2, each pair twice
    assert value(captured({"row_cosine": -2, "row_pairs": 6}), "row_alignment") == -2 / 6
    # one row a sample: nothing to compare
    assert missing(captured({"row_cosine": 0, "row_pairs": 0}), "row_alignment")
    # a row that is not a number is a result; an earlier release kept neither sum
    broken = captured({"yy": NAN, "row_cosine": NAN, "row_pairs": 6})
    assert math.isnan(value(broken, "row_alignment"))
    assert missing(captured({"yy": 9, "row_cosine": NAN, "row_pairs": NAN}), "row_alignment")


def test_variance_never_falls_below_zero() -> None:
    # two elements of 3: mean square 9, summed with a relative error of 1e-9
    assert value(captured({"n": 2, "s": 6, "ss": 18 - 18e-9}), "std_shortcut") == 0.0


def test_presence_of_the_shortcut() -> None:
    scaled = make_map(make_site(0, kind="scaled"))
    # x/2 passes g_y/2 = (0.5, 1) on: <g_x, that> / |that|^2 = 0.75 / 1.25
    assert value(captured(TWO, plan=scaled), "shortcut_presence") == pytest.approx(0.6)
    # an identity should pass g_y on: 1.5 / 5
    assert value(captured(TWO), "shortcut_presence") == pytest.approx(0.3)
    detached = {**TWO, "gi": 0.0, "gxy": 0.05}
    assert value(captured(detached), "shortcut_presence") == pytest.approx(0.01)
    projection = make_map(make_site(0, kind="projection"))
    assert missing(captured(TWO, plan=projection), "shortcut_presence")


# ------------------------------------------------------------------ missing, undefined, not finite


@pytest.mark.parametrize(
    ("absent", "gone", "stays"),
    [
        (HAVE_FORWARD, ["branch_ratio", "growth", "max_sum", "stream_growth"], ["gradient_gain"]),
        (
            HAVE_INPUT,
            ["stream_growth", "block_influence", "rms_input", "adapter_ratio"],
            ["growth"],
        ),
        (HAVE_GRAD, ["grad_sum_norm", "gradient_gain", "shortcut_presence"], ["grad_input_norm"]),
        (HAVE_INPUT_GRAD, ["grad_input_norm", "gradient_gain"], ["grad_sum_norm"]),
        (HAVE_SPLIT, ["branch_gradient", "gradient_cosine"], ["gradient_gain"]),
    ],
)
def test_what_was_not_measured_is_missing(absent: int, gone: list[str], stays: list[str]) -> None:
    history = captured(TWO, have=31 - absent)
    assert [name for name in gone if not missing(history, name)] == []
    assert [name for name in stays if missing(history, name)] == []


def test_zero_over_zero_is_missing_and_more_over_zero_is_infinite() -> None:
    asleep = captured({**TWO, "ff": 0, "f": 0, "sf": 0})
    assert value(asleep, "branch_ratio") == 0.0
    assert missing(asleep, "cosine")
    erased = captured({**TWO, "ss": 0, "s": 0, "sf": 0})
    assert value(erased, "branch_ratio") == INF
    assert value(erased, "growth") == INF
    nothing = captured({**TWO, "ss": 0, "ff": 0, "sf": 0, "yy": 0})
    assert missing(nothing, "branch_ratio")
    # a DiT at step 0: the head is zero, so every gradient is
    dit = captured(*[{**TWO, "gy": 0, "gx": 0, "gi": 0, "gb": 0, "gib": 0, "gxy": 0}] * 2)
    ratios = ["gradient_gain", "gradient_branch_ratio", "gradient_cosine", "shortcut_presence"]
    ratios += ["gradient_ratio", "depth_multiplier", "site_multiplier", "link_multiplier"]
    assert [name for name in ratios if not missing(dit, name)] == []
    assert value(dit, "grad_sum_norm") == 0.0


def test_not_finite_is_a_result() -> None:
    broken = captured({**TWO, "ff": NAN, "yy": NAN, "sf": NAN, "max_f": INF})
    assert math.isnan(value(broken, "branch_ratio"))
    assert math.isnan(value(broken, "cosine"))
    assert value(broken, "max_branch") == INF
    assert value(broken, "rms_shortcut") == math.sqrt(12.5)
    # infinity over infinity is no undefined ratio: the numbers were measured
    overflow = captured({**TWO, "ss": INF, "yy": INF})
    assert math.isnan(value(overflow, "growth"))
    assert value(overflow, "branch_ratio") == 0.0


def test_field_that_could_not_be_formed_is_missing() -> None:
    """No median without rows, no cosine of unequal shapes; but NaN from NaN is a result."""
    shapes = {**TWO, "influence": NAN, "r_median": NAN, "gxy": NAN, "channel": NAN}
    names = ["block_influence", "branch_ratio_median", "shortcut_presence", "mean_shift"]
    assert all(missing(captured(shapes), name) for name in names)
    broken = captured({**shapes, "yy": NAN, "ff": NAN, "gx": NAN})
    assert all(math.isnan(value(broken, name)) for name in names)


# ----------------------------------------------------------------------------- streams and stages


def stream(*rms: float, first: float = 1.0) -> list[dict[str, float]]:
    """Sites with these RMS of the sum, of one element each; r is 1 and the input is `first`."""
    return [{"n": 1, "n_x": 1, "xx": first**2, "ss": 1, "ff": 1, "yy": level**2} for level in rms]


def test_half_depth_growth() -> None:
    # x_1 .. x_8; half depth is x_4 = 4; growths after it: 2, 1.25, 2, 1
    history = captured(*stream(1, 2, 3, 4, 8, 10, 20, 20, first=0.5))
    assert value(history, "half_depth_growth") == 5.0
    assert value(history, "half_depth_growth_without_largest") == 2.5
    assert value(history, "total_growth") == 40.0
    # an odd number: half of 5 is x_2
    assert value(captured(*stream(1, 2, 3, 4, 5)), "half_depth_growth") == 2.5
    assert value(captured(*stream(2, 3)), "half_depth_growth") == 1.5


def test_half_depth_is_half_of_the_sites_that_add_something() -> None:
    # 4 frozen branches of 0, then variances 1 + 1, 1 + 2 ... 1 + 8: half of these 8 is 1 + 4
    sites = stream(*[1.0] * 4, *(math.sqrt(1 + k) for k in range(1, 9)))
    for site in sites[:4]:
        site["ff"] = 0.0
    history = captured(*sites)
    assert value(history, "half_depth_growth") == pytest.approx(math.sqrt(9 / 5))
    largest = math.sqrt(6 / 5)  # the first step behind the half
    grown = value(history, "stage_half_depth_growth_without_largest")
    assert grown == pytest.approx(math.sqrt(9 / 5) / largest)
    # where none or one adds anything there is no half to compare
    assert value(captured(*sites[:4]), "half_depth_growth") == 1.0
    assert value(captured(*sites[:4]), "half_depth_growth_without_largest") == 1.0
    lone = captured(*sites[:4], {**sites[4], "yy": 9.0})
    assert value(lone, "half_depth_growth") == 1.0
    assert value(lone, "half_depth_growth_without_largest") == 1.0


def test_levels_compare_across_stages_by_rms() -> None:
    """Mean squares 4 and 9, whatever the number of elements."""
    history = captured({"n": 100, "yy": 400}, {"n": 10, "yy": 90})
    assert value(history, "half_depth_growth") == 1.5
    gradients = captured({"n": 100, "gy": 400}, {"n": 25, "gy": 25})
    assert value(gradients, "gradient_ratio") == 2.0


def test_residual_budget_leaves_out_the_first_of_each_stage() -> None:
    # r^2 = 7, 1, 2, 5, 3: left are ln 2, ln 3 in stage 0 and ln 4 in stage 1
    plan = make_map(*(make_site(k, stage=int(k > 2)) for k in range(5)))
    sites = [{"ss": 1.0, "ff": square} for square in (7.0, 1.0, 2.0, 5.0, 3.0)]
    history = captured(*sites, plan=plan)
    assert value(history, "residual_budget") == pytest.approx(math.log(24))
    assert value(history, "stage_residual_budget", 0) == pytest.approx(math.log(6))
    assert value(history, "stage_residual_budget", 1) == pytest.approx(math.log(4))
    assert history.table("stage_residual_budget").columns == (
        "stream 0 stage 0",
        "stream 0 stage 1",
    )


def test_residual_budget_behind_an_embedding_leaves_out_two() -> None:
    plan = make_map(*(make_site(k) for k in range(3)), embedding_fed=True)
    history = captured(*[{"ss": 1.0, "ff": square} for square in (7.0, 1.0, 2.0)], plan=plan)
    assert value(history, "residual_budget") == pytest.approx(math.log(3))
    short = make_map(make_site(0), make_site(1), embedding_fed=True)
    assert missing(captured(*[{"ss": 1.0, "ff": 1.0}] * 2, plan=short), "residual_budget")


def test_depth_multiplier_and_its_factors() -> None:
    """Three sites; |g_x|, |g_y| from first to last: 6, 4 | 2, 8 | 4, 2.

    End to end 6/2 = 3. Sites 6/4 * 2/8 * 4/2 = 3/4; links 4/2 * 8/4 = 4.
    """
    norms = [(6.0, 4.0), (2.0, 8.0), (4.0, 2.0)]
    history = captured(*[{"n": 1, "gx": gx**2, "gy": gy**2} for gx, gy in norms])
    assert value(history, "depth_multiplier") == 3.0
    assert value(history, "site_multiplier") == 0.75
    assert value(history, "link_multiplier") == 4.0
    assert value(history, "depth_factor") == pytest.approx(3 ** (1 / 3))
    assert value(history, "gradient_ratio") == 2.0  # 4/2, at the sums


def test_product_of_site_gains_is_no_depth_multiplier() -> None:
    """Post-norm in small: each site has gain 2, each of the norms between divides by 100."""
    norms = [(1.6e-5, 8e-6), (8e-4, 4e-4), (4e-2, 2e-2), (2.0, 1.0)]  # |g_x|, |g_y|
    history = captured(*[{"n": 1, "gx": gx**2, "gy": gy**2} for gx, gy in norms])
    assert value(history, "site_multiplier") == pytest.approx(16)
    assert value(history, "link_multiplier") == pytest.approx(1e-6)
    assert value(history, "depth_multiplier") == pytest.approx(1.6e-5)


def test_raw_input_has_no_depth_multiplier() -> None:
    bits = [31 - HAVE_INPUT_GRAD, 31, 31]
    history = captured(*[TWO] * 3, have=bits)
    names = ["depth_multiplier", "site_multiplier", "depth_factor"]
    assert [name for name in names if not missing(history, name)] == []
    assert value(history, "gradient_ratio") == 1.0
    assert value(history, "link_multiplier") == pytest.approx(5 / 2.25)  # needs no first input


def test_hole_in_the_middle() -> None:
    history = captured(*[TWO] * 3, have=[31, HAVE_GRAD, 31])
    assert value(history, "depth_multiplier") == pytest.approx(1.5 / math.sqrt(5))
    assert missing(history, "site_multiplier")
    assert missing(history, "residual_budget")
    broken = captured(TWO, {**TWO, "gx": NAN}, TWO)
    assert math.isnan(value(broken, "site_multiplier"))
    assert value(broken, "depth_multiplier") == pytest.approx(1.5 / math.sqrt(5))


def test_streams_keep_apart_and_nested_sites_stay_out() -> None:
    plan = make_map(
        make_site(0, stream=0, depth=1),
        make_site(1, stream=1, depth=0),
        make_site(2, stream=0, depth=0),  # found later, stands before
        make_site(3, stream=0, depth=1, nested=True),
        make_site(4, stream=1, depth=1),
        make_site(5, stream=2, depth=0),
    )
    levels = stream(6.0, 1.0, 2.0, 99.0, 7.0, 1.0)
    history = captured(*levels, plan=plan)
    table = history.table("half_depth_growth")
    assert table.columns == ("stream 0", "stream 1", "stream 2")
    assert table.values[0, :2].tolist() == [3.0, 7.0]
    assert table.missing[0].tolist() == [False, False, True]  # one site makes no profile


def test_chains_name_their_sites() -> None:
    plan = make_map(*(make_site(k, stage=k // 2) for k in range(4)), embedding_fed=True)
    (whole,) = chains(plan)
    assert whole.sites == (0, 1, 2, 3)
    assert whole.counted == (False, False, False, True)
    first, second = chains(plan, by_stage=True)
    assert (first.sites, second.sites) == ((0, 1), (2, 3))
    assert (second.stage, second.counted) == (1, (False, True))


def test_builder_makes_the_stream_it_says() -> None:
    """The tests of the rules lean on it: r 3/4, orthogonal, makes 5/4 a site."""
    history = make_history([[0.75, 0.75]], b=[[0.0, 0.75]], last_gradient=2.0)
    assert value(history, "total_growth") == pytest.approx(25 / 16)
    assert value(history, "rms_shortcut", 1) == pytest.approx(1.25)
    assert value(history, "grad_sum_norm", 1) == pytest.approx(2.0)
    assert value(history, "depth_multiplier") == pytest.approx(1.25)
    assert value(history, "link_multiplier") == pytest.approx(1.0)
    assert value(history, "shortcut_presence", 1) == pytest.approx(1.0)


# ------------------------------------------------------------------------------------- parameters


def weights(have: Any = 7, **changes: Any) -> History:
    """W (2, 4) with |W| 3, |g| 5, |dW| 0.3, 6 of 8 changed; and a zero matrix (4, 2) of block b."""
    table = (
        make_parameter(0, name="a.w", shape=(2, 4), block="b", sites=(0,)),
        make_parameter(1, name="a.z", shape=(4, 2), block="b", sites=(0,)),
        make_parameter(2, name="out", shape=(3,), block="", sites=()),
    )
    history = make_history([[0.5, 0.5]])
    history.set_parameters(table)
    sums = [[8, 9, 25, 0.09, 6], [8, 0, 144, 0.0016, 8], [3, 3, 4, 0.03, 0]]
    history.append_updates(0, sums, np.broadcast_to(np.asarray(have), 3))
    return history


def test_parameter_measures() -> None:
    history = weights()
    assert history.table("weight_norm").columns == ("a.w", "a.z", "out")
    assert value(history, "weight_norm") == 3.0
    assert value(history, "weight_rms") == pytest.approx(3 / math.sqrt(8))
    assert value(history, "gradient_norm") == 5.0
    assert value(history, "update_norm") == pytest.approx(0.3)
    assert value(history, "update_ratio") == pytest.approx(0.1)
    assert value(history, "changed_share") == 0.75


def test_update_ratio_of_a_zero_matrix_has_a_floor() -> None:
    # .1*sqrt(8/2) = .2; |dW| = .04
    assert value(weights(), "update_ratio", 1) == pytest.approx(0.2)
    # a vector: fan-in 1, so .1*sqrt(3) below its own sqrt(3); .03/3
    assert value(weights(), "update_ratio", 2) == pytest.approx(0.1)


def test_fan_in_of_a_convolution() -> None:
    history = History()
    history.set_parameters((make_parameter(0, shape=(2, 3, 2, 2)),))
    history.append_updates(0, [[24, 0, 0, 0.01, 24]], [7])
    # numel 24, fan-in 12: floor .1*sqrt(2)
    assert value(history, "update_ratio") == pytest.approx(0.1 / (0.1 * math.sqrt(2)))


def test_block_and_branch_add_up_squares() -> None:
    history = weights()
    assert history.table("block_weight_norm").columns == ("b",)
    assert value(history, "block_weight_norm") == 3.0
    assert value(history, "block_gradient_norm") == 13.0  # 5, 12
    assert value(history, "block_update_norm") == pytest.approx(math.sqrt(0.0916))
    assert value(history, "block_update_ratio") == pytest.approx(math.sqrt(0.0916 / 9.04))
    for name in ("weight_norm", "gradient_norm", "update_ratio"):
        assert value(history, f"branch_{name}") == value(history, f"block_{name}")
        assert history.table(f"branch_{name}").columns == ("blocks.0", "blocks.1")
        assert missing(history, f"branch_{name}", 1)  # it has no parameters


def test_block_takes_in_what_was_measured() -> None:
    frozen = weights(have=[HAVE_WEIGHT | HAVE_GRADIENT | HAVE_UPDATE, HAVE_WEIGHT, 7])
    assert value(frozen, "block_gradient_norm") == 5.0
    assert value(frozen, "block_update_ratio") == pytest.approx(0.1)  # without the frozen matrix
    assert missing(frozen, "gradient_norm", 1)
    assert missing(frozen, "update_ratio", 1)
    rotating = weights(have=[HAVE_GRADIENT, HAVE_GRADIENT, HAVE_GRADIENT])
    assert value(rotating, "block_gradient_norm") == 13.0
    assert missing(rotating, "block_update_ratio")
    assert missing(rotating, "changed_share")


def test_gradient_that_is_not_finite_reaches_its_block() -> None:
    history = add_updates(make_history([[0.5, 0.5]]), gradient=[[NAN, 1.0]])
    assert math.isnan(value(history, "block_gradient_norm", 0))
    assert value(history, "block_gradient_norm", 1) == 1.0


# ------------------------------------------------------------------------------------------ steps


def test_step_measures() -> None:
    history = add_facts(
        History(), loss=[3, 2, 1], lr=[[1, 10], [2, 20], [3, 30]], steps=[5, 6, 7], epoch=[0, 0, 1]
    )
    table = history.table("loss")
    assert (table.columns, table.steps.tolist()) == (("loss",), [5, 6, 7])
    assert table.values[:, 0].tolist() == [3, 2, 1]
    assert history.table("lr").columns == ("lr.0", "lr.1")
    assert history.table("lr").values[:, 1].tolist() == [10, 20, 30]
    assert value(history, "epoch") == 1.0
    for name in ("loss_scale", "skipped", "captured", "host_ms", "seconds"):
        assert history.table(name).values.shape == (3, 1)


def test_loss_nobody_saw_is_missing_and_a_broken_one_is_not() -> None:
    loss = [NAN, 2.0, NAN, NAN, NAN, INF]
    history = add_facts(
        History(), loss=loss, captured=[1, 1, 0, 1, 1, 1], skipped=[0, 0, 0, 0, 1, 0]
    )
    table = history.table("loss")
    assert table.missing[:, 0].tolist() == [True, False, True, False, True, False]
    assert table.values[5, 0] == INF


# --------------------------------------------------------------------------------------- the table


def test_every_measure_runs_on_every_history() -> None:
    full = add_facts(add_updates(make_history(np.full((3, 9), 0.3))), loss=[1, 2, 3])
    captureless = History()
    captureless.set_sites(make_map(*(make_site(k) for k in range(3))))
    for name in measures.MEASURES:
        table = full.table(name)
        assert table.values.shape == table.missing.shape == (3, len(table.columns)), name
        assert not table.missing.any(), name
        assert np.isfinite(table.values).all(), name
        for empty in (History(), captureless):
            assert empty.table(name).values.shape == (0, len(empty.table(name).columns)), name


def test_every_measure_says_what_it_is() -> None:
    for made in measures.MEASURES.values():
        assert made.doc, made.name
        assert made.label, made.name
        assert made.unit in ("", "RMS", "L2", "ms", "s"), made.name


def test_unknown_name_lists_near_ones() -> None:
    with pytest.raises(ValueError, match=r"no measure 'brunch_ratio' .*mean branch_ratio"):
        History().table("brunch_ratio")
    with pytest.raises(ValueError, match=r"known: .* and \d+ more$"):
        History().table("!")


def test_measure_that_asks_for_what_is_not_there_is_refused() -> None:
    with pytest.raises(TypeError, match=r"measure odd: axis 'site' has no gg"):

        @measure("odd", "site", "", "odd")
        def odd(gg: Any) -> Any:
            return gg

    with pytest.raises(TypeError, match="no axis 'row'"):
        measure("odd", "row", "", "odd")  # type: ignore[arg-type]


def test_two_measures_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="branch_ratio already"):
        collect(measures.forward, measures.forward)


def test_tables_are_kept_until_something_is_added() -> None:
    history = make_history([[0.5, 0.5]])
    first: Table = history.table("growth")
    assert history.table("growth") is first
    history.append_capture(1, history.sums[0], history.have[0], history.why[0])
    assert len(history.table("growth").values) == 2
    with pytest.raises(ValueError, match="read-only"):
        first.values[0, 0] = 1.0


def test_facts_and_measures_of_steps_agree() -> None:
    of_steps = {made.name for made in measures.MEASURES.values() if made.axis == "step"}
    assert of_steps - {"lr"} == {field.name for field in FACTS} - {"step", "global_step"}
    assert isinstance(measures.MEASURES["lr"], Measure)
