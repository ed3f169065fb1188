"""Scales that weight decay has shrunk, as a cause."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.rule.decayed import decay_cause, decayed_scales
from skipscope.rules import RULES
from tests.offline.builders import make_group, make_parameter
from tests.offline.rule_values import chain, names, table

STEPS = np.arange(0, 2050, 50)


def scale(**changes: Any) -> Any:
    return make_parameter(
        0, **{"name": "blocks.7.gamma", "shape": (16,), "sites": (7,), "group": 0, **changes}
    )


def shrinking(to: float, name: str = "blocks.7.gamma") -> Any:
    return table("weight_norm", np.geomspace(1.0, to, len(STEPS))[:, None], (name,), STEPS)


@pytest.mark.parametrize(("to", "found"), [(0.51, ()), (0.49, ("blocks.7.gamma",))])
def test_half_of_the_first_size(to: float, found: tuple[str, ...]) -> None:
    assert decayed_scales([scale()], (make_group(0),), shrinking(to)) == found


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (16, 16)},
        {"name": "blocks.7.bias"},
        {"trainable": False},
        {"group": None},
        {"group": 1},
    ],
)
def test_others_are_not_meant(changes: dict[str, Any]) -> None:
    groups = (make_group(0), make_group(1, weight_decay=0.0))
    one = scale(**changes)
    assert decayed_scales([one], groups, shrinking(0.01, one.name)) == ()


def test_unknown_sizes_say_nothing() -> None:
    assert decayed_scales([scale()], (make_group(0),), None) == ()
    assert decay_cause(()) == ""


def test_dilution_names_it() -> None:
    sites = chain(8)
    r = np.full((len(STEPS), 8), 0.3)
    r[:, -3:] = 0.01
    given = {
        "branch_ratio": table("branch_ratio", r, names(sites), STEPS),
        "sites": sites,
        "captures": STEPS,
        "parameters": (scale(),),
        "groups": (make_group(0),),
        "weight_norm": shrinking(0.1),
    }
    (hit,) = RULES["RES203"].run(given)
    assert hit.cause == ("weight decay on blocks.7.gamma: less than half of the first size is left")
