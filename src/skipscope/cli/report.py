"""skipscope report: the health report of a run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from skipscope.cli._command import Command
from skipscope.cli._pages import Page, add_page, delivered
from skipscope.cli._runs import add_run, judged


def _add(parser: ArgumentParser) -> None:
    add_run(parser)
    add_page(parser)


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.reports import console, json, markdown

    history, diagnosis = judged(arguments.path, arguments)
    page = Page.of(arguments)
    if arguments.format == "json":
        text = json(history, diagnosis)
    elif arguments.format == "markdown":
        text = markdown(history, diagnosis, unicode=not page.ascii)
    else:
        text = console(history, diagnosis, width=page.width, color=page.color, unicode=page.unicode)
    return delivered(text, arguments.output), 0


COMMAND = Command("report", "the health report of a run", _add, _run)
