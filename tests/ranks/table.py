"""Ways to train with several processes: the rows of docs/compatibility.md that run here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.modes.mode import EXACT, Mode

GROUP = "Several processes"
CHECKS = ("bits", "numbers")


@dataclass(frozen=True)
class Row:
    """A mode, and which calls of a file's `CALLS` are it, watched and not."""

    mode: Mode
    file: str
    watched: str
    plain: str


def _row(name: str, file: str, watched: str, plain: str, exact: str = EXACT, note: str = "") -> Row:
    return Row(Mode(name, GROUP, exact=exact, note=note, checks=CHECKS), file, watched, plain)


ROWS = (
    _row("DDP, plain loop", "plain loops", "watched", "plain"),
    _row(
        "DDP, find_unused_parameters",
        "plain loops",
        "unused",
        "unused unwatched",
        exact="the run; everything of sites",
    ),
    _row("DDP, static_graph", "plain loops", "static", "plain"),
    _row("fully_shard, plain loop", "shards", "fsdp2", "fsdp2 unwatched"),
    _row("FSDP1, plain loop", "shards", "fsdp1", "fsdp1 unwatched"),
    _row("Trainer(strategy='ddp')", "trainers", "ddp", "ddp unwatched"),
    _row("ModelParallelStrategy with fully_shard", "trainers", "shards", "shards unwatched"),
)
MODES = [row.mode for row in ROWS]


def rows_of(file: str) -> Iterator[pytest.param]:
    """The checks of the rows that one file runs."""
    for row in ROWS:
        if row.file == file:
            for check in CHECKS:
                yield pytest.param(row.mode, check, id=f"{row.mode.name}-{check}")


def calls_of(mode: Mode) -> tuple[str, str]:
    """The names of its calls, watched and not."""
    (row,) = (row for row in ROWS if row.mode is mode)
    return row.watched, row.plain
