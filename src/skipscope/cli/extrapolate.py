"""skipscope extrapolate: what a run says of the same net at another depth."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from skipscope.cli._command import UNANSWERED, Command, CommandError
from skipscope.cli._pages import Page, add_page, delivered, tell
from skipscope.cli._runs import RUN, find_history, some, why_bare
from skipscope.history import History


def _add(parser: ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", type=Path, help=RUN)
    parser.add_argument(
        "--depth",
        metavar="DEPTHS",
        type=some,
        default=["2x", "4x"],
        help="times the depth (4x) or sites in a stream (96), by commas (2x,4x)",
    )
    add_page(parser)


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.extrapolation import extrapolate

    history = History.load(find_history(arguments.path))
    try:
        made = extrapolate(history, *arguments.depth)
    except ValueError as wrong:
        raise CommandError(str(wrong)) from wrong
    page = Page.of(arguments, arguments.output)
    text = made.report(arguments.format, **page.settings(arguments.format))
    why = why_bare(history) or made.numbers.why
    if why:
        tell(f"{arguments.path}: nothing to extrapolate from, {why}")
    return delivered(text, arguments.output), UNANSWERED if why else 0


COMMAND = Command("extrapolate", "growth and gradients at other depths", _add, _run)
