"""RES304: shortcuts without a backward path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rule.siblings import stages
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_site
from tests.offline.rule_values import chain, names, table

RULE = RULES["RES304"]


def look(
    a: Any = 1.0, r: Any = 0.3, sites: SiteMap | None = None, rows: int = 3, missing: Any = None
) -> tuple[Hit, ...]:
    sites = chain(8) if sites is None else sites
    shape = (rows, len(sites.sites))
    presence = np.broadcast_to(np.asarray(a, float), shape)
    return RULE.run(
        {
            "stages": stages(sites),
            "branch_ratio": table(
                "branch_ratio", np.broadcast_to(np.asarray(r, float), shape), names(sites)
            ),
            "shortcut_presence": table("shortcut_presence", presence, names(sites), None, missing),
        }
    )


def one(value: float, at: int = 5, count: int = 8) -> np.ndarray:
    a = np.ones(count)
    a[at] = value
    return a


def test_a_scaled_shortcut_hands_on_as_much_as_it_is_scaled_by() -> None:
    assert look(one(0.1))
    assert not look(one(0.1), sites=chain(8, kind="scaled"))


def test_certain_needs_no_patience() -> None:
    sites = make_map(
        *(make_site(k, shortcut_source="detached" if k in (0, 3) else "same") for k in range(8))
    )
    (hit,) = look(sites=sites, rows=1)
    assert hit.where == ("blocks.0", "blocks.3")
    assert hit.evidence["kind"] == "certain"


def test_a_site_of_the_model_itself_goes_by_its_name() -> None:
    sites = make_map(
        *(make_site(k, module="", name=f"model/{k}", shortcut_source="detached") for k in range(2))
    )
    (hit,) = look(sites=sites)
    assert hit.where == ("model/0", "model/1")


@pytest.mark.parametrize(("a", "found"), [(0.01, True), (0.19, True), (0.21, False), (0.76, False)])
def test_by_numbers(a: float, found: bool) -> None:
    hits = look(one(a))
    assert bool(hits) is found
    if hits:
        assert hits[0].where == ("blocks.5",)
        assert hits[0].value == pytest.approx(a)


def test_a_large_branch_may_cancel_the_shortcut() -> None:
    assert look(one(0.1), 0.99)
    assert not look(one(0.1), 1.01)


def test_patience() -> None:
    assert not look(one(0.01), rows=2)


def test_first_sites_and_projections_are_silent() -> None:
    assert not look(one(0.01, at=0))
    assert not look(one(0.01, at=1), sites=chain(8, embedding_fed=True, module="blocks.0"))
    assert not look(one(0.01), sites=chain(8, kind="projection"))


def test_behind_a_frozen_prefix_nothing_is_measured() -> None:
    assert not look(0.01, missing=np.ones((3, 8), bool))


def test_nothing_measured() -> None:
    with pytest.raises(NotMeasurable, match="needs branch ratio"):
        RULE.run({"stages": ()})
