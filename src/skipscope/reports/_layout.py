"""What the console report is laid out with: a page, and lines printed on it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from skipscope.reports._text import common_start, plain, shorten, visible

LABEL = 11  #: width of the words at the left edge


@dataclass(frozen=True)
class Page:
    """What the lines are laid out for."""

    width: int
    unicode: bool
    color: bool

    @property
    def wide(self) -> bool:
        """Room for whole words in every column."""
        return self.width >= 110

    @property
    def flexible(self) -> tuple[int, int, int]:
        """Widths of the columns kind, bar and trend of a profile."""
        return (10, 16, 12) if self.wide else (5, 6, 6)

    @property
    def site_width(self) -> int:
        """What the other columns of a profile leave to the names."""
        return self.width - sum(self.flexible) - sum((5, 7, 5, 6, 6, 6)) - 10

    def start(self, names: Sequence[str]) -> str:
        """The start of all names, to be said once, where a name is too long for its column."""
        return common_start(names) if any(len(n) > self.site_width for n in names) else ""

    def plain(self, text: str) -> str:
        """`text` as it can be shown: nothing that steers it, in ASCII where it must be."""
        return visible(text) if self.unicode else plain(visible(text))

    def text(self, text: str, style: str = "") -> Text:
        """`text` with a style; square brackets in it are no markup."""
        return Text(self.plain(text), style=style)

    def name(self, name: str, width: int) -> str:
        """`name` within `width`, both of its ends kept."""
        return shorten(self.plain(name), width, unicode=self.unicode)

    def clipped(self, text: str, width: int, most: int | None) -> str:
        """`text` in at most so many lines of this width, its end cut."""
        written = self.plain(text)
        limit = None if most is None else most * width - 12 * (most - 1)  # words do not fill lines
        if limit is None or len(written) <= limit:
            return written
        return written[: limit - 3].rstrip() + "..."

    def labelled(
        self, lines: Iterable[tuple[str, str]], style: str = "", *, most: int | None = None
    ) -> Table:
        """Words at the left edge, sentences wrapped beside them; a repeated word stands once.

        Args:
            lines: word and sentence.
            style: of the sentences.
            most: lines that one sentence may take; the rest is cut.
        """
        room = self.width - LABEL
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=LABEL - 1, no_wrap=True)
        grid.add_column(width=room, overflow="fold")
        before = ""
        for label, text in lines:
            written = self.clipped(text, room, most)
            shown = "" if label == before else label
            grid.add_row(Text(self.plain(shown), "dim"), Text(written, style))
            before = label
        return grid

    def printed(self, sections: Iterable[RenderableType]) -> list[str]:
        """The lines that `sections` take on this page."""
        out = io.StringIO()
        screen = Console(
            file=out,
            width=self.width,
            force_terminal=self.color,
            color_system="standard" if self.color else None,
            no_color=not self.color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )
        for section in sections:
            screen.print(section)
        return [line.rstrip() for line in out.getvalue().splitlines()]
