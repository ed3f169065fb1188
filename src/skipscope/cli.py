"""The command line: read a finished run, or a rule, without torch.

skipscope report lightning_logs/version_0
skipscope explain RES101
skipscope rules
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING

from skipscope.history import History, HistoryError, history_paths

if TYPE_CHECKING:
    from skipscope.rule import Rule

FOLDER = "skipscope"  #: where a monitor puts its files inside a logger's directory
SAMPLE = "\u2588\u2581\u2026"  #: what a stream must be able to show for bars and sparklines


class CommandError(Exception):
    """What the user can put right; shown in one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns 0, or 2 when the command could not do what it was asked.
    """
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough: `skipscope report RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (CommandError, HistoryError, OSError) as problem:
        print(f"skipscope: {' '.join(str(problem).split())}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="skipscope", description="Read what a monitor recorded of residual additions."
    )
    parser.add_argument("--version", action="version", version=f"skipscope {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="the health report of a run")
    report.add_argument(
        "path",
        metavar="RUN",
        type=Path,
        help="a history file, the directory that holds it, or a Lightning version directory",
    )
    report.add_argument(
        "--format", choices=("console", "markdown", "json"), default="console", help="(console)"
    )
    report.add_argument("--width", type=_width, help="columns (those of the terminal, else 80)")
    report.add_argument("--ascii", action="store_true", help="plain ASCII only")
    report.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="(auto)"
    )
    report.add_argument("--output", type=Path, metavar="FILE", help="write there, in UTF-8")
    report.set_defaults(run=_report)
    explain = commands.add_parser("explain", help="what a rule sees, and what to try")
    explain.add_argument("code", metavar="CODE", help="such as RES101, or the rule's name")
    explain.set_defaults(run=_explain)
    rules = commands.add_parser("rules", help="every rule in one line")
    rules.set_defaults(run=_rules)
    return parser


def _version() -> str:
    try:
        return version("skipscope")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "(not installed)"


def _width(text: str) -> int:
    if not text.isdigit() or int(text) < 70:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of columns from 70 on")
    return int(text)


def find_history(path: Path) -> Path:
    """The history file that a path means.

    Raises:
        CommandError: there is none, with what to give instead.
    """
    wanted = "give a history-*.skip file, its directory, or a Lightning version directory"
    if not path.exists():
        raise CommandError(f"{path}: no such file or directory; {wanted}")
    if not path.is_dir():
        return path
    for directory in (path, path / FOLDER):
        found = history_paths(directory)
        if found:
            if len(found) > 1:
                others = ", ".join(other.name for other in found[1:4])
                note = f"reads {found[0].name}, the newest of {len(found)}; others: {others}"
                print(f"skipscope: {directory}: {note}", file=sys.stderr)
            return found[0]
    raise CommandError(f"{path}: holds no history-*.skip, nor does {FOLDER}/ in it; {wanted}")


def _report(arguments: argparse.Namespace) -> None:
    from skipscope.diagnose import diagnose
    from skipscope.reports import console, json, markdown

    history = History.load(find_history(arguments.path))
    settings = {name: loads(value) for name, value in history.run.rules.items()}
    diagnosis = diagnose(history, **settings)
    if arguments.format == "json":
        text = json(history, diagnosis)
    elif arguments.format == "markdown":
        text = markdown(history, diagnosis, unicode=not arguments.ascii)
    else:
        terminal = sys.stdout.isatty() and arguments.output is None
        columns = shutil.get_terminal_size().columns if terminal else 80
        text = console(
            history,
            diagnosis,
            width=arguments.width or columns,
            color=_color(arguments.color, terminal),
            unicode=not arguments.ascii and (arguments.output is not None or _shows(SAMPLE)),
        )
    if arguments.output is None:
        _write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")


def _color(choice: str, terminal: bool) -> bool:
    if choice == "auto":
        return terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return choice == "always"


def _shows(text: str) -> bool:
    """Whether standard output can show these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _write(text: str) -> None:
    """Print `text`, with "?" for what standard output cannot show."""
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "replace").decode(encoding), end="")


def _explain(arguments: argparse.Namespace) -> None:
    _write(_find_rule(arguments.code).explain())


def _find_rule(wanted: str) -> Rule:
    from skipscope.rules import RULES

    names = {rule.name: rule for rule in RULES.values()}
    found = RULES.get(wanted.upper()) or names.get(wanted.lower())
    if found is None:
        near = difflib.get_close_matches(wanted.upper(), RULES, n=3, cutoff=0.7)
        near += difflib.get_close_matches(wanted.lower(), names, n=2)
        hint = f"did you mean {', '.join(near)}?" if near else "`skipscope rules` lists them"
        raise CommandError(f"{wanted}: no rule has this code or name; {hint}")
    return found


def _rules(arguments: argparse.Namespace) -> None:
    from skipscope.rules import RULES

    width = max(len(rule.name) for rule in RULES.values())
    lines = [
        f"{rule.code}  {rule.severity:7}  {rule.name:{width}}  {rule.title}"
        for rule in RULES.values()
    ]
    _write("\n".join(lines) + "\n")
