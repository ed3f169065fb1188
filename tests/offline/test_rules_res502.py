"""RES502: additions that broadcast."""

from __future__ import annotations

import numpy as np
import pytest

from skipscope.records import SiteMap, Unseen
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_site
from tests.offline.rule_values import chain, names, table

RULE = RULES["RES502"]


def look(sites: SiteMap, **more: object) -> tuple[Hit, ...]:
    return RULE.run({"sites": sites, "captures": np.arange(3), **more})


def one_of(count: int, at: int, **changes: object) -> SiteMap:
    return make_map(
        *(make_site(k, broadcast=k == at, **(changes if k == at else {})) for k in range(count))
    )


def test_one_block_broadcasts() -> None:
    sites = one_of(6, 2)
    ratio = table("branch_ratio", np.full((3, 6), 0.1225), names(sites))
    (hit,) = look(sites, branch_ratio=ratio)
    assert hit.where == ("blocks.2",)
    assert hit.severity is None
    assert "1 of 6 additions" in hit.message
    assert "r 0.122" in hit.message
    assert "only these" in hit.cause


def test_all_of_them_are_one_finding() -> None:
    (hit,) = look(chain(6, broadcast=True))
    assert len(hit.where) == 6
    assert not hit.cause


def test_inside_a_branch_it_is_information() -> None:
    (hit,) = look(one_of(6, 2, nested=True))
    assert hit.severity == "info"


def test_positional_embeddings_have_no_ancestor_and_are_no_site() -> None:
    position = Unseen("unrelated", "", "net.py:58", 1, "shapes differ, neither descends")
    sites = chain(6)
    assert not look(SiteMap(sites.sites, sites.streams, (position,)))


def test_nothing_to_look_at() -> None:
    with pytest.raises(NotMeasurable, match="needs a residual addition"):
        look(SiteMap())
