"""Where a run lies, and what the rules say of it."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import replace
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipscope.cli._command import CommandError
from skipscope.cli._pages import tell
from skipscope.history import History
from skipscope.history.places import run_files

if TYPE_CHECKING:
    from skipscope.records import Diagnosis

RUN = "a history file, the directory that holds it, or a Lightning version directory"


def add_run(command: ArgumentParser) -> None:
    """A run, and which rules judge it."""
    command.add_argument("path", metavar="RUN", type=Path, help=RUN)
    add_rules(command)


def add_rules(command: ArgumentParser) -> None:
    """Which rules judge."""
    for name, does, of in (
        ("select", "these rules look only", some),
        ("ignore", "these rules do not look", listed),
    ):
        command.add_argument(
            f"--{name}",
            metavar="RULES",
            type=of,
            help=f"{does}: codes, names or the start of codes, by commas (as in the run)",
        )


def listed(text: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def some(text: str) -> list[str]:
    """What stands between commas, which must be something.

    Raises:
        ArgumentTypeError: it is nothing.
    """
    found = listed(text)
    if not found:
        raise ArgumentTypeError(f"{text!r} names nothing; leave the option out, or name something")
    return found


def find_history(path: Path) -> Path:
    """The history file that a path means, the newest of several.

    Raises:
        FileNotFoundError: there is none, with what to give instead.
    """
    newest, *others = run_files(path)
    if others:
        names = ", ".join(other.name for other in others[:3])
        note = f"reads {newest.name}, the newest of {len(others) + 1}; others: {names}"
        tell(f"{newest.parent}: {note}")
    return newest


def why_bare(history: History) -> str:
    """Why a run holds no capture; "" where it holds one."""
    if len(history.capture_steps):
        return ""
    unknown = "the file is empty, cut off, or of a run that just began"
    return f"no step of it was captured: {history.run.uncaptured or unknown}"


def judged(path: Path, arguments: Namespace) -> tuple[History, Diagnosis]:
    """A run, judged by its own rules unless the command line says otherwise.

    Raises:
        FileNotFoundError: there is no run, with what to give instead.
        CommandError: a rule or threshold is unknown.
    """
    from skipscope.diagnose import diagnose

    history = History.load(find_history(path))
    asked = {"select": arguments.select, "ignore": arguments.ignore}
    given = {name: value for name, value in asked.items() if value is not None}
    own = {n: loads(value) for n, value in history.run.rules.items() if n not in given}
    _known("--", given)
    _known(f"{path}: the run's own ", own)
    return history, _without_news(diagnose(history, **own, **given))


def _known(start: str, settings: dict[str, Any]) -> None:
    """Whether all rules and thresholds exist; the error begins with whose they are."""
    from skipscope.diagnose import diagnose

    try:
        diagnose(History(), **settings)
    except ValueError as unknown:
        raise CommandError(f"{start}{unknown}") from unknown


def _without_news(diagnosis: Diagnosis) -> Diagnosis:
    """A report that is made again tells no news."""
    known = (
        replace(finding, status="continuing") if finding.status == "new" else finding
        for finding in diagnosis.findings
    )
    return replace(diagnosis, findings=tuple(known))
