"""skipscope explain: what a rule sees, and what to try."""

from __future__ import annotations

import difflib
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from skipscope.cli._command import Command, CommandError
from skipscope.cli._pages import shows

if TYPE_CHECKING:
    from skipscope.rule import Rule


def _add(parser: ArgumentParser) -> None:
    parser.add_argument("code", metavar="CODE", help="such as RES101, or the rule's name")


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.rule.docs import plain

    text = _find_rule(arguments.code).explain()
    return text if shows(text) else plain(text), 0


def _find_rule(wanted: str) -> Rule:
    from skipscope.rules import RULES

    names = {rule.name: rule for rule in RULES.values()}
    found = RULES.get(wanted.upper()) or names.get(wanted.lower())
    if found is None:
        near = difflib.get_close_matches(wanted.upper(), RULES, n=3, cutoff=0.7)
        near += difflib.get_close_matches(wanted.lower(), names, n=2)
        hint = f"did you mean {', '.join(near)}?" if near else "`skipscope rules` lists them"
        raise CommandError(f"{wanted!r}: no rule has this code or name; {hint}")
    return found


COMMAND = Command("explain", "what a rule sees, and what to try", _add, _run)
