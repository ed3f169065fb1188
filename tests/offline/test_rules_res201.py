"""RES201: growth with depth, growth in time, and healthy streams that grow a lot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import Run, SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.rule_values import chain, names, rates, staged, table

RULE = RULES["RES201"]
H = "stage_half_depth_growth_without_largest"


def look(
    rms: Any, sites: SiteMap | None = None, steps: Any = None, more: Any = None, **over: float
) -> tuple[Hit, ...]:
    """From the RMS of each sum; H' is worked out here once more."""
    values = np.atleast_2d(np.asarray(rms, float))
    known = sites or chain(values.shape[1])
    at = range(len(values)) if steps is None else steps
    second = values[:, values.shape[1] // 2 - 1 :]
    largest = (second[:, 1:] / second[:, :-1]).max(axis=1)
    growth = second[:, -1] / second[:, 0] / largest
    given = {
        "rms_sum": table("rms_sum", values, names(known), at),
        H: table(H, growth[:, None], ("stream 0 stage 0",), at),
        "sites": known,
        "run": Run(),
    }
    return RULE.run({**given, **(more or {})}, **over)


def exponential(rate: float, count: int = 48, rows: int = 1) -> np.ndarray:
    return np.tile(rate ** np.arange(1, count + 1), (rows, 1))


def test_constant_growth_per_block_at_step_0() -> None:
    """1.75 a block over 48 blocks: H' is 1.75^23, and one finding says so."""
    (hit,) = look(exponential(1.75, rows=6))
    assert hit.where == ("model",)
    assert hit.severity == "error"
    assert hit.value == pytest.approx(1.75**23)
    assert (hit.first_step, hit.last_step) == (0, 5)
    assert "1.75x a site" in hit.message
    assert hit.evidence["arm"] == "at step 0"


def test_mild_growth_at_step_0_is_a_warning_and_names_when_it_ended() -> None:
    rms = exponential(1.1, 24, 5)
    rms[2:] = 1.0
    (hit,) = look(rms)
    assert hit.severity == "warning"
    assert hit.last_step == 1


def test_a_resumed_run_has_no_step_0() -> None:
    assert not look(exponential(1.1, 24), more={"run": Run(fresh=False)})


def test_square_root_growth_and_one_large_block_are_silent() -> None:
    assert not look(np.sqrt(np.arange(1, 49)))
    rms = np.sqrt(np.arange(1, 13))
    rms[7:] *= 34
    assert not look(np.tile(rms, (5, 1)))


def test_in_training_needs_three_captures_in_a_row() -> None:
    rms = np.tile(np.sqrt(np.arange(1, 25)), (6, 1))
    rms[2:4] = exponential(1.4, 24)
    assert not look(rms)
    rms[4] = rms[3]
    (hit,) = look(rms)
    assert (hit.first_step, hit.last_step, hit.severity) == (2, 4, "error")


def test_not_finite_names_the_first_site_at_once() -> None:
    rms = np.ones((4, 8))
    rms[2, 5] = np.inf
    rms[2:, 6:] = np.nan
    (hit,) = look(rms)
    assert hit.where == ("blocks.5",)
    assert hit.first_step == 2
    assert hit.severity == "error"


@pytest.mark.parametrize(("loss_breaks", "found"), [(0, 0), (1, 1), (2, 1)])
def test_a_stream_that_breaks_after_the_loss_did_is_a_consequence(
    loss_breaks: int, found: int
) -> None:
    rms = np.ones((3, 12))
    rms[1:, 4] = np.nan
    loss = np.where(np.arange(3) < loss_breaks, 2.0, np.nan)[:, None]
    given = {"loss": table("loss", loss, ("loss",), range(3))}
    assert len(look(rms, steps=range(3), more=given)) == found


def test_a_sum_beyond_float16_of_finite_operands() -> None:
    sites = chain(8, shortcut_dtype="torch.float16", branch_dtype="torch.float16")
    largest = np.full((1, 8), 100.0)
    largest[0, 6] = 68000
    hits = look(np.ones((1, 8)), sites, more={"max_sum": table("max_sum", largest)})
    assert [hit.where for hit in hits] == [("blocks.6",)]
    assert "overflows float16" in hits[0].message


@pytest.mark.parametrize(("largest", "severity"), [(4e4, "warning"), (7e3, "info"), (5e3, None)])
def test_float16_streams_near_their_end(largest: float, severity: str | None) -> None:
    values = {"max_sum": table("max_sum", np.full((3, 8), largest))}
    sites = chain(8, shortcut_dtype="float16", branch_dtype="float16")
    assert [hit.severity for hit in look(np.ones((3, 8)), sites, more=values)] == (
        [severity] if severity else []
    )
    assert not look(np.ones((3, 8)), more=values)  # float32


def later(usual: float, now: float) -> np.ndarray:
    """H' of 8 sites: `usual` for 30 captures, then `now`."""
    rms = np.ones((36, 8))
    for row in range(36):
        target = (usual if row < 30 else now) ** (1 / 3)
        rms[row, 3:] = np.cumprod([1, *[target] * 4])
    return rms


def test_later_against_its_own_past() -> None:
    lr = {"lr": rates(36), "groups": ()}
    (hit,) = look(later(1.4, 3.4), more=lr)
    assert hit.first_step == 30
    assert "after warm-up" in hit.message
    assert not look(later(1.4, 2.6), more=lr)  # not twice its own
    assert not look(later(1.0, 3.4), more=lr)  # LayerScale, zero-initialised: flat before
    assert not look(later(1.4, 3.4)[:20], more=lr)


def in_time(loss_after: float) -> dict[str, Any]:
    loss = np.where(np.arange(40) < 30, 1.0, loss_after)
    return {"loss": table("loss", loss[:, None], ("loss",))}


def test_in_time() -> None:
    rms = np.ones((40, 4)) * np.where(np.arange(40) < 30, 1.0, 1.6 ** (np.arange(40) - 29))[:, None]
    (hit,) = look(rms, more=in_time(2.0))
    assert hit.first_step >= 30
    assert hit.severity == "warning"
    assert not look(rms, more=in_time(1.2))  # the loss did not rise
    assert not look(rms[::2], steps=range(0, 40, 2), more=in_time(2.0))  # steps in between unseen


def test_large_growth_behind_an_embedding_is_silent() -> None:
    growth = np.array([51.5, 1.39, 1.23, 1.2, 1.13, 1.05, 1.07, 1.08])
    assert not look(np.tile(0.02 * np.cumprod(growth), (4, 1)))


def test_shallow_stages_pass_on_what_could_look() -> None:
    sites = staged(3, 4)
    assert not look(exponential(1.75, 7), sites, more={H: None})


def test_nothing_recorded() -> None:
    with pytest.raises(NotMeasurable, match="nothing was recorded yet"):
        RULE.run({"rms_sum": table("rms_sum", np.zeros((0, 3)))})
