"""RES506: dropped shortcuts, and zeros that are not dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.rule_values import chain, names, table

RULE = RULES["RES506"]
STEPS = 8


def look(
    share: Any, ratio: Any = 1.0, sites: SiteMap | None = None, adapter: Any = None, **over: float
) -> tuple[Hit, ...]:
    """`ratio` is RMS(shortcut) over RMS(the sum before)."""
    known = sites or chain(6)
    shape = (STEPS, len(known.sites))
    wide = {
        "zero_shortcut_share": np.broadcast_to(np.asarray(share, float), shape),
        "rms_shortcut": np.broadcast_to(np.asarray(ratio, float), shape),
        "rms_sum": np.ones(shape),
    }
    if adapter is not None:
        wide["adapter_ratio"] = np.broadcast_to(np.asarray(adapter, float), shape)
    values = {name: table(name, held, names(known)) for name, held in wide.items()}
    return RULE.run({"sites": known, **values}, **over)


def at(site: int, value: float, rows: Any = slice(None), other: float = 0.0) -> np.ndarray:
    values = np.full((STEPS, 6), other)
    values[rows, site] = value
    return values


def test_one_site_drops_its_shortcut() -> None:
    (hit,) = look(at(3, 0.2), at(3, 0.9, other=1.0))
    assert hit.where == ("blocks.3",)
    assert hit.value == pytest.approx(0.2)
    assert hit.severity is None


def test_the_first_site_goes_with_its_siblings() -> None:
    (hit,) = look(0.2, 0.9)
    assert len(hit.where) == 6
    assert hit.evidence["unbroken"] == pytest.approx(0.8**6)


def test_whole_batches_now_and_then() -> None:
    rows = [1, 4, 6]
    (hit,) = look(at(3, 1.0, rows), at(3, 0.0, rows, other=1.0))
    assert hit.value == pytest.approx(3 / STEPS)
    assert (hit.first_step, hit.last_step) == (1, 6)
    assert not look(at(3, 1.0, rows[:2]), at(3, 0.0, rows[:2], other=1.0))


def test_stochastic_depth_on_the_branch_leaves_the_shortcut() -> None:
    assert not look(0.0, 1.0)


def test_samples_that_are_zero_already_are_not_dropped() -> None:
    """Padding: the shortcut is zero, and so was the sum before."""
    assert not look(0.3, 1.0)


@pytest.mark.parametrize(("ratio", "found"), [(0.9985, 0), (0.997, 1), (1.0015, 0), (1.003, 1)])
def test_tolerance(ratio: float, found: int) -> None:
    assert len(look(at(3, 0.1), at(3, ratio, other=1.0))) == found


def test_a_mask_that_scales_up_shows_as_a_scaled_shortcut() -> None:
    sites = chain(6, kind="scaled", shortcut_path=("scale",))
    moving = 1.1 + 0.05 * (np.arange(STEPS) % 2)[:, None]
    (hit,) = look(0.2, adapter=moving, sites=sites)
    assert len(hit.where) == 6
    assert not look(0.2, adapter=0.5, sites=sites)  # a constant, and zeros of x


def test_projections_are_not_judged() -> None:
    sites = chain(6, kind="projection", shortcut_path=("convolution",))
    with pytest.raises(NotMeasurable, match="what came into a block"):
        look(0.2, 0.9, sites)


def test_without_the_sum_before() -> None:
    with pytest.raises(NotMeasurable, match="what came into a block"):
        look(0.2, 0.9, chain(6, link=("norm",)))
