"""What a command is, and how one says that it cannot do what it was asked."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass

UNANSWERED = 2  #: exit status where a run does not hold what was asked


class CommandError(Exception):
    """What the user can put right; shown in one line."""


@dataclass(frozen=True)
class Command:
    """One command: its words, its arguments, what it does."""

    name: str
    help: str  #: one line for `skipscope --help`
    add: Callable[[ArgumentParser], None]  #: adds its arguments to a parser of its own
    run: Callable[[Namespace], tuple[str, int]]  #: what to print, and the exit code
