"""Which captures are extrapolated from, what cannot be, and the forms of the page."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from skipscope.extrapolation import extrapolate
from skipscope.extrapolation.records import StreamAt
from skipscope.history import History
from skipscope.records import Run
from tests.offline.builders import make_history
from tests.offline.extrapolated import L, normalised, stage_of, unnormed, weights

# -------------------------------------------------------------------------- moments


def test_the_first_and_the_last_capture() -> None:
    r = np.stack([normalised(1.0), normalised(3.0)])
    first, last = extrapolate(make_history(r, steps=[0, 50]), "4x").numbers.moments
    assert (first.label, last.label) == ("initialisation, step 0", "last capture, step 50")
    growths = [m.streams[0].stages[0].extrapolated[0].growth for m in (first, last)]
    assert growths == pytest.approx([math.sqrt(97), math.sqrt(33)])


@pytest.mark.parametrize(
    ("run", "step", "label"),
    [
        (Run(fresh=False), 0, "first capture, step 0 of a run that was resumed or pretrained"),
        (Run(), 7, "first capture, step 7, not the initialisation"),
    ],
)
def test_what_is_no_initialisation_is_not_called_one(run: Run, step: int, label: str) -> None:
    made = extrapolate(make_history([normalised(1.0)], steps=[step], run=run))
    assert made.numbers.moments[0].label == label


# -------------------------------------------------------------------------- what cannot be


def test_what_is_no_history_is_named() -> None:
    with pytest.raises(TypeError, match="extrapolate: history must be a History, got 'runs'; give"):
        extrapolate("runs")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0])
def test_a_sum_that_is_no_number_is_named(wrong: float) -> None:
    history = make_history([normalised(1.0)])
    sums, have = history.sums.copy(), history.have.copy()
    names = ["yy", "gy"]
    from skipscope.records import SUMS

    for at, field in enumerate(SUMS):
        if field.name in names:
            sums[0, 5, at] = wrong
    broken = History(Run(run_id="broken"))
    broken.set_sites(history.sites)
    broken.append_capture(0, sums[0], have[0], history.why[0])
    found = stage_of(broken, "4x")
    assert found.forward.law is None
    assert found.forward.reason.startswith("the stream is ")
    assert found.forward.reason.endswith("at blocks.5")
    assert found.gradient.reason.endswith("at blocks.5")
    assert found.extrapolated[0].growth is None
    json.loads(extrapolate(broken).report("json"))


@pytest.mark.parametrize("sites", [1, 4, 7])
def test_few_sites_have_no_law(sites: int) -> None:
    made = extrapolate(make_history([normalised(1.0, sites)]), "4x")
    found = made.numbers.moments[0].streams[0].stages[0]
    assert found.forward.reason == f"needs 8 sites in one stage, has {sites}"
    assert found.extrapolated[0].growth is None
    assert "needs 8 sites" in str(made)


def test_nothing_captured_and_nothing_found() -> None:
    assert extrapolate(History()).numbers.why == "nothing was captured"
    bare = History()
    bare.append_capture(0, np.zeros((0, 30)), np.zeros(0), np.zeros(0))
    made = extrapolate(bare)
    assert made.numbers.why == "no residual addition was found"
    assert "nothing to extrapolate from" in str(made)


@pytest.mark.parametrize(
    "depth", ["x", "0x", "1", "-4", "4 x", "1.5", "2000000", "", "1e3", "\u0661x", "9" * 5000]
)
def test_a_depth_that_is_none(depth: str) -> None:
    with pytest.raises(ValueError, match="give 4x"):
        extrapolate(make_history([normalised(1.0)]), depth)


def test_too_deep() -> None:
    with pytest.raises(ValueError, match="more than 1000000 sites"):
        extrapolate(make_history([normalised(1.0)]), "100000x")


def test_too_shallow() -> None:
    history = make_history([normalised(1.0)])
    with pytest.raises(ValueError, match=f"depth 0.01x: 0 sites, of {L} that were measured"):
        extrapolate(history, "0.01x")
    (at,) = extrapolate(history, "0.5x").numbers.moments[0].streams[0].stages[0].extrapolated
    assert at.sites == L / 2


def test_a_depth_stands_once() -> None:
    made = extrapolate(make_history([normalised(1.0)]), "4x", "2x", "4X")
    assert [one.text for one in made.numbers.depths] == ["4x", "2x"]


def test_beyond_the_largest_float() -> None:
    made = extrapolate(weights(unnormed([np.full(L, 1.0)])), "1000x")
    (at,) = made.numbers.moments[0].streams[0].stages[0].extrapolated
    assert at.growth == math.inf
    assert at.budget == pytest.approx(23999 * math.log(2))
    assert '"Infinity"' in made.report("json")


def test_a_shallower_net() -> None:
    (at,) = stage_of(make_history([normalised(1.0)]), "0.5x").extrapolated
    assert (at.sites, at.growth) == (12, pytest.approx(math.sqrt(13)))


# -------------------------------------------------------------------------- pages


def test_formats() -> None:
    made = extrapolate(make_history([normalised(1.0)]), "4x")
    text = str(made)
    assert max(map(len, text.splitlines())) <= 80
    assert "rows other than 'measured' are extrapolated, not measured" in text
    assert made.report("console", width=120, unicode=False).isascii()
    assert "| 96 | 4x | normalised | x9.85 |" in made.report("markdown")
    read = json.loads(made.report("json"))
    assert read["schema"] == "skipscope-extrapolation/1"
    assert read["moments"][0]["streams"][0]["stages"][0]["forward"]["law"] == "normalised"
    with pytest.raises(ValueError, match="no form 'html'"):
        made.report("html")


def test_the_scalar_model_is_not_sold_as_the_law() -> None:
    """Under the linear law d^n overstates: 25^(96/48) = 625 against sqrt(97)."""
    made = extrapolate(make_history([normalised(1.0)]), "4x")
    stream: StreamAt = made.numbers.moments[0].streams[0]
    assert stream.scalar is not None
    assert stream.scalar.at[0][2] == pytest.approx(625)
    assert "not the law of this gradient" in " ".join(str(made).split())
