"""Pages that are no health report: titles, labelled lines and tables, on a console or in Markdown.

What makes such a page states its parts once; both formats show the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from skipscope.reports._layout import Page
from skipscope.reports._marks import code, escape, table
from skipscope.reports._text import plain

NARROW = 8  #: columns that a name keeps at least


@dataclass(frozen=True)
class Title:
    """The line that a page, or a section of it, begins with."""

    text: str
    first: bool = False  #: the page's own


@dataclass(frozen=True)
class Notes:
    """Sentences, each with a word at the left edge."""

    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Grid:
    """A table of words and numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  #: an empty row separates
    names: tuple[int, ...] = (0,)  #: columns of words, which give way where a page is narrow


Part = Title | Notes | Grid


def console(
    parts: Iterable[Part], *, width: int = 80, color: bool = False, unicode: bool = True
) -> str:
    """The parts as text; nothing is said by colour alone."""
    page = Page(max(width, 70), unicode, color)
    return "\n".join(page.printed(_sections(parts, page))) + "\n"


def _sections(parts: Iterable[Part], page: Page) -> Iterable[RenderableType]:
    for part in parts:
        if isinstance(part, Title):
            if not part.first:
                yield Text()
            yield page.text(part.text, "bold")
        elif isinstance(part, Notes):
            yield page.labelled(part.lines)
        elif part.rows:
            yield Text()
            yield _grid(part, page)


def _grid(part: Grid, page: Page) -> Table:
    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    widths = _widths(part, page)
    for at, (heading, width) in enumerate(zip(part.head, widths, strict=True)):
        left = at in part.names
        grid.add_column(
            page.plain(heading), width=width, justify="left" if left else "right",
            no_wrap=True, overflow="crop", vertical="bottom",
        )  # fmt: skip
    for row in part.rows:
        grid.add_row(
            *(
                Text(page.name(cell, widths[at]) if at in part.names else page.plain(cell))
                for at, cell in enumerate(row)
            )
        )
    return grid


def _widths(part: Grid, page: Page) -> list[int]:
    """What each column takes; where that is too much, names are shortened, the widest first."""
    cells = [tuple(heading.split("\n")) for heading in part.head]
    widths = [max(map(len, lines)) for lines in cells]
    for row in part.rows:
        for at, cell in enumerate(row):
            widths[at] = max(widths[at], len(page.plain(cell)))
    room = page.width - len(widths) + 1
    while sum(widths) > room and max(widths[at] for at in part.names) > NARROW:
        widest = max(part.names, key=lambda at: widths[at])
        widths[widest] -= 1
    return widths


def markdown(parts: Iterable[Part], *, unicode: bool = True) -> str:
    """The parts as Markdown."""
    blocks: list[str] = []
    for part in parts:
        if isinstance(part, Title):
            text = escape(part.text)
            blocks.append(f"**{text}**" if part.first else f"### {text}")
        elif isinstance(part, Notes):
            blocks.append("\n".join(_labelled(part.lines)))
        elif part.rows:
            blocks.append(_table(part))
    text = "\n\n".join(block for block in blocks if block) + "\n"
    return text if unicode else plain(text)


def _labelled(lines: Sequence[tuple[str, str]]) -> Iterable[str]:
    label = ""
    for word, sentence in lines:
        label = word or label
        yield f"- {escape(label)}: {escape(sentence)}" if label else f"- {escape(sentence)}"


def _table(part: Grid) -> str:
    head = [heading.replace("\n", " ").strip() for heading in part.head]
    rows = [
        [code(cell) if at in part.names and "." in cell else escape(cell)
         for at, cell in enumerate(row)]
        for row in part.rows if row
    ]  # fmt: skip
    return table(head, rows, [at in part.names for at in range(len(head))])
