"""Heat maps: an array of pixels, whatever the numbers, and nothing global touched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from skipscope.history import History
from skipscope.pictures import NOT_A_NUMBER, PICTURES, Mark, heat_map, pictures
from tests.offline.report_values import DOMINANT, calm, run_of, sick
from tests.offline.rule_values import table

MISSING_RGB, NAN_RGB, ZERO_RGB = (0xD9, 0xD9, 0xD9), (0xE5, 0x00, 0x7D), (0, 0, 0)


def share_of(image: npt.NDArray[np.uint8], colour: Sequence[int]) -> float:
    return float((image == np.array(colour, np.uint8)).all(axis=-1).mean())


def test_a_run_has_three_pictures() -> None:
    drawn = pictures(run_of(12, {2: 34.0}), sick())
    assert list(drawn) == list(PICTURES) == ["branch_ratio", "growth", "gradient_gain"]
    for image in drawn.values():
        assert image.dtype == np.uint8
        assert image.ndim == 3
        assert image.shape[1:] == (1100, 3)


def test_before_the_first_capture_there_is_no_picture() -> None:
    assert pictures(History()) == {}
    with pytest.raises(ValueError, match="no rows or no steps"):
        heat_map(table("branch_ratio", np.zeros((0, 3)), columns=("a", "b", "c")))


def test_height_grows_with_the_sites_within_bounds() -> None:
    heights = [pictures(run_of(n))["growth"].shape[0] for n in (1, 24, 120)]
    assert heights == [330, 582, 1150]


def test_missing_nan_and_zero_have_colours_of_their_own() -> None:
    values = [[1.0, 2.0, np.nan, 0.0]] * 3
    plain = heat_map(table("branch_ratio", [[1.0, 2.0, 3.0, 4.0]] * 3))
    odd = heat_map(table("branch_ratio", values, missing=[[True, False, False, False]] * 3))
    for colour in (MISSING_RGB, NAN_RGB, ZERO_RGB):
        assert share_of(odd, colour) - share_of(plain, colour) > 0.1


def test_nan_is_drawn_over_what_was_not_measured() -> None:
    assert NOT_A_NUMBER == "#e5007d"
    nothing = heat_map(table("growth", [[np.nan, np.nan]] * 2), diverging=True)
    assert share_of(nothing, NAN_RGB) > 0.5


@pytest.mark.parametrize("diverging", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [[1.0]],
        [[0.0, 0.0]],
        [[np.inf, -1.0]],
        [[1e-300, 1e300]],
        [[np.nan, np.inf]],
        [[5.0, 5.0], [5.0, 5.0]],
    ],
)
def test_every_number_can_be_drawn(values: list[list[float]], diverging: bool) -> None:
    image = heat_map(table("branch_ratio", values), diverging=diverging)
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 2


def test_findings_change_the_picture_at_their_row() -> None:
    values = table("branch_ratio", np.full((4, 3), 0.5))
    without = heat_map(values)
    marked = heat_map(values, marks=[Mark("blocks.1", replace(DOMINANT, first_step=1))])
    assert without.shape == marked.shape
    assert not np.array_equal(without, marked)
    beyond = heat_map(values, marks=[Mark("blocks.1", replace(DOMINANT, first_step=900))])
    assert beyond.shape == marked.shape
    unknown = heat_map(values, marks=[Mark("elsewhere", DOMINANT)])
    assert np.array_equal(without, unknown)


def test_long_runs_are_thinned() -> None:
    assert heat_map(table("growth", np.ones((5000, 4)))).shape == (330, 1100, 3)


def test_long_names_and_many_findings_are_drawn() -> None:
    prefix = "model.backbone.encoder.a_rather_long_name_for_a_module.layers."
    places = tuple(f"{prefix}{at}" for at in range(4))
    found = [replace(DOMINANT, where=places, code=f"RES10{k}") for k in range(5)]
    image = pictures(run_of(4, prefix=prefix), replace(calm(), findings=tuple(found)))["growth"]
    assert image.shape == (330, 1100, 3)


def test_pyplot_stays_untouched_and_matplotlib_waits() -> None:
    code = (
        "import sys; import skipscope.pictures as p; import skipscope.loggers\n"
        "assert not any(m.startswith('matplotlib') for m in sys.modules), 'matplotlib at import'\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
        "import numpy as np; from skipscope.history import Table\n"
        "p.heat_map(Table('growth', '', 'g', np.arange(2), ('a',), np.ones((2, 1)),"
        " np.zeros((2, 1), bool)))\n"
        "assert 'matplotlib' in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules, 'pyplot'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
