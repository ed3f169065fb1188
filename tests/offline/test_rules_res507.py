"""RES507: shortcuts that are not x any more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_site
from tests.offline.rule_values import chain, table

RULE = RULES["RES507"]


def look(sites: SiteMap, **more: Any) -> tuple[Hit, ...]:
    return RULE.run({"sites": sites, "captures": np.arange(3), **more})


def test_rewritten_in_place() -> None:
    (hit,) = look(chain(8, shortcut_source="rewritten", link=("activation",)))
    assert hit.where == tuple(f"blocks.{k}" for k in range(8))
    assert hit.severity is None
    assert "in-place" in hit.cause


def test_one_block_of_many() -> None:
    sites = make_map(
        *(make_site(k, shortcut_source="rewritten" if k == 2 else "same") for k in range(8))
    )
    assert [hit.where for hit in look(sites)] == [("blocks.2",)]


@pytest.mark.parametrize(
    ("path", "how"),
    [
        (("norm",), "normalised"),
        (("activation",), "activated"),
        (("norm", "activation"), "normalised"),
        (("norm", "scale"), "normalised"),
    ],
)
def test_altered_on_the_way(path: tuple[str, ...], how: str) -> None:
    adapter = table("adapter_ratio", np.tile([0.784, 0.985, 0.995, 0.996], (3, 1)))
    (hit,) = look(chain(4, kind="projection", shortcut_path=path), adapter_ratio=adapter)
    assert hit.evidence["how"] == how
    assert "0.784 to 0.996 of x" in hit.message


@pytest.mark.parametrize(
    "path",
    [
        ("norm", "activation", "convolution"),
        ("convolution", "norm"),
        ("linear", "pool"),
        ("slice", "slice", "pad"),
        ("scale",),
        (),
    ],
)
def test_projections_and_their_pre_activation_are_silent(path: tuple[str, ...]) -> None:
    assert not look(chain(8, kind="projection" if path else "identity", shortcut_path=path))


def test_deliberate_post_norm_and_post_activation_are_silent() -> None:
    """Branch and shortcut read the same normed stream: it stands in the link, not in the path."""
    assert not look(chain(8, link=("norm",), norm_placement="post-norm"))
    assert not look(chain(8, link=("activation",), norm_placement="post-activation"))


def test_a_detached_shortcut_belongs_to_another_rule() -> None:
    assert not look(chain(8, shortcut_source="detached"))


def test_nothing_to_look_at() -> None:
    with pytest.raises(NotMeasurable, match="needs a residual addition"):
        look(SiteMap())
