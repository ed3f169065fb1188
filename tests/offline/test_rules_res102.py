"""RES102: the first block behind a small embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_site
from tests.offline.rule_values import chain, names, staged, table

RULE = RULES["RES102"]


def look(
    r: Any, gain: Any, sites: SiteMap | None = None, steps: int = 80, **over: float
) -> tuple[Hit, ...]:
    """r and gain of the first site over time; the others have r .5 and gain 1.1."""
    known = sites or chain(8, embedding_fed=True)
    ratio, gains = np.full((steps, len(known.sites)), 0.5), np.full((steps, len(known.sites)), 1.1)
    ratio[:, 0], gains[:, 0] = r, gain
    given = {
        "branch_ratio": table("branch_ratio", ratio, names(known)),
        "gradient_gain": table("gradient_gain", gains, names(known), missing=np.isnan(gains)),
        "sites": known,
    }
    return RULE.run(given, **over)


def test_lasting_is_an_information() -> None:
    (hit,) = look(12.0, 13.0)
    assert (hit.where, hit.severity, hit.value) == (("blocks.0",), "info", 12.0)
    assert "gradient gain 13.0" in hit.message


@pytest.mark.parametrize(("r", "gain"), [(4.9, 13), (12, 4.9), (2.0, 1.5)])
def test_gpt2_style_embeddings_are_silent(r: float, gain: float) -> None:
    assert not look(r, gain)


def test_fifty_steps() -> None:
    assert not look(12, 13, steps=50)
    assert look(12, 13, steps=51)


@pytest.mark.parametrize(
    ("end", "gain", "severity"),
    [(40, 60, "warning"), (40, 45, "info"), (15.5, 60, "info"), (12.5, 60, "info")],
)
def test_rising_is_a_warning(end: float, gain: float, severity: str) -> None:
    assert [hit.severity for hit in look(np.linspace(12, end, 80), gain)] == [severity]


def test_rising_needs_no_fifty_steps() -> None:
    r = np.linspace(12, 40, 10)
    assert [hit.severity for hit in look(r, 60, steps=10)] == ["warning"]
    assert not look(r[:2], 60, steps=2)
    assert not look(r[::-1], 60, steps=10)


def test_case_55_is_silent_in_40_steps() -> None:
    assert not look(np.linspace(51.4, 47.3, 40), np.linspace(48, 61, 40), steps=40)


def test_both_sites_of_the_first_block_are_one_finding() -> None:
    pairs = make_map(
        *(make_site(k, module=f"h.{k // 2}", source=f"net.py:{k % 2}") for k in range(8)),
        embedding_fed=True,
    )
    ratio, gain = np.full((80, 8), 0.5), np.full((80, 8), 1.0)
    ratio[:, :2], gain[:, :2] = [9, 14], 20
    ratio[:, 4], gain[:, 4] = 30, 90  # RES101's business
    given = {
        "branch_ratio": table("branch_ratio", ratio),
        "gradient_gain": table("gradient_gain", gain),
        "sites": pairs,
    }
    (hit,) = RULE.run(given)
    assert (hit.where, hit.value) == (("blocks.0", "blocks.1"), 14)
    assert "embedding" in hit.cause


def test_a_stage_may_begin_with_a_small_projection() -> None:
    sites = staged(4, 4)
    ratio, gain = np.full((80, 8), 0.5), np.full((80, 8), 1.0)
    ratio[:, 4], gain[:, 4] = 12, 20
    given = {
        "branch_ratio": table("branch_ratio", ratio, names(sites)),
        "gradient_gain": table("gradient_gain", gain, names(sites)),
        "sites": sites,
    }
    (hit,) = RULE.run(given)
    assert (hit.where, hit.cause) == (("stages.1.0",), "")


def test_without_a_gradient_at_the_first_input() -> None:
    with pytest.raises(NotMeasurable, match="gradient at the input"):
        look(12, np.nan)
