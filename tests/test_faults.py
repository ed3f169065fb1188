"""The fault bench runs, and counts as it should."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.faults.__main__ import jobs, main
from benchmarks.faults.draw import characters, draw, found, picture, row_of, thinned
from benchmarks.faults.drawings import DRAWINGS, Drawing
from benchmarks.faults.faults import FAULTS
from benchmarks.faults.run import HEALTHY, run, touches
from benchmarks.faults.tabulate import table, wilson
from skipscope.rule import docs as rule_docs
from skipscope.rules import RULES


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


# ------------------------------------------------------------------------------ drawings


def test_characters_by_hand() -> None:
    """Eight heights: linear 0 to 7 is one each; logarithmic a decade is one each."""
    assert characters([0, 1, 2, 3, 4, 5, 6, 7], (0, 7), log=False) == "▁▂▃▄▅▆▇█"
    assert characters([-1, 0, 1], (-1, 1), log=False) == "▁▅█"  # 3.5 is rounded to the even 4
    assert characters([1e-5, 1e-3, 100], (1e-5, 100), log=True) == "▁▃█"
    assert characters([0, 1e-9, 1e9], (1e-5, 100), log=True) == "▁▁█"
    assert characters([math.nan, 1, math.inf], (1, 1), log=True) == "·▁·"


def test_long_rows_are_thinned() -> None:
    assert thinned(np.array([3.0, 1.0]), "max").tolist() == [3.0, 1.0]
    row = thinned(np.array([1.0, 5.0, np.nan] * 33), "max")  # 99 values: 3 a character
    assert row.tolist() == [5.0] * 33
    assert thinned(np.array([1.0, 5.0, 3.0] * 33), "median").tolist() == [3.0] * 33
    assert np.isnan(thinned(np.full(80, np.nan), "mean")).all()


def test_a_picture_names_scale_and_numbers() -> None:
    drawing = Drawing("branch_ratio", "r", "", stage="s", stage_label="B")
    rows = {"sick": np.array([1.0, 100.0, 10.0]), "healthy": np.array([1.0, 1.0, np.nan])}
    assert picture(drawing, "above 50", rows, {"sick": 7.0, "healthy": 0.5}).splitlines() == [
        "         r      first  largest     last        B",
        "sick     ▁█▅     1.00      100     10.0     7.00",
        "healthy  ▁▁·     1.00     1.00      NaN    0.500",
        "scale    1.00 to 100, logarithmic",
        "found    above 50",
    ]


@pytest.mark.parametrize("code", DRAWINGS)
def test_an_example_is_a_drawing_of_its_rule(code: str) -> None:
    """What it says is found follows the rule's thresholds, and its head the drawing's measure."""
    said, _, block = rule_docs.sections(RULES[code].doc)["Example"].partition("\n\n")
    head, *rows = [line[4:] for line in block.splitlines()]
    assert head.strip().startswith(f"{DRAWINGS[code].label} ")
    assert [row.split()[0] for row in rows] == ["sick", "healthy", "scale", "found"]
    assert rows[-1] == f"found    {found(code)}"
    assert f"`python -m benchmarks.faults.draw {code} --seed" in said
    assert DRAWINGS[code].fault in ["", *(fault.name for fault in FAULTS.get(code, ()))]


def test_a_broken_capture_is_the_first_one() -> None:
    numbers = np.array([[1.0, 2.0], [1.0, np.inf], [np.nan, np.nan]])
    assert [row_of(numbers, which) for which in ("first", "broken", "last")] == [0, 1, 2]
    with pytest.raises(ValueError, match="every number is finite"):
        row_of(numbers[:1], "broken")


def test_a_drawing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """ReZero at step 0: every branch is 0, with its gate in a group or not."""
    drawing = DRAWINGS["RES103"]
    short = replace(drawing, plan={**drawing.plan, "sites": 4, "steps": 2})
    monkeypatch.setitem(DRAWINGS, "RES103", short)
    lines = draw("RES103", 1).splitlines()
    assert lines[1].split() == ["sick", "▁▁", "0", "0", "0"]
    assert lines[2].split()[1:3] == ["▁█", "0"]
    assert float(lines[2].split()[-1]) > 0
