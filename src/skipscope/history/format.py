"""The history file's layout: a header, then self-delimiting blocks that survive a crash.

The header is a magic line and a line of JSON (format version, run id). A block is a mark, a kind,
the payload's length, a checksum and the payload: JSON for what is known of the run (Python's
dialect, in which `NaN` and `Infinity` are numbers), raw little-endian float64 and uint8 for
numbers. A block that was cut or damaged costs that block only: the reader looks for the next mark.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

from skipscope.history.places import WANTED

#: Version of the layout that this release writes, and the newest one it reads.
FORMAT = 1
MAGIC = b"skipscope history\n"
_MARK = b"\xf5SkB"  # 0xf5 never occurs in UTF-8 text
_HEAD = struct.Struct("<4s4sII")  # mark, kind, length, checksum


class HistoryError(ValueError):
    """The file is not a history, or cannot be understood."""


class HistoryVersionError(HistoryError):
    """The file was written by a newer release than this one."""


class HistoryInUseError(HistoryError):
    """Another process writes to the file."""


def read_header(file: BinaryIO, path: Path) -> Mapping[str, Any] | None:
    """The header of a history file, or None where it was cut before the header ended.

    Raises:
        HistoryError: it is no history.
        HistoryVersionError: it comes from a newer release.
    """
    magic, line = file.read(len(MAGIC)), file.readline(65536)
    if not MAGIC.startswith(magic):
        raise HistoryError(f"{path} is not a skipscope history; {WANTED}")
    if not line.endswith(b"\n"):
        return None
    try:
        header = json.loads(line)
        version = int(header["format"])
    except (ValueError, KeyError, TypeError):
        raise HistoryError(f"{path} has a damaged header: {line[:80]!r}") from None
    if version > FORMAT:
        raise HistoryVersionError(
            f"{path} has history format {version}, this skipscope reads up to {FORMAT}: "
            "upgrade skipscope to read it"
        )
    return dict(header)


def header(run_id: str) -> bytes:
    """What a history file begins with."""
    return MAGIC + json.dumps({"format": FORMAT, "run_id": run_id}).encode() + b"\n"


def block(kind: bytes, payload: bytes) -> bytes:
    """One block; `kind` is four bytes."""
    return _HEAD.pack(_MARK, kind, len(payload), _checksum(kind, payload)) + payload


def blocks(file: BinaryIO) -> Iterator[tuple[int, bytes, bytes]]:
    """Position, kind and payload of every intact block from the file's position on."""
    position: int | None = file.tell()
    size = os.fstat(file.fileno()).st_size  # a damaged length may be huge: nothing to allocate
    while position is not None:
        file.seek(position)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return
        mark, kind, length, checksum = _HEAD.unpack(head)
        whole = mark == _MARK and position + _HEAD.size + length <= size
        payload = file.read(length) if whole else b""
        if whole and len(payload) == length and _checksum(kind, payload) == checksum:
            yield position, kind, payload
            position += _HEAD.size + length
        else:
            position = _next_mark(file, position + 1)


def count_blocks(file: BinaryIO, wanted: bytes) -> int:
    """How many blocks of a kind follow from the position on, up to the first damaged head."""
    count = 0
    while len(head := file.read(_HEAD.size)) == _HEAD.size:
        mark, kind, length, _ = _HEAD.unpack(head)
        if mark != _MARK:
            break
        count += kind == wanted
        file.seek(length, os.SEEK_CUR)
    return count


def _next_mark(file: BinaryIO, start: int) -> int | None:
    file.seek(start)
    window = b""
    while chunk := file.read(1 << 20):
        window += chunk
        if (found := window.find(_MARK)) >= 0:
            return start + found
        start += max(len(window) - len(_MARK) + 1, 0)
        window = window[max(len(window) - len(_MARK) + 1, 0) :]
    return None


def _checksum(kind: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(kind + struct.pack("<I", len(payload))))


def plain_value(value: Any) -> Any:
    """A numpy scalar as a Python one; anything else by its text."""
    return value.item() if hasattr(value, "item") else str(value)


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def decode(kind: Any, plain: Any) -> Any:
    """A record from its plain form: the inverse of `dataclasses.asdict` followed by JSON.

    Keys that the record does not know are left out: a later release may have added them.

    >>> from skipscope.records import Group
    >>> decode(Group, {"index": 0, "optimizer": "SGD", "options": {"lr": 0.1}, "later": 1})
    Group(index=0, optimizer='SGD', options={'lr': 0.1})
    """
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{key: decode(hints[key], plain[key]) for key in plain if key in hints})
    if get_origin(kind) is tuple:
        args = get_args(kind)
        kinds = [args[0]] * len(plain) if args[-1] is Ellipsis else args
        return tuple(decode(inner, value) for inner, value in zip(kinds, plain, strict=True))
    return plain
