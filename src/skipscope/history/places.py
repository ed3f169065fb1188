"""Where the history files of a run lie, and what to give where none is found."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "skipscope"  #: where a monitor puts its files inside a logger's directory
STUDY = "study.json"  #: what a study's folder holds beside the runs of its cells
WANTED = "give a history-*.skip file, its directory, or a Lightning version directory"


def history_paths(directory: str | os.PathLike[str]) -> list[Path]:
    """The history files of a directory, newest first."""
    found = Path(directory).glob("history-*.skip")
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


def run_files(path: Path) -> list[Path]:
    """The history files that a path means, newest first: itself, or those in or below it.

    Raises:
        FileNotFoundError: there is none, with what to give instead.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or directory; {WANTED}")
    if not path.is_dir():
        return [path]
    found = history_paths(path) or history_paths(path / FOLDER)
    if found:
        return found
    if (path / STUDY).exists():
        cells = sorted(cell for cell in (path / "cells").glob("*") if history_paths(cell))
        which = f", such as {cells[0]}" if cells else ""
        raise FileNotFoundError(
            f"{path}: the folder of a study, whose runs lie in cells/; give one of these{which}"
        )
    raise FileNotFoundError(f"{path}: holds no history-*.skip, nor does {FOLDER}/ in it; {WANTED}")
