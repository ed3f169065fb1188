"""A study on disk that is damaged, edited, or another's: told of, and never taken for a number."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skipscope.cli import main
from skipscope.evidence.outcome import Evidence
from skipscope.evidence.store import (
    Planned,
    StoreError,
    cell_folder,
    load,
    load_outcome,
    save_outcome,
    save_plan,
)
from tests.evidence.values import pair_of


@pytest.fixture
def evidence() -> Evidence:
    return pair_of({10: [0.1, 0.0], 50: [2.0, 0.5]}, {10: [0.1, 0.0], 50: [0.1, 0.0]})


@pytest.fixture
def folder(tmp_path: Path, evidence: Evidence) -> Path:
    cells = tuple(outcome.cell for outcome in evidence.outcomes)
    save_plan(tmp_path, Planned(replace(evidence, outcomes=()), cells, {"steps": "330"}))
    for outcome in evidence.outcomes:
        save_outcome(tmp_path, outcome)
    return tmp_path


def edit(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command line says, in one line and with exit code 2."""
    assert main(["study", "--report", str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_the_command_line_lays_it_out_as_asked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*asked: str) -> str:
        assert main(["study", "--report", str(folder), *asked]) == 0
        return capsys.readouterr().out.partition("written to")[0]

    for width in (70, 80, 130):
        lines = shown("--width", str(width), "--ascii").splitlines()
        assert width - 10 < max(map(len, lines)) <= width
    assert shown("--ascii").isascii()
    assert "\x1b[" not in shown()
    assert "\x1b[" in shown("--color", "always")
    assert max(map(len, (folder / "verdict.txt").read_text(encoding="utf-8").splitlines())) <= 80


def test_what_was_written_reads_back(folder: Path, evidence: Evidence) -> None:
    assert load(folder) == evidence


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c.update(train_loss="many"), "train_loss: 'many' is no number"),
        (lambda c: c.update(train_loss=True), "train_loss: True is no number"),
        (lambda c: c.update(train_loss=None), "train_loss: "),
        (lambda c: c.pop("train_loss"), "train_loss"),
        (lambda c: c.update(steps=True), "steps: True is no int"),
        (lambda c: c.update(finite=1), "finite: 1 is no bool"),
        (lambda c: c.update(cell=[1]), r"cell: \[1\] is no Cell"),
        (lambda c: c.update(readings={}), "readings: {} is no list"),
        (lambda c: c.update(format="1"), "is not of a study"),
        (lambda c: c.update(format=2), "has format 2, this skipscope reads up to 1: upgrade"),
        (lambda c: c["cell"].update(seed=7), "is the outcome of p-d010-s7-"),
    ],
)
def test_an_outcome_that_is_damaged_names_its_file(
    folder: Path, evidence: Evidence, change: Callable[[Any], object], told: str
) -> None:
    cell = evidence.outcomes[0].cell
    path = cell_folder(folder, cell) / "outcome.json"
    edit(path, change)
    with pytest.raises(StoreError, match=told) as refusal:
        load_outcome(folder, cell)
    assert str(refusal.value).startswith(f"{path}: ")
    assert "remove the file, and the same study" in str(refusal.value) or "upgrade" in told


@pytest.mark.parametrize("share", [0.0, 0.4, 0.98])
def test_an_outcome_that_is_cut_off(
    folder: Path, evidence: Evidence, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cell_folder(folder, evidence.outcomes[0].cell) / "outcome.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert f"{path}: damaged" in refused(folder, capsys)


def test_an_outcome_copied_from_another_cell(
    folder: Path, evidence: Evidence, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (cell_folder(folder, o.cell) / "outcome.json" for o in evidence.outcomes[:2])
    second.write_bytes(first.read_bytes())
    assert f"{second}: is the outcome of {evidence.outcomes[0].cell.key}" in refused(folder, capsys)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c["cells"].append(c["cells"][0]), "two outcomes of the cell p-d010"),
        (lambda c: c["evidence"]["arms"].append(c["evidence"]["arms"][0]), "two arms p"),
        (lambda c: c["evidence"]["arms"].pop(0), "outcomes of p, which is no arm"),
        (lambda c: c["evidence"].update(lr="NaN"), "nan is no learning rate"),
        (lambda c: c["evidence"].update(protocol=[]), r"protocol: \[\] is no object"),
        (lambda c: c["evidence"]["arms"][0].update(role="plane"), "role: 'plane' is none of plain"),
        (lambda c: c.update(evidence=None), "evidence: None is no Evidence"),
        (lambda c: c.update(cells=3), "cells: 3 is no list"),
    ],
)
def test_a_study_that_is_damaged(
    folder: Path, change: Callable[[Any], object], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "study.json", change)
    with pytest.raises(StoreError, match=told):
        load(folder)
    assert f"{folder / 'study.json'}: damaged" in refused(folder, capsys)


def test_nested_too_deep_to_be_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "study.json").write_text("[" * 200_000, encoding="utf-8")
    assert f"{folder / 'study.json'}: damaged" in refused(folder, capsys)


def test_a_study_as_far_as_it_got(folder: Path, evidence: Evidence) -> None:
    (cell_folder(folder, evidence.outcomes[0].cell) / "outcome.json").unlink()
    assert load(folder).protocol["unfinished"] == f"1 of {len(evidence.outcomes)} trainings"


def test_a_full_disk_names_the_file(
    tmp_path: Path, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    path = cell_folder(tmp_path, evidence.outcomes[0].cell) / "outcome.json"
    with pytest.raises(OSError, match="No space left") as refusal:
        save_outcome(tmp_path, evidence.outcomes[0])
    assert refusal.value.filename == str(path)
    assert list(path.parent.iterdir()) == []
