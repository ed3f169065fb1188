"""RES301: gradients out of balance along depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.rule import Hit, NotMeasurable
from skipscope.rule.siblings import stages
from skipscope.rules import RULES
from tests.offline.rule_values import chain, names, staged, table

RULE = RULES["RES301"]


def look(first: float, sites: Any = None, rows: int = 3, missing: Any = None) -> tuple[Hit, ...]:
    """A geometric profile from `first` times the last gradient to 1."""
    sites = chain(12) if sites is None else sites
    profile = np.geomspace(first, 1, len(sites.sites)) if first else np.r_[0, np.ones(11)]
    values = np.tile(1e-4 * profile, (rows, 1))
    gradient = table("grad_sum_norm", values, names(sites), missing=missing)
    return RULE.run({"grad_sum_norm": gradient, "stages": stages(sites)})


@pytest.mark.parametrize(
    ("first", "severity"),
    [
        (10**-2.4, "silent"), (10**-2.6, "warning"), (10**-3.9, "warning"), (10**-4.1, "error"),
        (10**2.4, "silent"), (10**2.6, "warning"), (10**4.1, "error"), (0, "error"),
    ],
)  # fmt: skip
def test_decades(first: float, severity: str) -> None:
    assert [hit.severity for hit in look(first)] == ([] if severity == "silent" else [severity])


def test_the_early_blocks_are_named() -> None:
    (hit,) = look(1e-5)
    assert hit.where == ("blocks.0", "blocks.1", "blocks.2")
    assert "7 of 12 sums have 100x less" in hit.message
    assert (hit.first_step, hit.last_step) == (0, 2)
    assert hit.value == pytest.approx(1e-5)


def test_growing_towards_the_input() -> None:
    (hit,) = look(1e5)
    assert hit.where[0] == "blocks.0"
    assert "7 of 12 sums have 100x more" in hit.message


def test_patience() -> None:
    assert not look(1e-5, rows=2)


def test_few_sites_are_a_reason() -> None:
    with pytest.raises(NotMeasurable, match="needs 8 sites in one stage, has 7"):
        look(1e-5, chain(7))
    with pytest.raises(NotMeasurable, match="needs 8 sites in one stage, has 4"):
        look(1e-5, staged(4, 4, 4))


def test_a_head_of_zeros_at_step_0() -> None:
    sites = chain(12)
    gradient = table("grad_sum_norm", np.zeros((3, 12)), names(sites))
    assert not RULE.run({"grad_sum_norm": gradient, "stages": stages(sites)})


def test_a_frozen_prefix_is_left_out() -> None:
    frozen = np.tile(np.arange(12) < 3, (3, 1))
    (hit,) = look(1e-5, missing=frozen)
    assert hit.where[0] == "blocks.3"
    with pytest.raises(NotMeasurable, match="needs gradients at 8 sites"):
        look(1e-5, missing=np.tile(np.arange(12) < 5, (3, 1)))


def test_healthy_profiles() -> None:
    for ratio in (43, 37, 0.56, 75):
        assert not look(ratio)
