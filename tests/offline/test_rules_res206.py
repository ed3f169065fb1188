"""RES206: a branch turned against its shortcut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from skipscope.records import REASONS, SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_site
from tests.offline.rule_values import chain, names, staged, table

RULE = RULES["RES206"]
WIDE = (4, 8, 48)


FIXED = REASONS.index("x has no gradient: it is a raw input or behind frozen layers")
FROZEN = REASONS.index("the whole block is frozen")


def look(
    c: Any,
    r: Any,
    sites: SiteMap | None = None,
    rows: int = 3,
    why: Any = None,
    **over: float,
) -> tuple[Hit, ...]:
    known = sites or chain(6, shape=WIDE)
    shape = (rows, len(known.sites))
    given = {
        name: table(name, np.broadcast_to(np.asarray(v, float), shape), names(known))
        for name, v in (("cosine", c), ("branch_ratio", r))
    }
    told = {} if why is None else {"why": np.broadcast_to(np.asarray(why, np.uint8), shape)}
    return RULE.run({**given, **told, "sites": known}, **over)


def at(place: int, value: float, rest: float = 0.1, sites: int = 6) -> np.ndarray:
    return np.where(np.arange(sites) == place, value, rest)


def test_one_erasing_branch() -> None:
    (hit,) = look(at(3, -0.9), at(3, 1.0))
    assert (hit.where, hit.value, hit.severity) == (("blocks.3",), -0.9, None)
    assert hit.evidence["growth"] == pytest.approx(np.sqrt(0.2))
    assert (hit.first_step, hit.last_step) == (0, 2)


@pytest.mark.parametrize(
    ("c", "r", "found"), [(-0.51, 0.51, 1), (-0.49, 0.51, 0), (-0.51, 0.49, 0), (-1.0, 0.3, 0)]
)
def test_both_thresholds(c: float, r: float, found: int) -> None:
    assert len(look(at(3, c), at(3, r))) == found


def test_two_captures_in_a_row() -> None:
    c = np.tile(at(3, 0.1), (5, 1))
    c[[0, 2, 4], 3] = -0.9
    assert not look(c, 1.0, rows=5)
    c[3, 3] = -0.9
    (hit,) = look(c, 1.0, rows=5)
    assert (hit.first_step, hit.last_step) == (2, 4)


def test_several_are_one_finding() -> None:
    c = np.where(np.arange(6) > 3, -0.8, 0.0)
    (hit,) = look(c, 1.0)
    assert hit.where == ("blocks.4", "blocks.5")


def test_first_sites() -> None:
    """Those of post-norm streams are left out."""
    assert not look(at(0, -0.9), 1.0, chain(6, shape=WIDE, norm_placement="post-norm"))
    assert look(at(1, -0.9), 1.0, chain(6, shape=WIDE, norm_placement="post-norm"))
    assert look(at(0, -0.9), 1.0)
    assert look(at(0, -0.9), 1.0, chain(6, shape=WIDE, embedding_fed=True))


@pytest.mark.parametrize(("r", "found"), [(4.9, 1), (5.1, 0), (34, 0)])
def test_a_dominating_branch_is_another_fault(r: float, found: int) -> None:
    assert len(look(at(3, -0.9), at(3, r))) == found


def test_projections_are_not_judged() -> None:
    assert not look(at(3, -0.9), 1.0, staged(3, 3))


@pytest.mark.parametrize(
    ("width", "c", "found"), [(16, -0.74, 0), (16, -0.76, 1), (8, -0.89, 0), (8, -0.91, 1)]
)
def test_few_channels_are_opposed_by_chance(width: int, c: float, found: int) -> None:
    """Random vectors of C channels have a cosine of 0 +- 1/sqrt(C)."""
    assert len(look(at(3, c), 1.0, chain(6, shape=(4, 8, width)))) == found
    image = chain(6, shape=(4, width, 64, 64), rows="sample")
    assert len(look(at(3, c), 1.0, image)) == found


def test_healthy_cosines_are_silent() -> None:
    assert not look(-0.3, 0.8)
    assert not look(0.9, 0.8)


def test_the_growth_is_taken_where_it_was_measured() -> None:
    known = chain(6)
    given = {
        "cosine": table("cosine", np.tile(at(3, -0.9), (3, 1)), names(known)),
        "branch_ratio": table("branch_ratio", np.ones((3, 6)), names(known)),
        "growth": table("growth", np.tile(at(3, 0.45), (3, 1)), names(known)),
        "sites": known,
    }
    assert RULE.run(given)[0].evidence["growth"] == 0.45


def test_nothing_to_judge() -> None:
    with pytest.raises(NotMeasurable, match="no projection"):
        look([[-0.9]], [[1.0]], chain(1, norm_placement="post-norm"), rows=1)


def behind_a_frozen_block() -> SiteMap:
    """Three blocks of two additions; the first is frozen."""
    paths = [f"blocks.{block}.{branch}" for block in range(3) for branch in ("attention", "mlp")]
    return make_map(
        *(make_site(k, name=path, module=path, shape=WIDE) for k, path in enumerate(paths))
    )


WHY = (FROZEN, FROZEN, FIXED, 0, 0, 0)


@pytest.mark.parametrize(("site", "found"), [(0, 1), (1, 1), (2, 0), (3, 0), (4, 1), (5, 1)])
def test_the_first_trained_block_may_learn_to_rewrite(site: int, found: int) -> None:
    """Nothing in front of it trains, so only there training can take away what does not help."""
    c = np.full((4, 6), 0.1)
    c[1:, site] = -0.9
    assert len(look(c, 1.0, behind_a_frozen_block(), 4, WHY)) == found
    assert look(c, 1.0, behind_a_frozen_block(), 4)


@pytest.mark.parametrize("site", range(6))
def test_what_erases_from_the_first_capture_on_has_not_learnt_to(site: int) -> None:
    (hit,) = look(at(site, -0.9), 1.0, behind_a_frozen_block(), why=WHY)
    assert hit.where == (behind_a_frozen_block().sites[site].name,)


def test_a_first_trained_block_stays_one_when_more_is_unfrozen() -> None:
    c = np.full((6, 6), 0.1)
    c[1:, 3] = -0.9
    why = np.zeros((6, 6))
    why[:3] = WHY
    assert not look(c, 1.0, behind_a_frozen_block(), 6, why)


def test_a_stage_of_a_projection_alone_has_nothing_to_judge() -> None:
    """The others are judged all the same."""
    sites = staged(1, 5)
    alone = replace(sites.sites[0], kind="projection")
    (hit,) = look(at(3, -0.9), 1.0, replace(sites, sites=(alone, *sites.sites[1:])))
    assert hit.where == (sites.sites[3].name,)
