"""What Markdown is written with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from skipscope.reports._text import visible


def escape(text: str) -> str:
    """`text` with nothing in it that Markdown or HTML would take for its own."""
    text = visible(text)
    for character in "\\`*_[]|":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code(text: str) -> str:
    """A name or a call, shown letter by letter; a pipe would end a table's cell."""
    return f"`{visible(text).replace('`', chr(39)).replace('|', '/')}`" if text else ""


def bullets(lines: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {escape(line)}" for line in lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[bool]) -> str:
    """A table; `words` tells which columns hold words, the others hold numbers."""
    marks = ["---" if word else "---:" for word in words]
    lines = [head, marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
