"""RES505: one block along the depth."""

from __future__ import annotations

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_site
from tests.offline.rule_values import chain

RULE = RULES["RES505"]


def look(sites: SiteMap) -> tuple[Hit, ...]:
    return RULE.run({"sites": sites, "captures": np.arange(3)})


def test_one_instance_called_again_and_again() -> None:
    calls = [
        make_site(k, name=f"block/{k}", module="block", occurrence=k, parameters=("block.weight",))
        for k in range(12)
    ]
    (hit,) = look(make_map(*calls))
    assert hit.where == ("block",)
    assert hit.value == 12
    assert RULE.severity == "info"
    assert hit.severity is None


def test_two_additions_of_one_shared_block_are_one_finding() -> None:
    calls = [
        make_site(k, name=f"block/{k}", module="block", source=f"net.py:{k % 2}",
                  parameters=(f"block.{k % 2}.weight",))
        for k in range(8)
    ]  # fmt: skip
    (hit,) = look(make_map(*calls))
    assert hit.value == 4
    assert hit.evidence["additions"] == 2


def test_a_loop_over_different_blocks_is_silent() -> None:
    """The model adds in its own loop: one module and line, but other parameters each time."""
    calls = [make_site(k, module="", occurrence=k) for k in range(8)]
    assert not look(make_map(*calls))
    assert not look(chain(8))


def test_a_loop_over_one_block_names_the_block() -> None:
    calls = [
        make_site(k, module="", occurrence=k, parameters=("one.fc1.weight", "one.fc2.weight"))
        for k in range(4)
    ]
    assert look(make_map(*calls))[0].where == ("one",)


def test_partly_shared_parameters_and_branches_without_any_are_silent() -> None:
    shared = [
        make_site(k, module="body", parameters=("bias", f"body.{k}.weight")) for k in range(4)
    ]
    assert not look(make_map(*shared))
    assert not look(make_map(*(make_site(k, module="body", parameters=()) for k in range(4))))


def test_nothing_to_look_at() -> None:
    with pytest.raises(NotMeasurable, match="needs a residual addition"):
        look(SiteMap())
