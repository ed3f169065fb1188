"""skipscope rules: every rule with what it finds."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from textwrap import fill

from skipscope.cli._command import Command
from skipscope.cli._pages import Page, add_text


def _add(parser: ArgumentParser) -> None:
    add_text(parser)


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.rule.docs import plain
    from skipscope.rules import RULES

    page = Page.of(arguments)
    longest = max(len(rule.name) for rule in RULES.values())
    lines = []
    for rule in RULES.values():
        start = f"{rule.code}  {rule.severity:7}  {rule.name:{longest}}  "
        lines.append(
            fill(
                rule.title, page.width, initial_indent=start, subsequent_indent=" " * len(start),
                break_on_hyphens=False,
            )
        )  # fmt: skip
    text = "\n".join(lines) + "\n"
    return text if page.unicode else plain(text), 0


COMMAND = Command("rules", "every rule with what it finds", _add, _run)
