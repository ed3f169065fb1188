"""A study on disk: what it compares in one file, and one folder for each of its cells.

STUDY/study.json is written first and says which cells there are to be; STUDY/cells/KEY holds a
cell's history and, written last, its outcome.json. So a cell with an outcome is finished, and a
study that was stopped is read as far as it got. The JSON is strict: numbers that are not finite
stand as strings ("Infinity", "NaN"), what has no value as null.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from skipscope.evidence.outcome import Cell, Evidence, Outcome
from skipscope.evidence.runs import check_form
from skipscope.names import counted
from skipscope.reports.strict import dumps

FORMAT = 1  #: version of the layout that this release writes, and the newest one it reads
STUDY, CELLS, OUTCOME = "study.json", "cells", "outcome.json"

#: What to do about a file that cannot be used.
AGAIN = "remove the file, and the same study trains this cell again"
ELSEWHERE = "give another folder, or one with a copy of the file"

NOT_FINITE = ("Infinity", "-Infinity", "NaN")

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
    _write(folder / STUDY, {"format": FORMAT, **asdict(planned)})


def save_outcome(folder: Path, outcome: Outcome) -> None:
    """Writes a cell's outcome, whole or not at all.

    Raises:
        OSError: the disk refuses.
    """
    _write(cell_folder(folder, outcome.cell) / OUTCOME, {"format": FORMAT, **asdict(outcome)})


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(dumps(content), encoding="utf-8")
        part.replace(path)
    except OSError as error:  # a full disk does not say of itself which file it is about
        raise OSError(error.errno, error.strerror, str(path)) from error
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
        StoreError: the file cannot be understood, or is that of another cell.
    """
    path = cell_folder(folder, cell) / OUTCOME
    if not path.exists():
        return None
    outcome = _read(path, Outcome)
    if outcome.cell != cell:
        raise StoreError(f"{path}: is the outcome of {outcome.cell.key}; {AGAIN}")
    return outcome


def load(folder: Path) -> Evidence:
    """A study as far as it got; what is missing is said in `protocol["unfinished"]`.

    Raises:
        StoreError: there is no study, none of its cells is finished, or a file is damaged.
    """
    planned = load_plan(folder)
    try:
        check_form(replace(planned.evidence, outcomes=()), planned.cells)
    except ValueError as error:
        raise StoreError(f"{folder / STUDY}: damaged: {error}; {ELSEWHERE}") from error
    found = [load_outcome(folder, cell) for cell in planned.cells]
    outcomes = tuple(outcome for outcome in found if outcome is not None)
    if not outcomes:
        every = counted(len(found), "training")
        raise StoreError(f"{folder}: none of the study's {every} is finished yet")
    evidence = replace(planned.evidence, outcomes=outcomes)
    if len(outcomes) < len(found):
        rest = f"{len(found) - len(outcomes)} of {len(found)} trainings"
        evidence = replace(evidence, protocol={**evidence.protocol, "unfinished": rest})
    return evidence


def _read(path: Path, kind: type[Record]) -> Record:
    remedy = ELSEWHERE if path.name == STUDY else AGAIN
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"{path.parent}: holds no {path.name}, so it is no study; give the folder that one was "
            "written to"
        ) from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: damaged: {error}; {remedy}") from error
    version = content.get("format") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise StoreError(f"{path}: is not of a study; {remedy}")
    if version > FORMAT:
        raise StoreError(
            f"{path}: has format {version}, this skipscope reads up to {FORMAT}: upgrade it"
        )
    try:
        return from_json(kind, content)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path}: damaged: {error}; {remedy}") from error


# ------------------------------------------------------------------------ records and JSON
def from_json(kind: type[Record], content: Any) -> Record:
    """A record from JSON values; names that it does not have are passed over.

    Raises:
        TypeError, ValueError: a value is missing, or of another type.

    >>> from_json(Cell, {"arm": "plain", "depth": 50, "seed": 0, "lr": "Infinity"}).lr
    inf
    """
    if not isinstance(content, dict):
        raise TypeError(f"{content!r} is no {kind.__name__}")
    values = {}
    for name, wanted in get_type_hints(kind).items():
        if name in content:
            try:
                values[name] = _value(wanted, content[name])
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from error
    return kind(**values)


def _value(wanted: Any, value: Any) -> Any:
    inner, origin = get_args(wanted), get_origin(wanted)
    if origin in (Union, UnionType):
        kinds = [kind for kind in inner if kind is not NoneType]
        own = type(value) if type(value) in kinds else kinds[-1]
        return None if value is None else _value(own, value)
    if origin is tuple:
        return _tuple(inner, value)
    if origin is dict:
        if not isinstance(value, dict):
            raise TypeError(f"{value!r} is no object")
        return {key: _value(inner[1], one) for key, one in value.items()}
    if origin is Literal:
        if value not in inner:
            raise ValueError(f"{value!r} is none of {', '.join(inner)}")
        return value
    if is_dataclass(wanted):
        return from_json(wanted, value)  # type: ignore[arg-type]
    if wanted is float:
        return _float(value)
    if not isinstance(value, wanted) or isinstance(value, bool) is not (wanted is bool):
        raise TypeError(f"{value!r} is no {wanted.__name__}")
    return value


def _float(value: Any) -> float:
    """A number, or the word for one that is not finite."""
    if isinstance(value, bool) or (isinstance(value, str) and value not in NOT_FINITE):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _tuple(inner: Sequence[Any], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    if len(inner) == 2 and inner[1] is Ellipsis:
        return tuple(_value(inner[0], one) for one in value)
    return tuple(_value(one, item) for one, item in zip(inner, value, strict=True))
