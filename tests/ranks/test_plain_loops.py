"""Plain loops under DDP: what several ranks record together is what one records of all data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skipscope import History
from tests.ranks import nets
from tests.ranks.launch import Results, launch

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain:ddp", {"watch": False}),
    "watched": ("plain:ddp", {}),
    "accumulated": ("plain:ddp", {"accumulate": 2}),
    "some blocks": ("plain:ddp", {"blocks": (2, 3), "find_unused_parameters": True}),
    "late block": ("plain:late_block", {}),
    "capture fails": ("plain:one_fails", {"at_step": 2, "culprit": 1}),
    "first fails": ("plain:one_fails", {"at_step": 0, "culprit": 0}),
    "off": ("plain:one_is_off", {}),
    "first alone": ("plain:only_first_watches", {}),
    "skips": ("plain:one_skips_steps", {}),
    "no line": ("plain:no_line", {"at_meeting": 0}),
    "line breaks": ("plain:no_line", {"at_meeting": 2}),
    "breaks off": ("plain:one_breaks_off", {"goes_on": True}),
    "breaks off, closes": ("plain:one_breaks_off", {"goes_on": False}),
    "interrupted": ("plain:interrupted", {}),
    "dawdles": ("plain:dawdles", {}),
    "unequal": ("plain:unequal", {}),
    "independent": ("plain:independent", {}),
}
SITE_TABLES = (
    "branch_ratio",
    "cosine",
    "growth",
    "stream_growth",
    "block_influence",
    "zero_branch_share",
    "grad_sum_norm",
    "grad_input_norm",
    "gradient_gain",
    "branch_gradient",
    "identity_gradient",
    "gradient_cosine",
    "shortcut_presence",
)
PARAMETER_TABLES = ("update_ratio", "gradient_norm", "weight_norm", "update_norm")


def agree(ours: History, whole: History, *names: str) -> None:
    for name in names:
        table, expected = ours.table(name), whole.table(name)
        assert table.columns == expected.columns
        np.testing.assert_array_equal(table.missing, expected.missing, err_msg=name)
        np.testing.assert_allclose(
            table.values, expected.values, rtol=2e-5, atol=1e-7, err_msg=name
        )
        assert not table.missing.all(), name


def test_sums_are_those_of_the_union_batch(
    results: dict[str, Results], root: Path, union: History
) -> None:
    assert results["watched"][0]["captures"] == nets.STEPS
    ours = History.load(root / "watched")
    assert ours.capture_steps.tolist() == list(range(nets.STEPS))
    assert [site.kind for site in ours.sites.sites] == ["identity"] * 3 + ["projection"]
    agree(ours, union, *SITE_TABLES, *PARAMETER_TABLES, "loss")
    for field in ("n", "max_s", "max_f", "max_y", "min_f", "max_x", "rows", "samples", "gib", "sf"):
        np.testing.assert_allclose(ours.field(field), union.field(field), rtol=2e-5, atol=1e-6)


def test_a_rank_alone_would_not_say_the_same(root: Path, union: History) -> None:
    """What is local to a rank differs here, so the test above can fail."""
    ours = History.load(root / "watched")
    local, whole = ours.table("branch_ratio_median").values, union.table("branch_ratio_median")
    assert (abs(local / whole.values - 1) > 0.05).any()


def test_the_first_rank_alone_records(results: dict[str, Results], root: Path) -> None:
    first, other = results["watched"]
    assert len(list((root / "watched").glob("history-*"))) == 1
    assert other["captures"] == 0
    assert other["steps"] == first["steps"]
    run = History.load(root / "watched").run
    assert (run.ranks, run.ranks_measured) == (2, 2)


def test_early_stopping_sees_the_same_on_every_rank(results: dict[str, Results]) -> None:
    first, other = results["watched"]
    assert first["summary"] == other["summary"]
    assert first["summary"]["skipscope/r_max"] > 0


@pytest.mark.parametrize(
    ("watched", "plain"),
    [
        ("capture fails", "plain"),
        ("first fails", "plain"),
        ("off", "plain"),
        ("first alone", "plain"),
        ("skips", "plain"),
        ("no line", "plain"),
        ("line breaks", "plain"),
        ("interrupted", "plain"),
        ("dawdles", "plain"),
    ],
)
def test_weights_are_those_of_an_unwatched_run(
    results: dict[str, Results], watched: str, plain: str
) -> None:
    assert [r["weights"] for r in results[watched]] == [r["weights"] for r in results[plain]]


def test_accumulation_captures_the_last_micro_batch_of_each_rank(
    results: dict[str, Results], root: Path
) -> None:
    ours = History.load(root / "accumulated")
    assert not results["accumulated"][0]["broken"]
    # each rank's shard of four rows is cut in two: rows 2 and 3, 6 and 7 of a batch of eight
    net = nets.make()
    monitor = nets.monitor_of(net, None, None, report=[])
    last = [(x[[2, 3, 6, 7]], y[[2, 3, 6, 7]]) for x, y in nets.batches()][:1]
    nets.train(net, nets.optimizer_of(net), monitor, last)
    for name in ("branch_ratio", "gradient_gain", "gradient_cosine"):
        expected = monitor.history.table(name).values[0]
        np.testing.assert_allclose(ours.table(name).values[0], expected, rtol=2e-5)
    assert ours.field("n")[0].tolist() == monitor.history.field("n")[0].tolist()


def test_a_site_that_one_rank_never_passes(results: dict[str, Results], root: Path) -> None:
    ours = History.load(root / "some blocks")
    assert not results["some blocks"][0]["broken"]
    assert [site.name for site in ours.sites.block_level][:3] == [f"blocks.{k}" for k in range(3)]
    third = next(site.index for site in ours.sites.sites if site.name == "blocks.2")
    first = next(site.index for site in ours.sites.sites if site.name == "blocks.0")
    elements = ours.field("n")
    assert elements[:, first].tolist() == [nets.BATCH * nets.WIDTH] * nets.STEPS
    assert elements[:, third].tolist() == [nets.BATCH * nets.WIDTH / 2] * nets.STEPS
    assert not ours.table("gradient_gain").missing.any()


def test_a_site_that_one_rank_meets_late_takes_its_place(
    results: dict[str, Results], root: Path
) -> None:
    ours = History.load(root / "late block")
    assert not results["late block"][0]["broken"]
    names = [site.name for site in ours.sites.block_level]
    assert names == ["blocks.0", "blocks.1", "blocks.2", "model"]
    late = names.index("blocks.2")
    column = ours.sites.block_level[late].index
    here = nets.BATCH * nets.WIDTH / 2
    np.testing.assert_array_equal(ours.field("n")[:, column], [np.nan, np.nan, here, here, here])


@pytest.mark.slow
@pytest.mark.parametrize("outside", [True, False])
def test_compiled_under_ddp(tmp_path: Path, union: History, outside: bool) -> None:
    results = launch(tmp_path, {"compiled": ("plain:compiled", {"outside": outside})})
    assert [r.get("error") for r in results["compiled"]] == [None, None]
    ours = History.load(tmp_path / "compiled")
    assert ours.capture_steps.tolist() == [0, 1, 2, 4]
    assert (ours.run.compiled, ours.run.model) == (True, union.run.model)
    assert [s.name for s in ours.sites.sites] == [s.name for s in union.sites.sites]
    expected = union.table("gradient_gain").values[[0, 1, 2, 4]]
    np.testing.assert_allclose(ours.table("gradient_gain").values, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "culprit", "captured"), [("capture fails", 1, 2), ("first fails", 0, 0)]
)
def test_an_error_on_one_rank_ends_all_with_one_message(
    results: dict[str, Results], name: str, culprit: int, captured: int
) -> None:
    first, other = results[name]
    assert (first["broken"], other["broken"]) == (True, True)
    assert (first["steps"], other["steps"]) == (nets.STEPS, nets.STEPS)
    assert first["captures"] == captured
    (message,) = [*first["said"], *other["said"]]
    assert f"all 2 processes after an error of its own on rank {culprit}" in message
    assert "ValueError: injected" in message


def test_a_monitor_that_was_off_from_the_start(results: dict[str, Results]) -> None:
    first, other = results["off"]
    assert (first["broken"], other["broken"]) == (True, True)
    (message,) = [*first["said"], *other["said"]]
    assert "all 2 processes after an error of its own on rank 1" in message


def test_a_monitor_on_the_first_rank_alone(results: dict[str, Results], root: Path) -> None:
    first, other = results["first alone"]
    assert "error" not in other
    assert (first["broken"], first["captures"]) == (False, nets.STEPS)
    (message,) = first["said"]
    assert "only 1 of 2 processes are at this capture" in message
    run = History.load(root / "first alone").run
    assert (run.ranks, run.ranks_measured) == (2, 1)


def test_ranks_that_cannot_connect_leave_the_first_alone(
    results: dict[str, Results], root: Path
) -> None:
    first, other = results["no line"]
    assert (first["broken"], first["captures"], other["captures"]) == (False, nets.STEPS, 0)
    (message,) = [*first["said"], *other["said"]]
    assert "no interface. Numbers are of rank 0 alone" in message
    assert History.load(root / "no line").run.ranks_measured == 1


def test_a_connection_that_breaks_ends_the_measuring(results: dict[str, Results]) -> None:
    first, other = results["line breaks"]
    assert (first["broken"], other["broken"], first["captures"]) == (True, True, 2)
    assert "RuntimeError: no interface" in first["said"][0]


def test_a_rank_that_stops_telling_of_its_steps(results: dict[str, Results]) -> None:
    first, other = results["skips"]
    assert (first["broken"], first["captures"]) == (True, 2)
    assert any("1 of 2 processes are at this capture" in line for line in first["said"])
    assert other["said"] == []


@pytest.mark.parametrize("name", ["breaks off", "breaks off, closes"])
def test_a_step_broken_off_on_one_rank_holds_nobody_up(
    results: dict[str, Results], name: str
) -> None:
    first, other = results[name]
    assert (first.get("error"), other.get("error")) == (None, None)
    assert (first["broken"], first["captures"]) == (True, 3)
    assert "broken off on another rank" in first["said"][0] or "no more" in first["said"][0]
    assert max(first["seconds"], other["seconds"]) < 15  # less than any wait of ours


def test_ctrl_c_at_the_end_of_a_step_holds_nobody_up(results: dict[str, Results]) -> None:
    first, other = results["interrupted"]
    assert (first["broken"], other["broken"], first["captures"]) == (True, True, 2)
    assert "at step 2: a step was broken off on another rank" in first["said"][0]
    assert max(first["seconds"], other["seconds"]) < 15


def test_a_rank_that_stays_within_its_step_is_not_waited_for_long(
    results: dict[str, Results],
) -> None:
    first, other = results["dawdles"]
    assert (first["broken"], other["broken"], first["captures"]) == (True, True, 2)
    assert "did not end its step within 0:00:00.3" in first["said"][0]
    assert "another rank takes part no more" in other["said"][0]


def test_uneven_inputs_end_the_measuring(results: dict[str, Results]) -> None:
    first, other = results["unequal"]
    assert (first.get("error"), other.get("error")) == (None, None)
    assert (first["broken"], first["captures"]) == (True, 3)
    assert (first["steps"], other["steps"]) == (5, 3)
    (message,) = first["said"]
    assert "stopped measuring at step 3: another rank takes part no more" in message
    assert max(first["seconds"], other["seconds"]) < 15


def test_independent_trainings_do_not_wait_for_each_other(results: dict[str, Results]) -> None:
    first, other = results["independent"]
    assert (first["broken"], first["captures"], other["captures"]) == (False, 5, 0)
    assert first["reason"] == "the model is not wrapped by DDP or FSDP"
