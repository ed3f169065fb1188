"""The command line: read a finished run or study, or a rule, without torch; run a study, with it.

skipscope report lightning_logs/version_0
skipscope check lightning_logs/version_0 --fail-on warning
skipscope compare lightning_logs/version_0 lightning_logs/version_1
skipscope extrapolate lightning_logs/version_0 --depth 4x
skipscope study
skipscope explain RES101
skipscope rules

A command is one file that holds a `COMMAND`, and one line here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from skipscope.cli._command import Command, CommandError
from skipscope.cli._pages import tell, write
from skipscope.history import HistoryError

_FILES = (
    "report",  # what a run shows
    "check",  # the same as an exit code
    "compare",  # two runs side by side
    "extrapolate",  # the same net at another depth
    "study",  # with and without shortcuts
    "explain",  # what a rule sees
    "rules",  # all of them
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns 0, or 1 when a check found something, or 2 when the command could not do what it was
    asked.
    """
    arguments = _parser().parse_args(argv)
    try:
        text, code = arguments.run(arguments)
        write(text)
        return int(code)
    except (CommandError, HistoryError, OSError) as problem:
        tell(str(problem))
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="skipscope", description="Read what a monitor recorded of residual additions."
    )
    parser.add_argument("--version", action="version", version=f"skipscope {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for file in _FILES:
        command: Command = import_module(f"{__name__}.{file}").COMMAND
        one = commands.add_parser(command.name, help=command.help)
        command.add(one)
        one.set_defaults(run=command.run)
    return parser


def _version() -> str:
    try:
        return version("skipscope")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "(not installed)"
