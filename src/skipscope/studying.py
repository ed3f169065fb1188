"""`skipscope study`: run a controlled study, or judge a finished one again.

The command line is of the offline arm, so that a report needs no torch; a study trains, and needs
it. `skipscope.study` is therefore loaded by name when a study is to be run, and not imported: with
`--report` it never is.
"""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from pathlib import Path

from skipscope.evidence import store
from skipscope.evidence.outcome import Evidence

NAMES = ("digits", "shortcuts", "norms")
FOLDER = "study_runs"


def add_arguments(study: argparse.ArgumentParser) -> None:
    """What can be said behind `skipscope study`."""
    study.add_argument(
        "name", choices=NAMES, nargs="?", default=NAMES[0], help=f"which study ({NAMES[0]})"
    )
    study.add_argument(
        "--output", type=Path, metavar="FOLDER", help=f"where it is written ({FOLDER}/NAME)"
    )
    study.add_argument(
        "--jobs", type=_count, metavar="N", help="processes that train (one for each core)"
    )
    study.add_argument("--seeds", type=_count, default=3, metavar="N", help="how many (3)")
    study.add_argument("--smoke", action="store_true", help="a small one: seconds, one seed")
    study.add_argument(
        "--report",
        type=Path,
        metavar="FOLDER",
        help="train nothing, judge the study in FOLDER again, as far as it got",
    )
    study.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """Runs a study, or reads one; what there is to print, and the exit code."""
    if arguments.report is not None:
        return told(store.load(arguments.report), arguments.report), 0
    kept = f"{arguments.name}-smoke" if arguments.smoke else arguments.name
    folder = arguments.output or Path(FOLDER, kept)
    study = import_module("skipscope.study")
    try:
        evidence: Evidence = study.run_named(
            arguments.name,
            folder,
            jobs=arguments.jobs or cores(),
            seeds=arguments.seeds,
            smoke=arguments.smoke,
        )
    except KeyboardInterrupt:
        raise store.StudyError(
            "stopped; what is finished is kept, and the same command goes on"
        ) from None
    return told(evidence, folder), 0


def told(evidence: Evidence, folder: Path) -> str:
    """What is printed of a study; its reports are written beside it."""
    return f"{evidence.name}: {len(evidence.outcomes)} trainings in {folder}\n"


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
