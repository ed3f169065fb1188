"""The command line: read a finished run or study, or a rule, without torch; run a study, with it.

skipscope report lightning_logs/version_0
skipscope check lightning_logs/version_0 --fail-on warning
skipscope explain RES101
skipscope rules
skipscope study
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING

from skipscope import studying
from skipscope.evidence.store import StudyError
from skipscope.history import History, HistoryError, history_paths

if TYPE_CHECKING:
    from skipscope.records import Diagnosis, Finding
    from skipscope.rule import Rule

FOLDER = "skipscope"  #: where a monitor puts its files inside a logger's directory
SEVERITIES = ("info", "warning", "error")  #: from mild to grave
SAMPLE = "\u2588\u2581\u2026"  #: what a stream must be able to show for bars and sparklines


class CommandError(Exception):
    """What the user can put right; shown in one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns 0, or 1 when a check found something, or 2 when the command could not do what it was
    asked.
    """
    arguments = _parser().parse_args(argv)
    try:
        text, code = arguments.run(arguments)
        _write(text)
        return int(code)
    except (CommandError, HistoryError, StudyError, OSError) as problem:
        print(f"skipscope: {' '.join(str(problem).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="skipscope", description="Read what a monitor recorded of residual additions."
    )
    parser.add_argument("--version", action="version", version=f"skipscope {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_report(commands.add_parser("report", help="the health report of a run"))
    _add_check(commands.add_parser("check", help="exit with 1 when a run has findings"))
    explain = commands.add_parser("explain", help="what a rule sees, and what to try")
    explain.add_argument("code", metavar="CODE", help="such as RES101, or the rule's name")
    explain.set_defaults(run=_explain)
    rules = commands.add_parser("rules", help="every rule in one line")
    rules.set_defaults(run=_rules)
    study = commands.add_parser("study", help="a controlled study: with and without shortcuts")
    studying.add_arguments(study)
    return parser


def _add_run(command: argparse.ArgumentParser) -> None:
    """A run, and which rules judge it."""
    command.add_argument(
        "path",
        metavar="RUN",
        type=Path,
        help="a history file, the directory that holds it, or a Lightning version directory",
    )
    for name, does in (("select", "these rules look only"), ("ignore", "these rules do not look")):
        command.add_argument(
            f"--{name}",
            metavar="RULES",
            type=_listed,
            help=f"{does}: codes, names or the start of codes, by commas (as in the run)",
        )


def _add_report(report: argparse.ArgumentParser) -> None:
    _add_run(report)
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


def _add_check(check: argparse.ArgumentParser) -> None:
    _add_run(check)
    check.add_argument(
        "--fail-on",
        choices=SEVERITIES,
        default="warning",
        help="the mildest severity that counts (warning)",
    )
    check.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="one line a finding that counts, or the whole report as JSON (text)",
    )
    check.set_defaults(run=_check)


def _version() -> str:
    try:
        return version("skipscope")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "(not installed)"


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


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


def _judged(arguments: argparse.Namespace) -> tuple[History, Diagnosis]:
    """A run, judged by its own rules unless the command line says otherwise.

    Raises:
        CommandError: a rule or threshold is unknown.
    """
    from skipscope.diagnose import diagnose

    history = History.load(find_history(arguments.path))
    settings = {name: loads(value) for name, value in history.run.rules.items()}
    given = {"select": arguments.select, "ignore": arguments.ignore}
    settings |= {name: value for name, value in given.items() if value is not None}
    try:
        diagnose(History(), **settings)
    except ValueError as unknown:
        raise CommandError(str(unknown)) from unknown
    return history, _without_news(diagnose(history, **settings))


def _without_news(diagnosis: Diagnosis) -> Diagnosis:
    """A report that is made again tells no news."""
    known = (
        replace(finding, status="continuing") if finding.status == "new" else finding
        for finding in diagnosis.findings
    )
    return replace(diagnosis, findings=tuple(known))


def _check(arguments: argparse.Namespace) -> tuple[str, int]:
    from skipscope.reports import json

    history, diagnosis = _judged(arguments)
    grave = SEVERITIES[SEVERITIES.index(arguments.fail_on) :]
    found = [finding for finding in diagnosis.standing if finding.severity in grave]
    if not diagnosis.findings and not diagnosis.passed:
        print(f"skipscope: {arguments.path}: no rule could look at this run", file=sys.stderr)
    if arguments.format == "json":
        return json(history, diagnosis), int(bool(found))
    return "".join(map(_line, found)), int(bool(found))


def _line(finding: Finding) -> str:
    """A finding in one line, made to be searched for."""
    steps = f"steps {finding.first_step} to {finding.last_step}"
    message = " ".join(finding.message.split())
    where = ",".join(finding.where)
    return f"{finding.severity} {finding.code} {finding.name} {where}: {message} ({steps})\n"


def _report(arguments: argparse.Namespace) -> tuple[str, int]:
    from skipscope.reports import console, json, markdown

    history, diagnosis = _judged(arguments)
    if arguments.format == "json":
        text = json(history, diagnosis)
    elif arguments.format == "markdown":
        text = markdown(history, diagnosis, unicode=not arguments.ascii)
    else:
        terminal = arguments.output is None and sys.stdout is not None and sys.stdout.isatty()
        columns = shutil.get_terminal_size().columns if terminal else 80
        text = console(
            history,
            diagnosis,
            width=arguments.width or columns,
            color=_color(arguments.color, terminal),
            unicode=not arguments.ascii and (arguments.output is not None or _shows(SAMPLE)),
        )
    if arguments.output is None:
        return text, 0
    arguments.output.write_text(text, encoding="utf-8")
    return "", 0


def _color(choice: str, terminal: bool) -> bool:
    if choice == "auto":
        return terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return choice == "always"


def _shows(text: str) -> bool:
    """Whether standard output can show these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _write(text: str) -> None:
    """Print `text`, with "?" for what standard output cannot show."""
    if sys.stdout is None:  # closed by the shell: the exit code is what is wanted
        return
    encoding = sys.stdout.encoding or "ascii"
    try:
        print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
    except OSError as error:
        # What waits in the buffer must not fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # there the reader has seen enough: `| head`
            raise


def _explain(arguments: argparse.Namespace) -> tuple[str, int]:
    from skipscope.rule.docs import plain

    text = _find_rule(arguments.code).explain()
    return text if _shows(text) else plain(text), 0


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


def _rules(arguments: argparse.Namespace) -> tuple[str, int]:
    from skipscope.rules import RULES

    width = max(len(rule.name) for rule in RULES.values())
    lines = [
        f"{rule.code}  {rule.severity:7}  {rule.name:{width}}  {rule.title}"
        for rule in RULES.values()
    ]
    return "\n".join(lines) + "\n", 0
