"""skipscope check: whether a run has findings, by the exit code."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from skipscope.cli._command import UNANSWERED, Command
from skipscope.cli._pages import tell
from skipscope.cli._runs import add_run, judged, why_bare

if TYPE_CHECKING:
    from skipscope.records import Finding

SEVERITIES = ("info", "warning", "error")  #: from mild to grave


def _add(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--fail-on",
        choices=SEVERITIES,
        default="warning",
        help="the mildest severity that counts (warning)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="one line a finding that counts, or the whole report as JSON (text)",
    )


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.reports import json

    history, diagnosis = judged(arguments.path, arguments)
    grave = SEVERITIES[SEVERITIES.index(arguments.fail_on) :]
    found = [finding for finding in diagnosis.standing if finding.severity in grave]
    status = int(bool(found))
    if not diagnosis.findings and not diagnosis.passed:
        why = why_bare(history) or "`skipscope report` says what each rule needs"
        tell(f"{arguments.path}: no rule could look at this run, {why}")
        status = UNANSWERED
    if arguments.format == "json":
        return json(history, diagnosis), status
    return "".join(map(_line, found)), status


def _line(finding: Finding) -> str:
    """A finding in one line, made to be searched for."""
    steps = f"steps {finding.first_step} to {finding.last_step}"
    message = " ".join(finding.message.split())
    where = ",".join(finding.where)
    by = finding.evidence.get("severity by")
    why = f"; {finding.severity} by {by}" if by else ""
    return f"{finding.severity} {finding.code} {finding.name} {where}: {message} ({steps}{why})\n"


COMMAND = Command("check", "exit with 1 when a run has findings", _add, _run)
