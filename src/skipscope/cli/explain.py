"""skipscope explain: what a rule sees, and what to try."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from skipscope.cli._command import Command, CommandError
from skipscope.cli._pages import Page, add_text
from skipscope.names import near

if TYPE_CHECKING:
    from skipscope.rule import Rule


def _add(parser: ArgumentParser) -> None:
    parser.add_argument("code", metavar="CODE", help="such as RES101, or the rule's name")
    add_text(parser)
    parser.epilog = (
        "Text is wrapped to --width; drawings stay as they are, at most 78 columns wide."
    )


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.rule.docs import plain

    page = Page.of(arguments)
    text = _find_rule(arguments.code).explain(page.width)
    return text if page.unicode else plain(text), 0


def _find_rule(wanted: str) -> Rule:
    from skipscope.rules import RULES

    names = {rule.name: rule for rule in RULES.values()}
    found = RULES.get(wanted.upper()) or names.get(wanted.lower())
    if found is None:
        raise CommandError(
            f"CODE: no rule has the code or name {wanted!r} (`skipscope rules` lists them)"
            f"{near(wanted, RULES, names)}"
        )
    return found


COMMAND = Command("explain", "what a rule sees, and what to try", _add, _run)
