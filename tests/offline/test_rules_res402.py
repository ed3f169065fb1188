"""RES402: cold runs, cold blocks, and runs that only look cold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import Run
from skipscope.rule import Hit, NotMeasurable
from skipscope.rule.gates import Warmup
from skipscope.rules import RULES
from tests.offline.builders import make_parameter
from tests.offline.rule_values import rates, table

RULE = RULES["RES402"]
PARAMETERS = tuple(make_parameter(k) for k in range(8))


def look(u: Any, blocks: Any = None, warm: int = 0, **more: Any) -> tuple[Hit, ...]:
    ratio = np.asarray(u, float)
    columns = tuple(p.name for p in PARAMETERS)
    values = ratio if ratio.ndim == 2 else np.broadcast_to(ratio[:, None], (len(ratio), 8))
    by_block = values if blocks is None else blocks
    return RULE.run(
        {
            "update_ratio": table("update_ratio", values, columns),
            "block_update_ratio": table("block_update_ratio", by_block),
            "parameters": PARAMETERS,
            "run": Run(),
            "lr": rates(len(ratio)),
            "warmup": Warmup(warm, len(ratio) - 1),
            **more,
        }
    )


@pytest.mark.parametrize(
    ("value", "steps", "severity"),
    [
        (0.9e-6, 100, [None]), (0.9e-6, 99, []), (1.1e-6, 100, ["info"]), (0.9e-5, 100, ["info"]),
        (1.1e-5, 100, []), (2.5e-5, 300, []), (0.0, 100, [None]),
    ],
)  # fmt: skip
def test_levels(value: float, steps: int, severity: list[str | None]) -> None:
    if steps < 100:
        assert not look(np.full(steps, value))
        return
    assert [hit.severity for hit in look(np.full(steps, value))] == severity


def test_the_debug_preset_asks_for_20_steps() -> None:
    debug = Run(preset="debug")
    (hit,) = look(np.full(20, 3e-7), run=debug)
    assert hit.severity is None
    assert not look(np.full(19, 3e-7), run=debug)
    assert not look(np.full(60, 3e-6), run=debug)  # the information waits for 100


def behind_gates(rise: Any, head: float) -> np.ndarray:
    """Seven matrices that rise together, and one before no gate."""
    u = np.tile(np.asarray(rise, float)[:, None], (1, 8))
    u[:, 7] = head
    return u


@pytest.mark.parametrize(("head", "found"), [(0.9e-5, 1), (1.1e-5, 0)])
def test_a_rise_is_waking_up_where_something_moves_already(head: float, found: int) -> None:
    """SkipInit under SGD: 6e-8 to 6e-6, and adaLN-zero at a rate of 3e-8, which only looks so."""
    assert len(look(behind_gates(np.geomspace(6e-8, 9e-7, 100), head))) == found


def test_what_does_not_rise_is_no_waking_up() -> None:
    """The medians of the thirds, at steps 16 and 83, are 1.45 apart, then 1.60."""
    assert look(behind_gates(np.geomspace(5e-7, 5e-7 * 1.45 ** (99 / 67), 100), 1e-3))
    assert not look(behind_gates(np.geomspace(5e-7, 5e-7 * 1.6 ** (99 / 67), 100), 1e-3))


@pytest.mark.parametrize(("wakes", "found"), [(4.0, 0), (1.2, 1)])
def test_the_rise_is_one_per_learning_rate(wakes: float, found: int) -> None:
    """Half a cosine takes u down; what a unit of learning rate moves rises all the same, or not."""
    falling = 1e-3 * 0.5 * (1 + np.cos(np.pi * np.arange(100) / 100))
    u = 4e-4 * falling * np.linspace(1, wakes, 100)
    assert u[-33:].max() < u[:33].min()
    hits = look(behind_gates(u, 1e-3), lr=rates(100, falling[:, None]))
    assert len(hits) == found


def test_what_moved_once_does_not_count() -> None:
    u = behind_gates(np.geomspace(6e-8, 9e-7, 100), 1e-3)
    u[60:, 7] = 1e-7  # the last third begins at step 67
    assert look(u)


def starting_at(*rms: float, rows: int) -> Any:
    """Weights of 8 matrices; those given at the first row, .25 after it and else."""
    values = np.full((rows, 8), 0.25)
    values[0, : len(rms)] = rms
    return table("weight_rms", values, tuple(p.name for p in PARAMETERS))


@pytest.mark.parametrize(("start", "found"), [(0.0, 1), (0.024, 1), (0.026, 0)])
def test_matrices_that_start_at_0_tell_no_rate(start: float, found: int) -> None:
    """They have 16 inputs: below .1/4 = .025 their u is held against that, not their size."""
    u = np.full((100, 8), 3e-7)
    u[:, :5] = 3e-5  # most of them: the median of all is above both limits
    hits = look(u, np.ones((100, 8)), weight_rms=starting_at(*[start] * 5, rows=100))
    assert [hit.severity for hit in hits] == [None] * found
    waking = behind_gates(np.geomspace(6e-8, 9e-7, 100), 1e-7)
    waking[:, 0] = 3e-5
    assert len(look(waking, np.ones((100, 8)), weight_rms=starting_at(start, rows=100))) == found


def test_where_all_start_at_0_all_are_judged() -> None:
    assert look(np.full(100, 3e-7), weight_rms=starting_at(*[0.0] * 8, rows=100))
    assert not look(np.full(100, 3e-5), weight_rms=starting_at(*[0.0] * 8, rows=100))


def test_warm_once_is_silent() -> None:
    u = np.full(300, 3e-7)
    u[:30] = 1e-3
    assert not look(u)


def test_warmup_and_steps_without_learning_rate_do_not_count() -> None:
    assert not look(np.full(150, 3e-7), warm=51)
    assert look(np.full(150, 3e-7), warm=50)
    with pytest.raises(NotMeasurable, match="needs the end of warm-up"):
        look(np.full(150, 3e-7), warmup=Warmup(None, 149))
    lr = np.where(np.arange(150) < 51, 0, 1e-3)[:, None]
    assert not look(np.full(150, 0.0), lr=rates(150, lr))


@pytest.mark.parametrize(("share", "found"), [(0.009, True), (0.011, False)])
def test_one_block(share: float, found: bool) -> None:
    blocks = np.full((100, 8), 1e-3)
    blocks[:, 2] *= share
    hits = look(np.full(100, 1e-3), blocks)
    assert [(hit.severity, hit.where) for hit in hits] == [("info", ("blocks.2",))] * found


def test_one_block_for_100_steps_until_now() -> None:
    blocks = np.full((120, 8), 1e-3)
    blocks[:, 2] = 1e-6
    blocks[:21, 2] = 1e-3
    assert not look(np.full(120, 1e-3), blocks)
    blocks[:, 2] = 1e-6
    blocks[-1, 2] = 1e-3
    assert not look(np.full(120, 1e-3), blocks)


def test_a_frozen_block_is_not_judged() -> None:
    frozen = tuple(make_parameter(k, trainable=k != 2) for k in range(8))
    blocks = np.full((100, 8), 1e-3)
    blocks[:, 2] = 1e-9
    assert not look(np.full(100, 1e-3), blocks, parameters=frozen)


def test_too_few_steps_are_a_reason() -> None:
    with pytest.raises(NotMeasurable, match="needs 100 steps after warm-up"):
        look(np.full(50, 3e-7), block_update_ratio=None)
