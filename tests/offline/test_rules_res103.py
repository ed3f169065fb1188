"""RES103: branches that are dead, starved, asleep, dropped or frozen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from skipscope.records import Parameter
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_group, make_parameter
from tests.offline.rule_values import chain, rates, table, with_updates

RULE = RULES["RES103"]
SPARSE = (0, 1, 2, 4, 8, 16)
HEALTHY = tuple(make_parameter(k) for k in range(8))


def look(r: Any, steps: Any = SPARSE, more: Any = None, lr: Any = 1e-3) -> tuple[Hit, ...]:
    values = np.broadcast_to(np.asarray(r, float), (len(steps), np.shape(r)[-1]))
    given = {
        "branch_ratio": table("branch_ratio", values, steps=steps),
        "sites": chain(values.shape[1]),
        "parameters": HEALTHY,
        "groups": (make_group(0),),
        "lr": rates(max(steps) + 1, lr),
    }
    return RULE.run({**given, **(more or {})})


def one_dead(at: int = 2) -> np.ndarray:
    r = np.full(8, 0.3)
    r[at] = 0
    return r


def two_factors(dead: int, weight: float, **changes: Any) -> tuple[tuple[Parameter, ...], Any]:
    """Two matrices a block; those of one block have gradient 0."""
    parameters = tuple(
        make_parameter(2 * k + j, name=f"blocks.{k}.{part}.weight", role=part, sites=(k,))
        for k in range(8)
        for j, part in enumerate(("down", "up"))
    )
    dead_ones = [2 * dead, 2 * dead + 1]
    gradient, sizes = np.full(16, 0.1), np.ones(16)
    gradient[dead_ones], sizes[dead_ones] = 0, weight
    values = with_updates(parameters, gradient, 0.01 * gradient, sizes)
    return parameters, {**values, **changes}


def test_both_factors_zero() -> None:
    (hit,) = look(one_dead(), more=two_factors(2, 0.0)[1])
    assert hit.where == ("blocks.2",)
    assert hit.severity is None
    assert "blocks.2.down.weight, blocks.2.up.weight: 0 together" in hit.cause
    assert (hit.first_step, hit.last_step) == (0, 16)
    assert "16 optimizer steps" in hit.message


def test_cut_off_branch() -> None:
    (hit,) = look(one_dead(), more=two_factors(2, 1.0)[1])
    assert "cut off" in hit.cause


def test_a_gate_in_no_optimizer_group() -> None:
    """All branches are dead, and one finding says so."""
    parameters = tuple(
        make_parameter(k, name=f"blocks.{k}.alpha", shape=(), group=None) for k in range(8)
    )
    values = with_updates(parameters, 0.05, 0.0)
    (hit,) = look(np.zeros(8), more=values)
    assert hit.where == tuple(f"blocks.{k}" for k in range(8))
    assert "in no optimizer group" in hit.cause
    assert "blocks.0.alpha" in hit.cause
    assert hit.evidence["largest gradient"] == pytest.approx(0.05)


def test_a_gate_with_learning_rate_zero() -> None:
    parameters, values = two_factors(2, 0.0)
    changed = [
        make_parameter(5, name="blocks.2.up.weight", role="up", sites=(2,), group=1)
        if p.index == 5
        else p
        for p in parameters
    ]
    gradient = np.full(16, 0.1)
    gradient[4] = 0
    update = 0.01 * gradient
    update[5] = 0
    values = with_updates(tuple(changed), gradient, update)
    more = {**values, "lr": rates(17, [1e-3, 0.0], groups=2)}
    (hit,) = look(one_dead(), more=more)
    assert hit.cause.startswith("blocks.2.up.weight: in an optimizer group with lr 0")


def test_steps_with_learning_rate_zero_or_skipped_do_not_count() -> None:
    rising = np.where(np.arange(17) < 8, 0.0, 1e-3)[:, None]
    with pytest.raises(NotMeasurable, match=r"needs 10 optimizer steps with lr > 0 .* has 8"):
        look(one_dead(), more={"lr": rates(17, rising)})
    skipped = table("skipped", (np.arange(17) < 8)[:, None], ("skipped",))
    with pytest.raises(NotMeasurable, match="has 8"):
        look(one_dead(), more={"skipped": skipped})


def test_zero_at_step_0_that_wakes_up() -> None:
    r = np.full((6, 8), 0.002)
    r[0] = 0
    assert not look(r)


def test_zero_until_now_but_too_early() -> None:
    with pytest.raises(NotMeasurable, match="has 8"):
        look(np.zeros(8), steps=(0, 1, 2, 4, 8))


def test_frozen_on_purpose_is_information() -> None:
    frozen = tuple(make_parameter(k, trainable=k != 2, group=0 if k != 2 else None) for k in (2, 3))
    frozen = tuple(make_parameter(i, name=p.name, trainable=p.trainable, sites=p.sites)
                   for i, p in enumerate(frozen))  # fmt: skip
    dead = two_factors(2, 0.0)[1]
    (hit,) = look(one_dead(), steps=range(12), more={**dead, "parameters": frozen})
    assert hit.severity == "info"
    assert "frozen" in hit.cause


def test_dropped_in_every_capture_but_learning_between_them() -> None:
    """Whole-batch stochastic depth may drop a branch in all six captures; updates tell."""
    values = with_updates(HEALTHY, 0.1, 1e-3)
    assert not look(one_dead(), more=values)


def test_stochastic_depth_is_silent() -> None:
    rng = np.random.default_rng(1)
    r = np.where(rng.random((40, 8)) < 0.5, 0.0, 0.6)
    assert not look(r, steps=range(40))
    assert not look(r, steps=range(40), more=with_updates(HEALTHY, 0.1, 1e-3, steps=np.arange(40)))


def test_without_update_records_more_captures_are_asked_for() -> None:
    assert not look(one_dead())
    (hit,) = look(one_dead(), steps=range(12))
    assert hit.where == ("blocks.2",)


def test_a_branch_that_died_later() -> None:
    r = np.full((30, 8), 0.3)
    r[12:, 5] = 0
    more = two_factors(5, 1.0)[1]
    values = with_updates(more["parameters"], more["gradient_norm"].values[0], 0.0,
                          steps=np.arange(30))  # fmt: skip
    (hit,) = look(r, steps=range(30), more=values)
    assert hit.where == ("blocks.5",)
    assert hit.first_step == 12


STEPS = (0, 1, 2, 4, 8, 16, 32, *range(50, 701, 50))


def settled(gradient: Any, update: Any) -> dict[str, Any]:
    return with_updates(HEALTHY, gradient, update, steps=np.array(STEPS))


def weak(value: float = 4e-4) -> np.ndarray:
    r = np.full((len(STEPS), 8), 0.3)
    r[:, 3] = value
    return r


def test_starved() -> None:
    gradient = np.full(8, 0.1)
    gradient[3] = 1e-5
    (hit,) = look(weak(), STEPS, settled(gradient, 0.01 * gradient))
    assert hit.where == ("blocks.3",)
    assert hit.severity is None
    assert "starved" in hit.message


@pytest.mark.parametrize(
    ("end", "reading"), [(1.7, "can spare"), (1.9, "limited capacity"), (None, "or a block")]
)
def test_what_low_contribution_looks_like_is_told_by_the_loss(end: Any, reading: str) -> None:
    """2.0 at the start: 1.8 is a tenth less."""
    more = settled(0.1, 1e-3)
    if end is not None:
        losses = np.linspace(2.0, end, 60)
        losses[:5], losses[-50:] = 2.0, end
        more["loss"] = table("loss", losses[:, None], ("loss",), range(60))
    (hit,) = look(weak(), STEPS, more)
    assert hit.severity == "info"
    assert reading in hit.cause


def test_a_scale_that_weight_decay_has_shrunk_is_the_cause() -> None:
    more = settled(0.1, 1e-3)
    held = tuple(replace(p, shape=(1,)) if p.index == 3 else p for p in HEALTHY)
    column = [p.name for p in held].index(held[3].name)
    sizes = np.ones((len(STEPS), len(held)))
    sizes[:, column] = np.geomspace(1.0, 0.1, len(STEPS))
    more |= {
        "parameters": held,
        "weight_norm": table("weight_norm", sizes, tuple(p.name for p in held), STEPS),
    }
    (hit,) = look(weak(), STEPS, more)
    assert hit.cause == (
        f"weight decay on {held[3].name}: less than half of the first size is left"
    )


def test_small_with_normal_gradients_is_information() -> None:
    (hit,) = look(weak(), STEPS, settled(0.1, 1e-3))
    assert hit.severity == "info"
    assert "low contribution" in hit.message


def test_small_but_rising_is_waking_up() -> None:
    r = weak()
    r[:, 3] = np.geomspace(1e-6, 9e-4, len(STEPS))
    assert not look(r, STEPS, settled(0.1, 1e-3))


def test_weak_behind_a_dominating_branch_but_above_the_limit() -> None:
    assert not look(weak(0.008), STEPS, settled(0.1, 1e-3))


def test_starved_needs_500_steps_past_warmup() -> None:
    more = settled(np.full(8, 1e-9), np.full(8, 1e-9))
    r = weak()[:10]
    more["warmup"] = None
    assert not look(r, STEPS[:10], more)  # the exact arm looked: passed


def test_no_learning_rates_is_a_reason() -> None:
    values = {
        "branch_ratio": table("branch_ratio", np.ones((3, 8))),
        "sites": chain(8),
        "parameters": HEALTHY,
    }
    with pytest.raises(NotMeasurable, match="needs lr"):
        RULE.run(values)
