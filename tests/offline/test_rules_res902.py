"""RES902: the first number that is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_site
from tests.offline.rule_values import chain, names, table

RULE = RULES["RES902"]
HALF = {"shortcut_dtype": "float16", "branch_dtype": "float16"}
NAN, INF = float("nan"), float("inf")


def look(
    change: dict[str, Any] | None = None,
    sites: SiteMap | None = None,
    rows: int = 5,
    more: Any = None,
) -> tuple[Hit, ...]:
    """All maxima are 1 but for `change`: table name -> (rows, site, value)."""
    known = sites or chain(8)
    filled = {}
    for name in ("max_shortcut", "max_branch", "max_sum", "grad_sum_norm"):
        values = np.ones((rows, len(known.sites)))
        for at, site, value in (change or {}).get(name, ()):
            values[at, site] = value
        filled[name] = table(name, values, names(known))
    return RULE.run({"sites": known, **filled, **(more or {})})


def step_facts(name: str, values: Any) -> dict[str, Any]:
    return {name: table(name, np.asarray(values, float)[:, None], (name,))}


def test_finite_passes() -> None:
    assert not look()


def test_the_sum_of_two_finite_operands() -> None:
    change = {
        "max_shortcut": [(slice(None), 6, 64000), (slice(None), 7, INF)],
        "max_branch": [(slice(None), 6, 4000), (slice(None), 7, NAN)],
        "max_sum": [(slice(None), 6, 68000), (slice(None), 7, NAN)],
    }
    (hit,) = look(change, chain(8, **HALF), rows=2)
    assert hit.where == ("blocks.6",)
    assert hit.evidence["origin"] == "the sum"
    assert "64000 and 4000" in hit.message
    assert (hit.first_step, hit.last_step) == (0, 1)
    assert "RES201" in RULE.explains


@pytest.mark.parametrize(("largest", "found"), [(65519, 0), (65520, 1)])
def test_float16_rounds_to_infinity_from_65520_on(largest: float, found: int) -> None:
    change = {"max_sum": [(0, 3, largest)]}
    assert len(look(change, chain(8, **HALF))) == found
    assert not look(change)
    assert not look(change, chain(8, shortcut_dtype="float16"))  # float16 + float32 is float32


@pytest.mark.parametrize(
    ("dtype", "largest", "found"),
    [
        ("float32", 3.41e38, 1),
        ("float32", 3.3e38, 0),
        ("bfloat16", 3.4e38, 1),
        ("float64", 1e300, 0),
    ],
)
def test_ranges_of_the_other_types(dtype: str, largest: float, found: int) -> None:
    sites = chain(8, shortcut_dtype=dtype, branch_dtype=dtype)
    assert len(look({"max_sum": [(0, 3, largest)]}, sites)) == found


@pytest.mark.parametrize("value", [NAN, INF])
def test_the_branch(value: float) -> None:
    change = {
        "max_branch": [(slice(2, None), 4, value)],
        "max_sum": [(slice(2, None), 4, value), (slice(2, None), slice(5, None), NAN)],
        "max_shortcut": [(slice(2, None), slice(5, None), NAN)],
    }
    (hit,) = look(change)
    assert hit.where == ("blocks.4",)
    assert hit.first_step == 2
    assert hit.evidence["origin"] == "the branch"
    assert hit.evidence["sites"] == 4
    assert RULE.severity == "error"


def test_what_came_in_with_x() -> None:
    everywhere = [(1, slice(None), NAN)]
    (hit,) = look(dict.fromkeys(("max_shortcut", "max_branch", "max_sum"), everywhere))
    assert hit.where == ("blocks.0",)
    assert hit.evidence["origin"] == "the shortcut"


def test_inside_a_branch_comes_before_its_addition() -> None:
    sites = make_map(make_site(0), make_site(1), make_site(2, depth=1, nested=True, name="in"))
    bad = [(0, [1, 2], NAN)]
    (hit,) = look({"max_branch": bad, "max_sum": bad}, sites)
    assert hit.where == ("in",)


def test_skipped_amp_steps_are_silent_unless_they_go_on() -> None:
    change = {"max_sum": [(1, 3, INF)]}
    skipped = step_facts("skipped", [0, 1, 0, 0, 0])
    assert look(change)
    assert not look(change, more=skipped)
    on_and_on = {"max_sum": [([1, 2, 3], 3, INF)]}
    (hit,) = look(on_and_on, more=step_facts("skipped", [0, 1, 1, 1, 0]))
    assert hit.first_step == 1
    later = {"max_sum": [([1, 3], 3, INF)]}
    assert look(later, more=skipped)[0].first_step == 3


def test_gradients_from_the_end() -> None:
    (hit,) = look({"grad_sum_norm": [(1, slice(0, 5), INF)]})
    assert hit.where == ("blocks.4",)
    assert "between blocks.4 and the next sum" in hit.cause
    (hit,) = look({"grad_sum_norm": [(1, slice(None), NAN)]})
    assert "the head or the loss" in hit.cause


def test_gradients_under_a_loss_scale_may_overflow() -> None:
    one = {"grad_sum_norm": [(0, slice(None), INF)]}
    scale = step_facts("loss_scale", [65536.0] * 5)
    assert not look(one, more=scale)
    assert look({"grad_sum_norm": [([0, 1, 2], slice(None), INF)]}, more=scale)


def test_the_forward_comes_before_loss_and_gradient_of_its_step() -> None:
    change = {"max_branch": [(2, 4, NAN)], "grad_sum_norm": [(2, slice(None), NAN)]}
    loss = step_facts("loss", [1, 1, NAN, 1, 1])
    assert look(change, more=loss)[0].evidence["origin"] == "the branch"
    (hit,) = look({"grad_sum_norm": [(2, slice(None), NAN)]}, more=loss)
    assert hit.where == ("model",)
    assert "head or the loss" in hit.cause


def test_a_model_without_additions_has_a_loss() -> None:
    (hit,) = RULE.run({"sites": SiteMap(), **step_facts("loss", [1, NAN])})
    assert hit.first_step == 1
    with pytest.raises(NotMeasurable, match="needs a residual addition or the loss"):
        RULE.run({"sites": SiteMap()})
