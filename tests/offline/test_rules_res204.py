"""RES204: branches of one sign, and streams where they do no harm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_site
from tests.offline.rule_values import chain, names, table

RULE = RULES["RES204"]


def look(
    low: Any,
    mean: Any,
    sites: SiteMap | None = None,
    rows: int = 4,
    largest: Any = 3.0,
    rms: Any = 1.0,
    **over: float,
) -> tuple[Hit, ...]:
    """Smallest and mean element of the branches; RMS 1, largest magnitude 3."""
    known = sites or chain(6)
    shape = (rows, len(known.sites))
    columns = {"min_branch": low, "max_branch": largest, "mean_branch": mean, "rms_branch": rms}
    columns |= {"mean_sum": 2.5, "std_sum": 3.0}
    given = {
        name: table(name, np.broadcast_to(np.asarray(v, float), shape), names(known))
        for name, v in columns.items()
    }
    return RULE.run({**given, "sites": known}, **over)


def test_every_branch_ends_in_a_relu() -> None:
    (hit,) = look(0.0, 0.56)
    assert hit.where == tuple(f"blocks.{k}" for k in range(6))
    assert hit.severity is None
    assert "mean 2.50, standard deviation 3.00" in hit.message
    assert hit.value == 0.56


def test_one_branch_of_six() -> None:
    (hit,) = look([-3, -3, 0, -3, -3, -3], [0, 0, 0.56, 0, 0, 0])
    assert hit.where == ("blocks.2",)


def test_nearly_one_sided_counts() -> None:
    """GELU: down to -.17, mean .43 of the RMS."""
    assert look(-0.17, 0.43)
    assert not look(-0.17, 0.43, largest=1.6)


@pytest.mark.parametrize(
    ("low", "mean", "found"),
    [(-0.29, 0.5, 1), (-0.31, 0.5, 0), (0.0, 0.31, 1), (0.0, 0.29, 0), (-3.0, 0.76, 0)],
)
def test_both_thresholds(low: float, mean: float, found: int) -> None:
    assert len(look(low, mean)) == found


def test_one_large_outlier_is_no_second_side() -> None:
    """A massive element dwarfs the negative ones, but then the mean is small against the RMS."""
    assert not look(-3.0, 0.1, largest=1000.0)


def test_three_captures() -> None:
    assert not look(0.0, 0.5, rows=2)
    low = np.zeros((5, 6))
    low[2] = -3
    assert not look(low, 0.5, rows=5)


def test_branches_of_zero_are_silent() -> None:
    """Zero-initialised or dropped: nothing is added."""
    missing = np.full((4, 6), np.nan)
    assert not look(0.0, missing, largest=0.0)
    assert not look(0.0, 0.0, largest=0.0, rms=0.0)


def test_two_sites_add_up_to_nothing() -> None:
    with pytest.raises(NotMeasurable, match="3 sites"):
        look(0.0, 0.56, chain(2))
    assert look(0.0, 0.56, chain(3))


@pytest.mark.parametrize("placement", ["post-activation", "post-norm"])
def test_streams_that_pass_a_relu_or_norm_are_silent(placement: Any) -> None:
    with pytest.raises(NotMeasurable, match="nothing between its sums"):
        look(0.0, 0.56, chain(6, norm_placement=placement))


@pytest.mark.parametrize("between", ["activation", "norm", "linear"])
def test_the_link_to_the_next_site_counts(between: str) -> None:
    sites = make_map(*(make_site(k, link=(between,) if k == 3 else ()) for k in range(6)))
    (hit,) = look(0.0, 0.56, sites)
    assert "blocks.2" not in hit.where
    assert "blocks.3" in hit.where


def test_images_are_not_judged() -> None:
    """Three channels may all have a positive bias."""
    with pytest.raises(NotMeasurable, match="8 channels"):
        look(0.0, 0.9, chain(6, shape=(4, 3, 32, 32), rows="sample"))
    assert look(0.0, 0.56, chain(6, shape=(4, 16, 3, 3), rows="sample"))
    with pytest.raises(NotMeasurable, match="8 channels"):
        look(0.0, 0.9, chain(6, shape=()))
