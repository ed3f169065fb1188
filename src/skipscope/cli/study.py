"""skipscope study: run a controlled study, or judge a finished one again.

The command line is of the offline arm, so that a report needs no torch; a study trains, and needs
it. `skipscope.study` is therefore loaded by name when a study is to be run, and not imported: with
`--report` it never is.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
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
        type=_folder,
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
        type=_folder,
        metavar="FOLDER",
        help="alone: train nothing, judge the study in FOLDER again, as far as it got",
    )
    add_look(parser)


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.evidence.store import StudyError

    option, folder = "--report", arguments.report
    if folder is None:
        option, folder = "--output", _destination(arguments)
    try:
        if option == "--report":
            _check_alone(arguments)
        else:
            _train(arguments, folder)
        return _judged(folder, Page.of(arguments)), 0
    except StudyError as problem:
        if isinstance(problem.__cause__, OSError):  # where it says `folder`, here it is an option
            raise CommandError(_refused(option, folder, problem.__cause__)) from problem
        raise CommandError(str(problem)) from problem
    except OSError as problem:
        raise CommandError(_refused(option, folder, problem)) from problem
    except KeyboardInterrupt:
        print(
            "skipscope: stopped; what is finished is kept, and the same command goes on",
            file=sys.stderr,
        )
        return "", INTERRUPTED


def _check_alone(arguments: Namespace) -> None:
    """Whether `--report` stands alone.

    Raises:
        CommandError: something is given that only a training can use.
    """
    for name in ("name", "output", "jobs", "seeds", "smoke"):
        if getattr(arguments, name):
            option = "NAME" if name == "name" else f"--{name}"
            raise CommandError(
                f"--report trains nothing: leave {option} out, or leave --report out"
            )


def _name(arguments: Namespace) -> str:
    return str(arguments.name or NAMES[0])


def _destination(arguments: Namespace) -> Path:
    name = _name(arguments)
    return arguments.output or Path(FOLDER, f"{name}-smoke" if arguments.smoke else name)


def _train(arguments: Namespace, folder: Path) -> None:
    import_module("skipscope.study").run_named(
        _name(arguments),
        folder,
        jobs=arguments.jobs or _cores(),
        seeds=arguments.seeds,
        smoke=arguments.smoke,
    )


def _refused(option: str, folder: Path, error: OSError) -> str:
    """What the machine refused, with the option that leads there and what to give instead."""
    own = error.filename in (None, str(folder))
    what = "" if own else f" ({error.filename})"
    remedy = "a folder that can be written"
    if folder.exists() and not folder.is_dir():
        return f"{option} {folder}: is a file; give {remedy}"
    return f"{option} {folder}: {error.strerror or error}{what}; give {remedy}"


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


def _folder(text: str) -> Path:
    """A folder of the command line.

    Raises:
        ArgumentTypeError: it has no name.
    """
    if not text.strip():
        raise ArgumentTypeError(f"{text!r} names no folder; leave the option out, or name one")
    return Path(text)


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _count(text: str) -> int:
    return counted(text, "a number")


COMMAND = Command("study", "a controlled study: with and without shortcuts", _add, _run)
