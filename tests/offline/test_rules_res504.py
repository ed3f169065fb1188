"""RES504: what the stream of a deep net passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_site
from tests.offline.rule_values import chain

RULE = RULES["RES504"]


def look(sites: SiteMap) -> tuple[Hit, ...]:
    return RULE.run({"sites": sites, "captures": np.arange(3)})


@pytest.mark.parametrize(
    ("word", "count", "found"),
    [("norm", 11, 0), ("norm", 12, 1), ("activation", 29, 0), ("activation", 30, 1)],
)
def test_deep_nets_only(word: str, count: int, found: int) -> None:
    hits = look(chain(count, link=(word,)))
    assert len(hits) == found
    assert RULE.severity == "info"
    assert all(hit.severity is None and hit.where == ("model",) for hit in hits)


def test_a_clean_stream_is_silent() -> None:
    assert not look(chain(100))


@pytest.mark.parametrize(("every", "found"), [(2, 1), (3, 0)])
def test_half_of_the_places(every: int, found: int) -> None:
    sites = make_map(*(make_site(k, link=("norm",) * (k % every == 0)) for k in range(25)))
    assert len(look(sites)) == found


def test_stage_transitions_do_not_count() -> None:
    assert not look(chain(40, link=("norm", "convolution")))
    assert not look(chain(40, link=("slice", "norm")))


def test_each_stream_by_itself() -> None:
    def site(k: int, **changes: Any) -> Any:
        return make_site(k, link=("norm",), stream=k // 12, depth=k % 12, **changes)

    sites = make_map(*(site(k, module=f"{'ed'[k // 12]}.{k % 12}") for k in range(24)))
    assert [hit.where for hit in look(sites)] == [("e",), ("d",)]


def test_nothing_to_look_at() -> None:
    with pytest.raises(NotMeasurable, match="needs a residual addition"):
        look(SiteMap())
