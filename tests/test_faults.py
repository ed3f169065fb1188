"""The fault bench runs, and counts as it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import jobs, main
from benchmarks.faults.run import HEALTHY, run, touches
from benchmarks.faults.tabulate import table, wilson


def test_wilson_by_hand() -> None:
    """8 of 10 with z = 2: middle (.8 + .2)/1.4, half 2*sqrt(.016 + .01)/1.4."""
    low, high = wilson(8, 10, z=2.0)
    half = 2 * 0.026**0.5 / 1.4
    assert low == pytest.approx(1 / 1.4 - half)
    assert high == pytest.approx(1 / 1.4 + half)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 40)[0] == 0.0


def test_a_place_is_no_other_with_a_longer_number() -> None:
    assert touches("blocks.1.mlp", "blocks.1")
    assert touches("blocks.1", "blocks.1.mlp")
    assert not touches("blocks.1", "blocks.10")


def test_jobs_need_seeds_enough() -> None:
    assert jobs(["RES304"], range(5, 9), 1, 2) == [("RES304", 5), (HEALTHY, 5), (HEALTHY, 6)]
    with pytest.raises(ValueError, match="too few"):
        jobs([], range(3), 40, 4)


@pytest.mark.parametrize("code", ["RES304", "RES502"])
def test_a_planted_fault_is_found(code: str) -> None:
    row = run(code, 1, steps=6)
    assert row["found"], row["roots"]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_healthy_net_is_left_alone(seed: int) -> None:
    assert run(HEALTHY, seed, steps=6)["alarms"] == []


def test_the_same_seed_makes_the_same_run() -> None:
    first, second = (run("RES502", 3, steps=4) for _ in range(2))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_results_in_a_file_are_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.jsonl"
    rows = [
        {
            "task": task,
            "seed": 7,
            "fault": "planted",
            "found": True,
            "alarms": [],
            "roots": [],
            "plan": {"preset": "debug"},
            "losses": [2.0, 1.0],
        }
        for task in ("RES304", HEALTHY)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = ["--rules", "RES304", "--per-rule", "1", "--healthy", "1", "--resume", str(file)]
    main(["--seeds", "7:8", *wanted])
    assert "| RES304 | 1 of 1 | 1.000 |" in capsys.readouterr().out


def test_errors_are_told_and_not_counted() -> None:
    text = table([{"task": "RES304", "seed": 1, "error": "ValueError()"}])
    assert "ERROR in RES304 1: ValueError()" in text
    assert "| RES304 |" not in text
