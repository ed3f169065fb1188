"""In which form a command answers, where to, and what standard output can show."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE = "\u2588\u2581\u2026"  #: what a stream must be able to show for bars and sparklines


def add_page(command: argparse.ArgumentParser) -> None:
    """Format, width, characters, colour and file of what a command writes."""
    command.add_argument(
        "--format", choices=("console", "markdown", "json"), default="console", help="(console)"
    )
    command.add_argument("--width", type=_width, help="columns (those of the terminal, else 80)")
    command.add_argument("--ascii", action="store_true", help="plain ASCII only")
    command.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="(auto)"
    )
    command.add_argument("--output", type=Path, metavar="FILE", help="write there, in UTF-8")


def _width(text: str) -> int:
    if not text.isdigit() or int(text) < 70:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of columns from 70 on")
    return int(text)


@dataclass(frozen=True)
class Page:
    """What `--width`, `--ascii`, `--color` and `--output` come to."""

    width: int
    color: bool
    unicode: bool  #: on a console
    ascii: bool  #: asked for

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Page:
        """The page that a command line asks for."""
        terminal = arguments.output is None and sys.stdout is not None and sys.stdout.isatty()
        columns = shutil.get_terminal_size().columns if terminal else 80
        return cls(
            arguments.width or columns,
            _color(arguments.color, terminal),
            not arguments.ascii and (arguments.output is not None or shows(SAMPLE)),
            arguments.ascii,
        )

    def settings(self, form: str) -> dict[str, Any]:
        """What a report of this format is told."""
        if form == "console":
            return {"width": self.width, "color": self.color, "unicode": self.unicode}
        return {"unicode": not self.ascii} if form == "markdown" else {}


def delivered(text: str, output: Path | None) -> str:
    """What is left to print once `text` went to the file that was asked for."""
    if output is None:
        return text
    output.write_text(text, encoding="utf-8")
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
