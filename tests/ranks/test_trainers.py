"""Trainers with two processes: one record of both, and no wait that the Trainer would not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.ranks import nets
from tests.ranks.launch import Results

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("trainers:fit", {}),
    "fails": ("trainers:fit", {"culprit": 1, "epochs": 2}),
}


def test_reports_are_written_once(results: dict[str, Results], root: Path) -> None:
    assert len(list((root / "ddp").rglob("history-*"))) == 1
    first, other = results["ddp"]
    # one report an epoch, of "ddp": none from "fails", whose first capture failed
    assert first["output"].count("(medians and channel means of rank 0)") == 1
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
