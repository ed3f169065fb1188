"""RES403: updates that rounding eats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.rule import Hit
from skipscope.rule.gates import Warmup
from skipscope.rules import RULES
from tests.offline.builders import make_parameter
from tests.offline.rule_values import rates, table

RULE = RULES["RES403"]


def look(
    share: Any, dtype: str = "bfloat16", gradient: Any = 0.1, rows: int = 20, **more: Any
) -> tuple[Hit, ...]:
    parameters = tuple(make_parameter(k, dtype=dtype) for k in range(8))
    columns = tuple(p.name for p in parameters)
    shape = (rows, 8)
    return RULE.run(
        {
            "changed_share": table("changed_share", np.broadcast_to(share, shape), columns),
            "gradient_norm": table("gradient_norm", np.broadcast_to(gradient, shape), columns),
            "parameters": parameters,
            "lr": rates(rows),
            "warmup": Warmup(0, rows - 1),
            **more,
        }
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_most_elements_stay(dtype: str) -> None:
    (hit,) = look(0.1, dtype)
    assert (hit.severity, hit.where) == (None, ("model",))
    assert "10.0 %" in hit.message


@pytest.mark.parametrize(("share", "found"), [(0.49, True), (0.51, False), (0.96, False)])
def test_half_of_them(share: float, found: bool) -> None:
    assert bool(look(share)) is found


def test_float32_is_never_judged() -> None:
    assert not look(0.01, "float32")


def test_patience() -> None:
    assert not look(0.1, rows=2)
    assert look(0.1, rows=3)


def test_without_gradient_nothing_has_to_change() -> None:
    assert not look(0.0, gradient=0.0)


def test_learning_rate_zero_and_warmup() -> None:
    assert not look(0.0, lr=rates(20, 0.0))
    early = np.where(np.arange(20) < 10, 0.0, 1.0)[:, None]
    assert look(early)
    assert not look(early, warmup=Warmup(10, 19))
