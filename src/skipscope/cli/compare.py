"""skipscope compare: two runs side by side."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from skipscope.cli._command import UNANSWERED, Command
from skipscope.cli._pages import Page, add_page, delivered, tell
from skipscope.cli._runs import RUN, add_rules, judged, why_bare


def _add(parser: ArgumentParser) -> None:
    parser.add_argument("a", metavar="RUN_A", type=Path, help=RUN)
    parser.add_argument("b", metavar="RUN_B", type=Path, help="the other")
    add_rules(parser)
    add_page(parser)


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.comparison import compare

    (a, of_a), (b, of_b) = (judged(path, arguments) for path in (arguments.a, arguments.b))
    names = str(arguments.a), str(arguments.b)
    made = compare(a, b, names=names, diagnoses=(of_a, of_b))
    page = Page.of(arguments, arguments.output)
    text = made.report(arguments.format, **page.settings(arguments.format))
    bare = [(name, why_bare(run)) for name, run in zip(names, (a, b), strict=True)]
    for name, why in bare:
        if why:
            tell(f"{name}: nothing to compare with, {why}")
    status = UNANSWERED if any(why for _, why in bare) else 0
    return delivered(text, arguments.output), status


COMMAND = Command("compare", "two runs side by side", _add, _run)
