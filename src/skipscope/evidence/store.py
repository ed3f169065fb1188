"""A study on disk: what it compares in one file, and one folder for each of its cells.

STUDY/study.json is written first and says which cells there are to be; STUDY/cells/KEY holds a
cell's history and, written last, its outcome.json. So a cell with an outcome is finished, and a
study that was stopped is read as far as it got. The JSON is strict: numbers that are not finite
stand as strings ("inf", "nan"), what has no value as null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from skipscope.evidence.outcome import Cell, Evidence, Outcome

FORMAT = 1  #: version of the layout that this release writes, and the newest one it reads
STUDY, CELLS, OUTCOME = "study.json", "cells", "outcome.json"

Record = TypeVar("Record")


class StudyError(ValueError):
    """A study cannot be run or read as it was asked for, with the reason."""


class StoreError(StudyError):
    """A folder holds no study, or one that cannot be read."""


@dataclass(frozen=True)
class Planned:
    """What a study's own file says: all but the outcomes."""

    evidence: Evidence  #: without outcomes
    cells: tuple[Cell, ...]  #: those that there are to be
    configuration: dict[str, str]  #: what a cell's result depends on; equal when it is taken up


def cell_folder(folder: Path, cell: Cell) -> Path:
    """Where a cell's files lie."""
    return folder / CELLS / cell.key


# ------------------------------------------------------------------------ writing
def save_plan(folder: Path, planned: Planned) -> None:
    """Writes the study's own file.

    Raises:
        OSError: the disk refuses.
    """
    _write(folder / STUDY, {"format": FORMAT, **to_json(planned)})


def save_outcome(folder: Path, outcome: Outcome) -> None:
    """Writes a cell's outcome, whole or not at all.

    Raises:
        OSError: the disk refuses.
    """
    _write(cell_folder(folder, outcome.cell) / OUTCOME, {"format": FORMAT, **to_json(outcome)})


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# ------------------------------------------------------------------------ reading
def load_plan(folder: Path) -> Planned:
    """The study's own file.

    Raises:
        StoreError: there is none, or it cannot be understood.
    """
    return _read(folder / STUDY, Planned)


def load_outcome(folder: Path, cell: Cell) -> Outcome | None:
    """A cell's outcome; None where it is not finished.

    Raises:
        StoreError: the file cannot be understood.
    """
    path = cell_folder(folder, cell) / OUTCOME
    return _read(path, Outcome) if path.exists() else None


def load(folder: Path) -> Evidence:
    """A study as far as it got; what is missing is said in `protocol["unfinished"]`.

    Raises:
        StoreError: there is no study, none of its cells is finished, or a file is damaged.
    """
    planned = load_plan(folder)
    found = [load_outcome(folder, cell) for cell in planned.cells]
    outcomes = tuple(outcome for outcome in found if outcome is not None)
    if not outcomes:
        raise StoreError(f"{folder}: none of the study's {len(found)} trainings is finished yet")
    evidence = replace(planned.evidence, outcomes=outcomes)
    if len(outcomes) < len(found):
        rest = f"{len(found) - len(outcomes)} of {len(found)} trainings"
        evidence = replace(evidence, protocol={**evidence.protocol, "unfinished": rest})
    return evidence


def _read(path: Path, kind: type[Record]) -> Record:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{path.parent}: holds no {path.name}, so it is no study") from None
    except ValueError as error:
        raise StoreError(f"{path}: damaged: {error}") from error
    version = content.get("format") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise StoreError(f"{path}: is not of a study")
    if version > FORMAT:
        raise StoreError(
            f"{path}: has format {version}, this skipscope reads up to {FORMAT}: upgrade it"
        )
    try:
        return from_json(kind, content)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: damaged: {error}") from error


# ------------------------------------------------------------------------ records and JSON
def to_json(value: Any) -> Any:
    """A record as plain JSON values.

    >>> to_json(Cell("plain", 50, 0, float("inf")))
    {'arm': 'plain', 'depth': 50, 'seed': 0, 'lr': 'inf'}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_json(kind: type[Record], content: Mapping[str, Any]) -> Record:
    """A record from JSON values; names that it does not have are passed over.

    Raises:
        KeyError, TypeError, ValueError: a value is missing, or of another type.

    >>> from_json(Cell, {"arm": "plain", "depth": 50, "seed": 0, "lr": "inf"}).lr
    inf
    """
    values = {
        name: _value(wanted, content[name])
        for name, wanted in get_type_hints(kind).items()
        if name in content
    }
    return kind(**values)


def _value(wanted: Any, value: Any) -> Any:
    inner = get_args(wanted)
    if get_origin(wanted) in (Union, UnionType):
        return None if value is None else _value(inner[0], value)
    if get_origin(wanted) is tuple:
        return _tuple(inner, value)
    if get_origin(wanted) is dict:
        return {key: _value(inner[1], one) for key, one in value.items()}
    if is_dataclass(wanted):
        return from_json(wanted, value)  # type: ignore[arg-type]
    if wanted is float:
        return float(value)
    if isinstance(wanted, type) and not isinstance(value, wanted):
        raise TypeError(f"{value!r} is no {wanted.__name__}")
    return value


def _tuple(inner: Sequence[Any], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    if len(inner) == 2 and inner[1] is Ellipsis:
        return tuple(_value(inner[0], one) for one in value)
    return tuple(_value(one, item) for one, item in zip(inner, value, strict=True))
