"""skipscope report: the health report of a run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial

from skipscope.cli._command import Command
from skipscope.cli._pages import Page, add_page, delivered
from skipscope.cli._runs import add_run, judged


def _add(parser: ArgumentParser) -> None:
    add_run(parser)
    add_page(parser)


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.reports import REPORTS

    history, diagnosis = judged(arguments.path, arguments)
    make = partial(REPORTS[arguments.format], history, diagnosis)
    text = make(**Page.of(arguments, arguments.output).settings(arguments.format))
    return delivered(text, arguments.output), 0


COMMAND = Command("report", "the health report of a run", _add, _run)
