"""RES401: heat in the first steps, for long, in one tensor, and by inflation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import Parameter, Run
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_parameter
from tests.offline.rule_values import table

RULE = RULES["RES401"]
HEALTHY = tuple(make_parameter(k) for k in range(8))


def look(
    u: Any,
    parameters: tuple[Parameter, ...] = HEALTHY,
    weight: Any = 0.2,
    run: Run | None = None,
    steps: Any = None,
) -> tuple[Hit, ...]:
    """`u` and `weight`: (rows,) or (rows, matrices)."""
    ratio = np.asarray(u, float)
    ratio = ratio[:, None] if ratio.ndim == 1 else ratio
    shape = (len(ratio), len(parameters))
    rms = np.asarray(weight, float)
    rms = rms[:, None] if rms.ndim == 1 and len(rms) == len(ratio) else rms
    columns = tuple(p.name for p in parameters)
    at = np.arange(len(ratio)) if steps is None else np.asarray(steps)
    return RULE.run(
        {
            "update_ratio": table("update_ratio", np.broadcast_to(ratio, shape), columns, at),
            "weight_rms": table("weight_rms", np.broadcast_to(rms, shape), columns, at),
            "parameters": parameters,
            "run": run or Run(),
        }
    )


def hot(value: float, count: int, rows: int = 40) -> np.ndarray:
    u = np.full(rows, 0.005)
    u[:count] = value
    return u


@pytest.mark.parametrize(
    ("value", "count", "severity"),
    [
        (0.19, 3, "silent"), (0.21, 3, "warning"), (0.21, 2, "silent"), (0.49, 3, "warning"),
        (0.51, 3, "error"), (0.144, 5, "silent"),
    ],
)  # fmt: skip
def test_the_first_steps(value: float, count: int, severity: str) -> None:
    assert [h.severity for h in look(hot(value, count))] == (
        [] if severity == "silent" else [severity]
    )


def test_heat_that_has_gone_is_still_told() -> None:
    (hit,) = look(hot(0.8, 4, 300))
    assert (hit.first_step, hit.last_step) == (0, 3)
    assert hit.evidence["median u at the end"] == pytest.approx(0.005)


def test_warm_for_long() -> None:
    assert not look(np.full(49, 0.031))
    assert look(np.full(50, 0.031))
    assert not look(np.full(200, 0.029))


def test_one_tensor_is_information() -> None:
    u = np.full((40, 8), 0.005)
    u[5:15, 3] = 0.21
    (hit,) = look(u)
    assert (hit.severity, hit.where) == ("info", ("blocks.3.weight",))
    u[14, 3] = 0.19
    assert not look(u)


@pytest.mark.parametrize(("times", "found"), [(2.9, False), (3.1, True)])
def test_inflation(times: float, found: bool) -> None:
    assert bool(look(np.full(60, 0.02), weight=0.2 * np.linspace(1, times, 60))) is found


def test_one_step_is_no_steps() -> None:
    (hit,) = look(np.full(2, 0.02), weight=0.2 * np.array([1.0, 3.1]))
    assert hit.message.endswith("3.10x that of step 0 within 1 step")
    (hit,) = look(np.full(3, 0.02), weight=0.2 * np.array([1.0, 2.0, 3.1]))
    assert hit.message.endswith("3.10x that of step 0 within 2 steps")
    one = HEALTHY[:1]
    (hit,) = look(np.full(3, 0.02), one, weight=0.2 * np.array([1.0, 2.0, 3.1]))
    assert hit.message.startswith("median RMS of 1 matrix ")


def test_slow_growth_is_no_inflation() -> None:
    steps = np.arange(0, 400, 4)
    assert not look(np.full(100, 0.02), weight=0.2 * np.linspace(1, 8, 100), steps=steps)


def test_matrices_that_start_small_may_grow() -> None:
    grown = np.ones((60, 8))
    grown[0] = 0.3 / 4 - 1e-3  # fan in 16
    assert not look(np.full(60, 0.02), weight=grown)
    grown[0] = 0.3 / 4 + 1e-3
    assert look(np.full(60, 0.02), weight=grown)


def test_inflation_needs_the_first_weights() -> None:
    grown = 0.2 * np.linspace(1, 9, 60)
    assert not look(np.full(60, 0.02), weight=grown, run=Run(fresh=False))


def test_vectors_embeddings_and_frozen_ones_are_not_judged() -> None:
    for change in ({"shape": (16,)}, {"owner": "Embedding"}, {"trainable": False}):
        odd = tuple(make_parameter(k, **(change if k < 6 else {})) for k in range(8))
        u = np.full((40, 8), 0.9)
        u[:, 6:] = 0.005
        assert not look(u, odd)


def test_nothing_to_judge() -> None:
    with pytest.raises(NotMeasurable, match="needs update ratio of a trainable matrix"):
        look(np.ones(5), tuple(make_parameter(k, shape=(4,)) for k in range(3)))


def test_one_finding_for_heat_and_inflation() -> None:
    assert len(look(hot(0.8, 5), weight=0.2 * np.linspace(1, 9, 40))) == 1


@pytest.mark.parametrize(("peak", "stands"), [(0.6, True), (0.4, False)])
def test_grave_heat_at_the_start_stands_after_it_has_passed(peak: float, stands: bool) -> None:
    """The weights have grown by it: that u is small again is no recovery."""
    u = np.r_[peak, 0.3, 0.25, np.full(37, 0.01)]
    (hit,) = look(u)
    assert hit.stands is stands
    (late,) = look(np.r_[np.full(20, 0.01), u])
    assert not late.stands
