"""RES001: at chance, no lower than at the start, and what must stay silent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import Parameter, Run
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_parameter
from tests.offline.rule_values import rates, table

RULE = RULES["RES001"]
LN10 = np.log(10)


def net(classes: int = 10, owner: str = "Linear") -> tuple[Parameter, ...]:
    """A block, and a head outside of it."""
    head = make_parameter(
        1, name="head.weight", shape=(classes, 16), sites=(), block="", owner=owner
    )
    return (make_parameter(0), head, make_parameter(2, name="bias", shape=(16,), sites=()))


def look(
    loss: Any,
    steps: Any = None,
    parameters: tuple[Parameter, ...] | None = None,
    run: Run | None = None,
    lr: Any = 1e-3,
    **over: float,
) -> tuple[Hit, ...]:
    values = np.asarray(loss, float)
    known = np.arange(len(values)) if steps is None else np.asarray(steps)
    given = {
        "loss": table("loss", values[:, None], ("loss",), known, np.isnan(values)[:, None]),
        "lr": rates(int(known[-1]) + 1, lr),
        "groups": (),
        "run": run or Run(),
    }
    return RULE.run({**given, **({"parameters": parameters} if parameters else {})}, **over)


def noisy(level: Any, steps: int = 200) -> np.ndarray:
    return level + 0.02 * np.sin(1.7 * np.arange(steps))


def test_chance_is_a_warning_with_the_number_of_classes() -> None:
    start = np.where(np.arange(200) < 20, 2.8 - 0.025 * np.arange(200), LN10)
    (hit,) = look(noisy(start), parameters=net())
    assert hit.severity == "warning"
    assert hit.where == ("model",)
    assert "ln 10" in hit.message
    assert hit.evidence["head"] == "head.weight"
    assert (hit.first_step, hit.last_step) == (50, 199)  # three times 50 of the 195 after the first


def test_it_began_when_it_was_last_better() -> None:
    """Halves of 50 from the end: 300 to 349 held a better loss, 350 to 499 none."""
    loss = noisy(np.where(np.arange(500) < 340, 1.5, LN10), 500)
    (hit,) = look(loss, parameters=net())
    assert (hit.first_step, hit.last_step) == (350, 499)


def test_noisy_losses_are_looked_at_for_longer() -> None:
    """The last 50 of a loss at chance lie 2 % lower by accident; 400 of them do not."""
    loss = noisy(np.where(np.arange(700) < 650, LN10, 0.98 * LN10), 700)
    (hit,) = look(loss, parameters=net())
    assert (hit.severity, hit.last_step) == ("warning", 699)
    assert not look(noisy(np.where(np.arange(700) < 450, LN10, 0.98 * LN10), 700), parameters=net())


@pytest.mark.parametrize(("drop", "found"), [(0.0115, 1), (0.014, 0)])
def test_a_fall_within_the_noise_of_few_losses_is_none(drop: float, found: int) -> None:
    """Ten losses, d = .01 ln C above and below: medians of five are +d and -d.

    Neighbours are 2d apart: a standard deviation of 1.4826 * 2d / sqrt(2) = 2.097 d, so that the
    medians differ by 2 * 1.2533 * 2.097 d * sqrt(4 / 10) = 3.324 d by chance.
    """
    level = np.r_[np.full(5, 1.02), np.full(5, 1.02 - drop)]
    loss = LN10 * np.r_[[1.5] * 5, level + 0.01 * (-1.0) ** np.arange(10)]
    assert len(look(loss, np.arange(15) * 50, parameters=net())) == found


@pytest.mark.parametrize(("times", "found"), [(0.985, 0), (0.995, 1), (1.045, 1), (1.06, 0)])
def test_the_band_around_chance(times: float, found: int) -> None:
    loss = np.r_[[5.0] * 5, np.full(195, times * LN10)]
    assert len(look(loss, parameters=net())) == found


@pytest.mark.parametrize(("times", "found"), [(0.985, 0), (0.995, 1), (1.5, 1)])
def test_no_lower_than_the_start_is_an_information(times: float, found: int) -> None:
    loss = np.r_[[5.0] * 5, np.full(195, times * 5.0)]
    hits = look(loss)
    assert [hit.severity for hit in hits] == ["info"] * found


def test_a_tied_head_is_the_largest_embedding() -> None:
    wte = make_parameter(1, name="wte", shape=(65, 16), sites=(), owner="Embedding")
    wpe = make_parameter(2, name="wpe", shape=(32, 16), sites=(), owner="Embedding")
    (hit,) = look(noisy(np.log(65)), parameters=(make_parameter(0), wte, wpe))
    assert hit.evidence["head"] == "wte"


def test_a_run_that_is_waking_up_is_silent() -> None:
    """A slow Fixup net: 2.32, 2.28, 2.26."""
    loss = np.interp(np.arange(120), [0, 20, 70, 119], [2.35, 2.33, 2.30, 2.26])
    assert not look(loss, parameters=net())
    assert look(loss, parameters=net(), falling=0.9)


def test_a_run_that_learned_is_silent() -> None:
    assert not look(np.linspace(2.4, 0.5, 200), parameters=net())


def test_a_resumed_run_has_no_start() -> None:
    assert not look(noisy(1.0), parameters=net(), run=Run(fresh=False))
    with pytest.raises(NotMeasurable, match="width of the head"):
        look(noisy(1.0), run=Run(fresh=False))


def test_decayed_and_finished_runs_are_not_judged() -> None:
    with pytest.raises(NotMeasurable, match="has decayed"):
        look(noisy(LN10), parameters=net(), lr=np.linspace(1e-3, 0, 200)[:, None])
    assert look(noisy(LN10), parameters=net(), lr=np.linspace(1e-3, 2e-5, 200)[:, None])


def test_a_hundred_steps_after_warm_up() -> None:
    with pytest.raises(NotMeasurable, match="needs 100 steps after warm-up, has 99"):
        look(noisy(LN10, 100), parameters=net())
    assert look(noisy(LN10, 101), parameters=net())
    warm = np.minimum(np.arange(1, 201) / 120, 1)[:, None]
    with pytest.raises(NotMeasurable, match="after warm-up"):
        look(noisy(LN10), parameters=net(), lr=1e-3 * warm)


def test_losses_of_sparse_captures() -> None:
    steps = [0, 1, 2, 4, 8, 16, 32, *range(50, 400, 50)]
    (hit,) = look(np.full(len(steps), LN10), steps, net())
    assert hit.last_step == 350
    with pytest.raises(NotMeasurable, match="needs 10 losses after warm-up"):
        look(np.full(5, LN10), [0, 50, 100, 150, 200], net())


def test_losses_that_have_no_chance() -> None:
    with pytest.raises(NotMeasurable, match="positive"):
        look(noisy(-0.5), parameters=net())
    with pytest.raises(NotMeasurable, match="nothing was recorded yet"):
        RULE.run({"loss": table("loss", np.zeros((0, 1)), ("loss",))})


def test_losses_that_are_not_numbers_are_left_out() -> None:
    loss = noisy(LN10)
    loss[::7] = np.inf
    assert look(loss, parameters=net())
