"""A study on disk: what is written is what is read, strictly JSON, and damage is told."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from skipscope.evidence.outcome import ArmFacts, Cell, Evidence, Outcome, Reading
from skipscope.evidence.store import (
    Planned,
    StoreError,
    load,
    load_outcome,
    save_outcome,
    save_plan,
)

DONE, OPEN = Cell("plain", 50, 0, 0.01), Cell("residual", 50, 0, 0.01)


def outcome(cell: Cell = DONE, loss: float = 1.5) -> Outcome:
    return Outcome(
        cell, 100, 90, 330, "abc", "SGD(momentum=0.9)", loss, 0.5, math.inf, 1.0, True, 2.25,
        steps_to_90=None, readings=(Reading(0, loss=2.3, r_median=None), Reading(1, math.nan)),
        findings=(("RES101", "warning"), ("RES201", "error")), history="cells/x/history.skip",
    )  # fmt: skip


def planned(*cells: Cell) -> Planned:
    arms = (
        ArmFacts("plain", "plain, ohne Kürzel – «F»", "plain", "no norm"),
        ArmFacts("residual", "residual", "residual", "no norm", "shortcut", True, 1),
    )
    evidence = Evidence("digits", "Digits", arms, (), 0.01, {"steps": "330"}, (0.01, 0.1))
    return Planned(evidence, cells, {"steps": "330"})


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    save_plan(tmp_path, planned(DONE))
    save_outcome(tmp_path, outcome())
    found = load(tmp_path)
    assert (found.arms, found.lr, found.rates) == (planned().evidence.arms, 0.01, (0.01, 0.1))
    assert found.protocol == {"steps": "330"}
    (one,) = found.outcomes
    assert math.isnan(one.readings[1].loss)
    assert (one.cell, one.validation_loss, one.findings) == (
        DONE, math.inf, (("RES101", "warning"), ("RES201", "error")),
    )  # fmt: skip
    assert (one.readings[0], one.steps_to_90) == (Reading(0, loss=2.3), None)
    assert isinstance(one.cell.lr, float)


def test_the_files_are_strict_json_and_nothing_else_is_left(tmp_path: Path) -> None:
    save_plan(tmp_path, planned(DONE))
    save_outcome(tmp_path, outcome())
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert files == [Path("cells", DONE.key, "outcome.json"), Path("study.json")]

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = (tmp_path / files[0]).read_text(encoding="utf-8")
    content = json.loads(text, parse_constant=refuse)
    assert content["validation_loss"] == "Infinity"
    assert content["readings"][1]["loss"] == "NaN"
    assert content["steps_to_90"] is None


def test_a_study_is_read_as_far_as_it_got(tmp_path: Path) -> None:
    save_plan(tmp_path, planned(DONE, OPEN))
    with pytest.raises(StoreError, match="none of the study's 2 trainings is finished"):
        load(tmp_path)
    save_outcome(tmp_path, outcome())
    assert load_outcome(tmp_path, OPEN) is None
    found = load(tmp_path)
    assert [one.cell for one in found.outcomes] == [DONE]
    assert found.protocol["unfinished"] == "1 of 2 trainings"


def test_names_of_a_later_release_are_passed_over(tmp_path: Path) -> None:
    save_outcome(tmp_path, outcome())
    path = tmp_path / "cells" / DONE.key / "outcome.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "mood": "good"}), encoding="utf-8")
    assert load_outcome(tmp_path, DONE).train_loss == 1.5


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "damaged"),
        ('{"format": 1, "cell": 3', "damaged"),
        ('{"format": 1}', "damaged"),
        ("[]", "is not of a study"),
        ('{"format": 2}', "reads up to 1: upgrade"),
        ('{"format": 1, "cell": {"arm": 3, "depth": 1, "seed": 0, "lr": 1}}', "3 is no str"),
    ],
)
def test_damage_is_told_with_the_file(tmp_path: Path, text: str, told: str) -> None:
    save_outcome(tmp_path, outcome())
    path = tmp_path / "cells" / DONE.key / "outcome.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match=told) as error:
        load_outcome(tmp_path, DONE)
    assert str(path) in str(error.value)


def test_a_folder_without_a_study(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no study\.json"):
        load(tmp_path)
