"""RES404: weights moved by decay or momentum alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import Parameter
from skipscope.rule import Hit
from skipscope.rules import RULES
from tests.offline.builders import make_parameter
from tests.offline.rule_values import rates, table, with_updates

RULE = RULES["RES404"]
NONE = float("nan")


def look(
    at: int = 2, gradient: Any = 0.0, update: Any = 1e-3, rows: int = 20, **changed: Any
) -> tuple[Hit, ...]:
    """Eight matrices; `gradient` and `update` are those of number `at`, (rows,) or one number."""
    parameters = tuple(make_parameter(k, **(changed if k == at else {})) for k in range(8))
    return RULE.run(values(parameters, at, gradient, update, rows))


def values(
    parameters: tuple[Parameter, ...], at: int, gradient: Any, update: Any, rows: int
) -> dict[str, Any]:
    g, u = np.full((rows, len(parameters)), 0.1), np.full((rows, len(parameters)), 1e-3)
    g[:, at], u[:, at] = gradient, update
    given = with_updates(parameters, 0.1, 0.1, steps=np.arange(rows))
    columns = tuple(p.name for p in parameters)
    given["gradient_norm"] = table("gradient_norm", g, columns, None, np.isnan(g))
    given["update_norm"] = table("update_norm", u, columns, None, np.isnan(u))
    return {**given, "lr": rates(rows)}


@pytest.mark.parametrize("gradient", [0.0, NONE, 0.1])
def test_frozen_and_moving(gradient: float) -> None:
    """A stale gradient is none."""
    (hit,) = look(gradient=gradient, trainable=False)
    assert hit.where == ("blocks.2",)
    assert hit.severity is None
    assert hit.evidence["kind"] == "frozen"


def test_frozen_in_mid_run() -> None:
    gradient = np.where(np.arange(20) < 12, 0.1, 0.0)
    (hit,) = look(gradient=gradient, trainable=False)
    assert (hit.first_step, hit.last_step) == (12, 19)


def test_a_decayed_learning_rate_moves_nothing_any_more() -> None:
    """Weight decay times a learning rate near 0 is lost in the rounding of a weight."""
    lr = np.where(np.arange(20) < 15, 1e-3, 1e-6)[:, None]
    given = values(
        tuple(make_parameter(k, trainable=k != 2) for k in range(8)),
        2, 0.0, np.where(np.arange(20) < 15, 1e-3, 0.0), 20,
    )  # fmt: skip
    (hit,) = RULE.run({**given, "lr": rates(20, lr)})
    assert hit.where == ("blocks.2",)


def test_frozen_and_at_rest() -> None:
    assert not look(update=0.0, trainable=False)
    assert not look(update=NONE, trainable=False)  # in no optimizer
    resting = np.where(np.arange(20) < 19, 1e-3, 0.0)
    assert not look(update=resting, trainable=False)


def test_trainable_without_gradient_moves() -> None:
    (hit,) = look(name="blocks.2.fc.weight")
    assert hit.evidence["kind"] == "without gradient"
    assert hit.where == ("blocks.2",)
    assert look(gradient=NONE)


@pytest.mark.parametrize(("rows", "found"), [(9, False), (10, True)])
def test_ten_steps(rows: int, found: bool) -> None:
    assert bool(look(rows=rows)) is found


def test_zero_at_first_is_silent() -> None:
    """Zero-initialised branches, and experts that keep moving by momentum."""
    gradient = np.where(np.arange(20) == 7, 0.1, 0.0)
    assert not look(gradient=gradient)


def test_a_bias_without_effect_is_silent() -> None:
    """A bias before a norm, whose weight has a gradient."""
    parameters = (
        *(make_parameter(k) for k in range(7)),
        make_parameter(7, name="blocks.3.bias", shape=(16,)),
    )
    assert not RULE.run(values(parameters, 7, 0.0, 1e-5, 20))


def test_weight_decay_is_named() -> None:
    parameters = tuple(make_parameter(k) for k in range(8))
    given = values(parameters, 2, 0.0, 1e-3, 20)
    norms = np.ones((20, 8))
    norms[:, 2] = 0.99 ** np.arange(20)
    given["weight_norm"] = table("weight_norm", norms, tuple(p.name for p in parameters))
    (hit,) = RULE.run(given)
    assert hit.cause.startswith("weight decay")
