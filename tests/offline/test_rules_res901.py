"""RES901: nothing found, something gone, a blind region."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import ModuleClass, Run, SiteMap, Unseen
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_parameter
from tests.offline.rule_values import chain

RULE = RULES["RES901"]


def look(sites: SiteMap, have: Any = None, more: Any = None) -> tuple[Hit, ...]:
    held = np.full((4, len(sites.sites)), 31) if have is None else np.asarray(have)
    values = {"sites": sites, "captures": np.arange(len(held)), "have": held.astype(np.uint8)}
    return RULE.run({**values, **(more or {})})


def unseen(what: Any, where: str = "body", **changes: Any) -> Unseen:
    facts: dict[str, Any] = {"source": "net.py:7", "count": 3, "reason": "because"}
    return Unseen(what, where, **{**facts, **changes})


def test_a_healthy_map_passes() -> None:
    assert not look(chain(8))


def test_before_the_first_capture() -> None:
    with pytest.raises(NotMeasurable, match="needs a capture"):
        look(SiteMap(), have=np.zeros((0, 0)))


@pytest.mark.parametrize("what", ["gate", "concatenation"])
def test_other_connections_are_information(what: str) -> None:
    """U-Nets and highway networks have no residual addition, and that is no fault."""
    (hit,) = look(SiteMap(unseen=(unseen(what), unseen("unrelated"))))
    assert hit.severity == "info"
    assert f"3 x {what}" in hit.message


def test_a_net_that_an_intervention_made_plain_is_no_fault() -> None:
    (hit,) = look(SiteMap(), more={"run": Run(intervention="y = F, any P(x) kept")})
    assert (hit.severity, hit.cause) == ("info", "an intervention took them: y = F, any P(x) kept")


def test_a_net_whose_additions_are_all_left_out_is_no_fault() -> None:
    (hit,) = look(SiteMap(unseen=(unseen("left out", count=4), unseen("not watched"))))
    assert hit.severity == "info"
    assert "4 x left out" in hit.message
    assert hit.cause == "sites= and exclude= leave out every residual addition of the model"


def test_what_is_left_out_hides_no_part_without_a_graph() -> None:
    found = look(SiteMap(unseen=(unseen("left out"), unseen("no graph", count=5))))
    assert [hit.severity for hit in found] == [None, None]
    assert found[0].cause == ""  # of the first hit, that there is no site at all


def test_nothing_at_all_is_a_warning() -> None:
    modules = (ModuleClass("Linear", ("0", "1"), (0, 0)),)
    (hit,) = look(SiteMap(modules=modules))
    assert hit.where == ("model",)
    assert hit.severity is None
    assert "no addition of any kind" in hit.message
    assert hit.evidence["modules"] == "Linear"
    assert any("sites=[...]" in advice for advice in RULE.advice)


def test_nothing_but_a_region_without_graph() -> None:
    hits = look(SiteMap(unseen=(unseen("no graph"),)))
    assert [hit.where for hit in hits] == [("model",), ("body",)]
    assert all(hit.severity is None for hit in hits)


def test_a_region_without_graph_beside_sites() -> None:
    (hit,) = look(SiteMap(sites=chain(4).sites, unseen=(unseen("no graph"), unseen("gate"))))
    assert hit.where == ("body",)
    assert hit.cause == "because"


def test_frozen_regions_are_passed_over() -> None:
    frozen = (make_parameter(0, name="body.0.weight", trainable=False),)
    sites = SiteMap(sites=chain(4).sites, unseen=(unseen("no graph"),))
    assert not look(sites, more={"parameters": frozen})


def test_fused_additions_are_information() -> None:
    (hit,) = look(SiteMap(sites=chain(4).sites, unseen=(unseen("fused"),)))
    assert hit.severity == "info"


def test_a_site_that_stopped_reporting() -> None:
    have = np.full((10, 4), 31)
    have[6:, 2] = 0
    why = np.zeros((10, 4), np.uint8)
    why[6:, 2] = 1
    (hit,) = look(chain(4), have, {"why": why})
    assert hit.where == ("blocks.2",)
    assert (hit.first_step, hit.last_step) == (6, 9)
    assert hit.cause == "not called in this step"


def test_layers_dropped_by_chance_are_silent() -> None:
    have = np.full((12, 4), 31)
    have[2:4, 1] = have[9:, 1] = 0
    assert not look(chain(4), have)


def test_a_late_site_was_not_absent() -> None:
    have = np.full((6, 4), 31)
    have[:5, 3] = 0
    assert not look(chain(4), have)
