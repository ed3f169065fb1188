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
    values = np.broadcast_to(ratio[:, None], (len(ratio), 8))
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


def test_waking_up_is_silent() -> None:
    """SkipInit under SGD: 6e-8 to 6e-6."""
    assert not look(np.geomspace(1e-8, 9e-7, 100))
    assert look(np.geomspace(5e-7, 6e-7, 100))


@pytest.mark.parametrize(("rise", "found"), [(3.2e-10, 1), (3.3e-10, 0)])
def test_a_rise_that_leads_nowhere_is_no_waking_up(rise: float, found: int) -> None:
    """Gates at 0 and a rate of 1e-8: after step t, u is t times `rise`.

    The thirds have their medians at steps 16 and 83; 30 * 100 steps later u is 3,083 times the
    rise, 1e-6 for 3.24e-10.
    """
    assert len(look(np.arange(100) * rise)) == found


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
