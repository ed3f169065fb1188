"""skipscope rules: every rule in one line."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from skipscope.cli._command import Command


def _add(parser: ArgumentParser) -> None:
    """It takes no arguments."""


def _run(arguments: Namespace) -> tuple[str, int]:
    from skipscope.rules import RULES

    width = max(len(rule.name) for rule in RULES.values())
    lines = [
        f"{rule.code}  {rule.severity:7}  {rule.name:{width}}  {rule.title}"
        for rule in RULES.values()
    ]
    return "\n".join(lines) + "\n", 0


COMMAND = Command("rules", "every rule in one line", _add, _run)
