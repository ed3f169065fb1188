"""In which form a command answers, where to, and what standard output can show."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipscope.cli._command import CommandError

SAMPLE = "\u2588\u2581\u2026"  #: what a stream must be able to show for bars and sparklines


def add_page(command: argparse.ArgumentParser) -> None:
    """Format, width, characters, colour and file of what a command writes."""
    command.add_argument(
        "--format", choices=("console", "markdown", "json"), default="console", help="(console)"
    )
    add_look(command)
    command.add_argument("--output", type=Path, metavar="FILE", help="write there, in UTF-8")


def add_look(command: argparse.ArgumentParser) -> None:
    """Width, characters and colour of what a command prints."""
    add_text(command)
    command.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="(auto)"
    )


def add_text(command: argparse.ArgumentParser) -> None:
    """Width and characters of what a command prints without colour."""
    command.add_argument(
        "--width", type=_width, metavar="N", help="columns (those of the terminal, else 80)"
    )
    command.add_argument("--ascii", action="store_true", help="plain ASCII only")
    command.set_defaults(color="never")  # where no --color says otherwise


def _width(text: str) -> int:
    return counted(text, "a number of columns", 70)


def counted(text: str, what: str, least: int = 1) -> int:
    """A whole number of a command line, in digits.

    Raises:
        ArgumentTypeError: it is none, below the least, or has more than six digits.

    >>> counted("80", "a number of columns", 70)
    80
    """
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < least:
        shown = text if len(text) < 20 else f"{text[:16]}..."
        raise argparse.ArgumentTypeError(f"{shown!r} is not {what} from {least} to 999999")
    return int(text)


@dataclass(frozen=True)
class Page:
    """What `--width`, `--ascii` and `--color` come to, on standard output or in a file."""

    width: int
    color: bool
    unicode: bool  #: on a console
    ascii: bool  #: asked for

    @classmethod
    def of(cls, arguments: argparse.Namespace, output: Path | None = None) -> Page:
        """The page that a command line asks for.

        Args:
            arguments: those of `add_text`, with those of `add_look` where it has them.
            output: the file that is written to; None: standard output.
        """
        terminal = output is None and sys.stdout is not None and sys.stdout.isatty()
        columns = shutil.get_terminal_size().columns if terminal else 80
        return cls(
            arguments.width or columns,
            _color(arguments.color, terminal),
            not arguments.ascii and (output is not None or shows(SAMPLE)),
            arguments.ascii,
        )

    def settings(self, form: str) -> dict[str, Any]:
        """What a report of this format is told."""
        if form == "console":
            return {"width": self.width, "color": self.color, "unicode": self.unicode}
        return {"unicode": not self.ascii} if form == "markdown" else {}


def delivered(text: str, output: Path | None) -> str:
    """What is left to print once `text` went to the file that was asked for.

    Raises:
        CommandError: it cannot be written.
    """
    if output is None:
        return text
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"--output {output}: {error.strerror or error}; give a file that can be written"
        ) from error
    return ""


def _color(choice: str, terminal: bool) -> bool:
    if choice == "auto":
        return terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return choice == "always"


def shows(text: str) -> bool:
    """Whether standard output can show these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def tell(text: str) -> None:
    """One line on standard error; nothing where it is closed, and never on standard output."""
    if sys.stderr is not None:
        print(f"skipscope: {' '.join(text.split())}", file=sys.stderr)


def write(text: str) -> None:
    """Print `text`, with "?" for what standard output cannot show."""
    if sys.stdout is None:  # closed by the shell: the exit code is what is wanted
        return
    encoding = sys.stdout.encoding or "ascii"
    try:
        print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
    except OSError as error:
        # What waits in the buffer must not fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # there the reader has seen enough: `| head`
            raise
