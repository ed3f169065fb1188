"""The history file: written block by block while a network trains, read back at any time.

Every append is one block (see `history.format`) and one write, straight to the system.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from skipscope.history.appending import Appending
from skipscope.history.format import (
    block,
    blocks,
    count_blocks,
    decode,
    header,
    plain_value,
    read_header,
)
from skipscope.records import FACTS, PARAMETER_SUMS, SUMS, Group, Parameter, Run, SiteMap

_SHAPE = struct.Struct("<qII")  # step, rows, columns
_RUN, _SITES, _PARAMETERS, _RESUME, _NAMES = b"RUN ", b"SITE", b"PARA", b"RESU", b"NAME"
_CAPTURE, _UPDATES, _FACTS = b"CAPT", b"UPDA", b"FACT"
_log = logging.getLogger("skipscope.history")

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint8]


class Sink(Protocol):
    """What takes in a run as it happens: a History in memory, a HistoryWriter on disk."""

    def set_run(self, run: Run) -> None:
        """Take the facts about the run."""

    def set_sites(self, sites: SiteMap) -> None:
        """Take the site map, whole, whenever it changed."""

    def set_parameters(self, parameters: Sequence[Parameter], groups: Sequence[Group] = ()) -> None:
        """Take the parameter table and the optimizer groups."""

    def append_capture(
        self, step: int, sums: npt.ArrayLike, have: npt.ArrayLike, why: npt.ArrayLike
    ) -> None:
        """Take one capture."""

    def append_updates(self, step: int, sums: npt.ArrayLike, have: npt.ArrayLike) -> None:
        """Take the parameter sums of one step."""

    def append_facts(self, rows: npt.ArrayLike) -> None:
        """Take step facts."""

    def resume(self, step: int) -> None:
        """Drop what is held of `step` and later ones."""


class HistoryWriter:
    """Appends one run to `history-<run_id>.skip`: one block, one write, straight to the system.

    Args:
        directory: where the file lies; created where absent.
        run_id: part of the file's name, from `[A-Za-z0-9_.-]`; runs of one directory never mix.
        resume: go on with that run's file, where there is one, from this step on; what it holds of
            this step and later ones is superseded. None starts a new file.

    Raises:
        ValueError: `run_id` cannot be part of a file name.
        FileExistsError: a new run has the id of an old one.
        HistoryError: the file to go on with is none, is damaged or comes from a newer release.
        HistoryInUseError: from any method, when another process writes to the file.
        OSError: from any method, when the disk refuses. The torn block is cut off before the next
            one is written, so that the writer can go on once there is room again.
    """

    def __init__(
        self, directory: str | os.PathLike[str], run_id: str, *, resume: int | None = None
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", run_id):
            raise ValueError(f"run id {run_id!r} has characters other than A-Z a-z 0-9 _ . -")
        self.path = Path(directory) / f"history-{run_id}.skip"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            if resume is None:
                self.path.open("xb").close()
                undo.callback(self._remove)
            self._file = Appending(self.path)
            undo.callback(self._file.close)
            self._begin(run_id, resume)
            undo.pop_all()

    def _remove(self) -> None:
        """An empty file would be taken for the newest run of its directory."""
        with suppress(OSError):
            self.path.unlink()

    def _begin(self, run_id: str, resume: int | None) -> None:
        if read_header(self._file.from_start(), self.path) is None:  # new, or cut in its header
            self._file.clear()
            self._write(header(run_id))
        names = {"sums": SUMS, "parameter_sums": PARAMETER_SUMS, "facts": FACTS}
        self._write_json(_NAMES, {key: [f.name for f in fields] for key, fields in names.items()})
        if resume is not None:
            self.resume(resume)

    def set_run(self, run: Run) -> None:
        """Record the facts about the run; the last ones count."""
        self._write_json(_RUN, dataclasses.asdict(run))

    def set_sites(self, sites: SiteMap) -> None:
        """Record the site map; the last one counts."""
        self._write_json(_SITES, dataclasses.asdict(sites))

    def set_parameters(self, parameters: Sequence[Parameter], groups: Sequence[Group] = ()) -> None:
        """Record the parameter table and the optimizer groups; the last ones count."""
        plain = {
            "parameters": [dataclasses.asdict(parameter) for parameter in parameters],
            "groups": [dataclasses.asdict(group) for group in groups],
        }
        self._write_json(_PARAMETERS, plain)

    def append_capture(
        self, step: int, sums: npt.ArrayLike, have: npt.ArrayLike, why: npt.ArrayLike
    ) -> None:
        """Append one capture; shapes as in `History.append_capture`."""
        self._write_numbers(_CAPTURE, step, sums, have, why)

    def append_updates(self, step: int, sums: npt.ArrayLike, have: npt.ArrayLike) -> None:
        """Append the parameter sums of one step; shapes as in `History.append_updates`."""
        self._write_numbers(_UPDATES, step, sums, have)

    def append_facts(self, rows: npt.ArrayLike) -> None:
        """Append step facts; shape as in `History.append_facts`."""
        self._write_numbers(_FACTS, 0, np.atleast_2d(np.asarray(rows)))

    def resume(self, step: int) -> None:
        """Supersede everything written so far for `step` and later ones."""
        self._write_json(_RESUME, {"step": step})

    def close(self) -> None:
        """Close the file; every block is already with the system."""
        self._file.close()

    def _write_json(self, kind: bytes, plain: Mapping[str, Any]) -> None:
        self._write(block(kind, json.dumps(plain, default=plain_value).encode()))

    def _write_numbers(
        self, kind: bytes, step: int, sums: npt.ArrayLike, *bits: npt.ArrayLike
    ) -> None:
        numbers = np.ascontiguousarray(sums, dtype="<f8")
        parts = [_SHAPE.pack(step, *numbers.shape), numbers.tobytes()]
        parts += [np.ascontiguousarray(mask, dtype=np.uint8).tobytes() for mask in bits]
        self._write(block(kind, b"".join(parts)))

    def _write(self, data: bytes) -> None:
        self._file.append(data)


def replay(path: Path, sink: Sink) -> None:
    """Tell `sink` everything that the file holds, in the order in which it was written.

    Raises:
        HistoryError: it is no history, or from a newer release.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if read_header(file, path) is None:
            return
        tell = _Teller(sink)
        for position, kind, payload in blocks(file):
            if problem := tell(kind, payload):
                _log.warning("%s: block at byte %d left out: %s", path, position, problem)


def count_captures(path: Path) -> int:
    """How many captures a history file holds, or fewer where it is damaged.

    Raises:
        HistoryError: it is no history, or from a newer release.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return 0 if read_header(file, path) is None else count_blocks(file, _CAPTURE)


class _Teller:
    """Decodes blocks into calls of a sink; columns are matched by name across releases."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._columns: dict[str, list[int] | None] = {}
        self._kinds: dict[bytes, Callable[[bytes], None]] = {
            _RUN: lambda data: sink.set_run(decode(Run, json.loads(data))),
            _SITES: lambda data: sink.set_sites(decode(SiteMap, json.loads(data))),
            _RESUME: lambda data: sink.resume(int(json.loads(data)["step"])),
            _NAMES: self._names,
            _PARAMETERS: self._parameters,
            _CAPTURE: self._capture,
            _UPDATES: self._updates,
            _FACTS: self._facts,
        }

    def __call__(self, kind: bytes, payload: bytes) -> str:
        """Tell the sink; what was wrong, if anything."""
        if kind not in self._kinds:  # a later release of the same format version may add kinds
            return ""
        try:
            self._kinds[kind](payload)
        except (ValueError, KeyError, TypeError, struct.error) as error:
            # intact, but it does not fit what was read before: an earlier block was damaged
            return str(error) or repr(error)
        return ""

    def _names(self, data: bytes) -> None:
        ours = {"sums": SUMS, "parameter_sums": PARAMETER_SUMS, "facts": FACTS}
        for key, names in json.loads(data).items():
            mine = [field.name for field in ours.get(key, ())]
            at = [names.index(name) if name in names else len(names) for name in mine]
            self._columns[key] = None if names == mine else [len(names), *at]

    def _parameters(self, data: bytes) -> None:
        plain = json.loads(data)
        self._sink.set_parameters(
            decode(tuple[Parameter, ...], plain["parameters"]),
            decode(tuple[Group, ...], plain["groups"]),
        )

    def _capture(self, data: bytes) -> None:
        step, sums, rest = self._numbers(data, "sums")
        have, why = rest.reshape(2, -1)
        self._sink.append_capture(step, sums, have, why)

    def _updates(self, data: bytes) -> None:
        step, sums, have = self._numbers(data, "parameter_sums")
        self._sink.append_updates(step, sums, have)

    def _facts(self, data: bytes) -> None:
        self._sink.append_facts(self._numbers(data, "facts")[1])

    def _numbers(self, data: bytes, key: str) -> tuple[int, Floats, Bits]:
        step, rows, columns = _SHAPE.unpack_from(data)
        numbers: Floats = np.frombuffer(data, "<f8", rows * columns, _SHAPE.size)
        bits: Bits = np.frombuffer(data, np.uint8, offset=_SHAPE.size + numbers.nbytes)
        numbers = numbers.reshape(rows, columns)
        if (layout := self._columns.get(key)) is not None:
            known, *at = layout
            spare = np.full((rows, 1), np.nan)
            shared = np.concatenate([numbers[:, :known], spare], axis=1)[:, at]
            numbers = np.concatenate([shared, numbers[:, known:]], axis=1)
        return step, numbers, bits
