"""What the protocol says was equal is so in every arm."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from skipscope.study import Arm
from skipscope.study.arms import restarted
from skipscope.study.protocol import protocol
from skipscope.study.starts import he
from tests.study.nets import net, normed, study

PLAIN, RESIDUAL, _ = study()._plan.arms
SAME = "as the factory draws them: the same for a seed in all arms of a pair"


@pytest.mark.parametrize(
    ("batch_size", "told"),
    [
        (8, "4 of 8 samples"),
        (1, "4 of 1 sample"),
        (45, "4 of 45 samples"),
        (46, "4 of all 45 samples, fewer than the batch size of 46"),
    ],
)
def test_a_batch_above_all_samples_is_told(batch_size: int, told: str) -> None:
    made = study(batch_size=batch_size)  # of 60 samples three quarters are to train on
    said = protocol(made._plan, made.depths[0], (0,), {"optimizer": "SGD"})
    assert said["steps"] == told


@pytest.mark.parametrize(
    ("factory", "arms", "told"),
    [
        (net, (PLAIN, RESIDUAL), SAME),
        (
            net,
            (restarted(PLAIN, he, ""), RESIDUAL),
            f"{SAME}; an arm's own start then changes them",
        ),
        (net(2), (PLAIN, RESIDUAL), "at the start those of the given model"),
        (
            net,
            (PLAIN, Arm(RESIDUAL.facts, factory=normed)),
            "as each arm's factory draws them, from the same seed in all arms of a pair",
        ),
    ],
)
def test_initial_weights(factory: object, arms: Sequence[Arm], told: str) -> None:
    made = study(factory, arms=arms, depths=None if factory is not net else (1,))
    said = protocol(made._plan, made.depths[0], (0,), {"optimizer": "SGD"})
    assert said["weights"] == told
