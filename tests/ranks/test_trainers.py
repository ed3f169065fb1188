"""Trainers with two processes: one record of both, and no wait that the Trainer would not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skipscope import History
from tests.modes.mode import Mode
from tests.ranks import nets
from tests.ranks.launch import Results, launch
from tests.ranks.table import calls_of, rows_of
from tests.ranks.test_plain_loops import PARAMETER_TABLES, SITE_TABLES, agree, one_process

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("trainers:fit", {}),
    "ddp unwatched": ("trainers:fit", {"watch": False}),
    "fails": ("trainers:fit", {"culprit": 1, "epochs": 2}),
    "shards": ("trainers:fit", {"strategy": "shards"}),
    "shards unwatched": ("trainers:fit", {"strategy": "shards", "watch": False}),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainers")


@pytest.fixture(scope="module")
def results(root: Path) -> dict[str, Results]:
    return launch(root, CALLS)


@pytest.mark.parametrize(("mode", "check"), rows_of("trainers"))
def test_mode(results: dict[str, Results], root: Path, mode: Mode, check: str) -> None:
    watched, plain = calls_of(mode)
    first, other = results[watched]
    assert (first.get("error"), other.get("error")) == (None, None)
    assert (first["broken"], other["broken"]) == (False, False)
    if check == "bits":
        assert [r["weights"] for r in results[watched]] == [r["weights"] for r in results[plain]]
        return
    ours, whole = History.load(root / watched / "skipscope"), one_process()
    assert [site.module for site in ours.sites.sites] == [
        f"net.{site.module}".rstrip(".") for site in whole.sites.sites
    ]
    for table in (*SITE_TABLES, *PARAMETER_TABLES, "loss"):
        agree(ours, whole, table, prefix="net.")
    assert (ours.run.ranks, ours.run.ranks_measured) == (2, 2)


def test_reports_are_written_once(results: dict[str, Results], root: Path) -> None:
    assert len(list((root / "ddp").rglob("history-*"))) == 1
    first, other = results["ddp"]
    # one report an epoch: "ddp", "shards", and none from "fails", whose first capture failed
    assert first["output"].count("(medians and channel means of rank 0)") == 2
    assert "watched " not in other["output"]


def test_checkpoints_see_the_same_on_every_rank(results: dict[str, Results]) -> None:
    first, other = results["ddp"]
    assert first["metrics"]["skipscope/r_max"] > 0
    assert first["metrics"] == other["metrics"]


def test_an_error_on_one_rank_ends_all_with_one_message(results: dict[str, Results]) -> None:
    first, other = results["fails"]
    assert (first.get("error"), other.get("error")) == (None, None)
    assert (first["broken"], other["broken"]) == (True, True)
    assert (first["step"], other["step"]) == (2 * nets.STEPS, 2 * nets.STEPS)
    (message,) = [*first["said"], *other["said"]]
    assert "all 2 processes after an error of its own on rank 1" in message
    assert "ValueError: injected" in message
