"""skipscope study: run a controlled study, or judge a finished one again.

The command line is of the offline arm, so that a report needs no torch; a study trains, and needs
it. `skipscope.study` is therefore loaded by name when a study is to be run, and not imported: with
`--report` it never is.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path

from skipscope.cli._command import Command, CommandError
from skipscope.cli._pages import Page, add_look, counted

NAMES = ("digits", "adam", "shortcuts", "norms")
FOLDER = "study_runs"
INTERRUPTED = 130  #: exit code of a command that Ctrl-C ended


def _add(parser: ArgumentParser) -> None:
    parser.add_argument("name", choices=NAMES, nargs="?", help=f"which study ({NAMES[0]})")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help=f"where it is written ({FOLDER}/NAME, with --smoke {FOLDER}/NAME-smoke)",
    )
    parser.add_argument(
        "--jobs", type=_count, metavar="N", help="processes that train (one for each core)"
    )
    parser.add_argument("--seeds", type=_count, metavar="N", help="how many (3; with --smoke 1)")
    parser.add_argument("--smoke", action="store_true", help="a small one, in seconds")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FOLDER",
        help="alone: train nothing, judge the study in FOLDER again, as far as it got",
    )
    add_look(parser)


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.evidence.store import StudyError

    try:
        folder = _finished(arguments) if arguments.report else _trained(arguments)
        return _judged(folder, Page.of(arguments)), 0
    except StudyError as problem:
        raise CommandError(str(problem)) from problem
    except KeyboardInterrupt:
        print(
            "skipscope: stopped; what is finished is kept, and the same command goes on",
            file=sys.stderr,
        )
        return "", INTERRUPTED


def _finished(arguments: Namespace) -> Path:
    """The folder to judge again.

    Raises:
        CommandError: something is given that only a training can use.
    """
    for name in ("name", "output", "jobs", "seeds", "smoke"):
        if getattr(arguments, name):
            option = "NAME" if name == "name" else f"--{name}"
            raise CommandError(
                f"--report trains nothing: leave {option} out, or leave --report out"
            )
    folder: Path = arguments.report
    return folder


def _trained(arguments: Namespace) -> Path:
    name = arguments.name or NAMES[0]
    folder: Path = arguments.output or Path(FOLDER, f"{name}-smoke" if arguments.smoke else name)
    import_module("skipscope.study").run_named(
        name,
        folder,
        jobs=arguments.jobs or _cores(),
        seeds=arguments.seeds,
        smoke=arguments.smoke,
    )
    return folder


def _judged(folder: Path, page: Page) -> str:
    """What is printed of a study; its reports are written beside it."""
    from skipscope.evidence import console, judge, write_reports
    from skipscope.evidence.store import load
    from skipscope.reports._text import plain

    evidence = load(folder)
    verdict = judge(evidence)
    written = [path.name for path in write_reports(evidence, verdict, folder)]
    said = console(evidence, verdict, **page.settings("console"))
    text = "\n".join([said, f"written to {folder}:", *(f"  {name}" for name in written), ""])
    return text if page.unicode else plain(text)


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _count(text: str) -> int:
    return counted(text, "a number")


COMMAND = Command("study", "a controlled study: with and without shortcuts", _add, _run)
