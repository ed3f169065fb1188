"""The profile along depth on a page: a row a site, a bar for r, a sparkline for its past."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from skipscope.names import counted
from skipscope.reports import _words
from skipscope.reports._layout import Page
from skipscope.reports._select import Profile
from skipscope.reports._text import bar, log_range, number, sparkline
from skipscope.reports._view import SiteRow, View

KINDS = {"identity": "ident", "scaled": "scale", "projection": "proj"}


def profile_grid(chosen: Profile, page: Page) -> Table:
    """One row a site, a blank row where a stage ends, a title for each stream, the quantiles."""
    grid = _columns(page)
    ends = log_range([row.branch_ratio for row in chosen.rows])
    start = len(page.start([row.name for row in chosen.rows]))
    many = len({row.stream for row in chosen.rows}) > 1
    before: SiteRow | None = None
    for row in chosen.rows:
        if many and (before is None or row.stream != before.stream):
            grid.add_row("", f"stream {row.stream}", style="bold")
        elif before is not None and row.stage != before.stage and not chosen.left_out:
            grid.add_row()
        before = row
        grid.add_row(*_site(row, page, ends, start))
    for label, numbers in chosen.quantiles:
        written = {name: write(numbers[name]) for name, write in _words.WRITTEN.items()}
        drawn = bar(numbers["branch_ratio"], ends, page.flexible[1], unicode=page.unicode)
        ratio, *rest = (written[name] for name in _words.COLUMNS)
        grid.add_row("", f"{label} of all", "", ratio, Text(drawn, "blue"), *rest, style="dim")
    return grid


def captions(shown: View, chosen: Profile, page: Page) -> Iterable[tuple[str, str]]:
    """How to read the profile, and what its columns should hold."""
    start = page.start([row.name for row in chosen.rows])
    if start:
        yield "sites", f"below {start.removesuffix('.')}"
    if chosen.left_out:
        more = f", {chosen.marked_left_out} of them with findings" if chosen.marked_left_out else ""
        yield "left out", f"{counted(chosen.left_out, 'site')}{more}; all are in --format json"
    low, high = log_range([row.branch_ratio for row in chosen.rows])
    yield "bars", f"log r, {number(low)} to {number(high)}; r over time: last captures, oldest left"
    yield "usual", _words.expectations(shown)


def _columns(page: Page) -> Table:
    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    kind, bars, trend = page.flexible
    for heading, width in (("\ndepth", 5), ("\nsite", page.site_width), ("\nkind", kind)):
        right = heading == "\ndepth"
        grid.add_column(
            heading, width=width, justify="right" if right else "left", no_wrap=True,
            overflow="crop",
        )  # fmt: skip
    grid.add_column("\nr", width=7, justify="right", no_wrap=True, overflow="crop")
    grid.add_column("\nlog r", width=bars, no_wrap=True, overflow="crop")
    for heading, width in (("\ncos", 5), ("\ngrowth", 6), ("grad\ngain", 6), ("\ndW/W", 6)):
        grid.add_column(heading, width=width, justify="right", no_wrap=True, overflow="crop")
    grid.add_column("r over\ntime", width=trend, no_wrap=True, overflow="crop")
    return grid


def _site(row: SiteRow, page: Page, ends: tuple[float, float], start: int) -> list[Text]:
    _, bars, trend = page.flexible
    style = "bold yellow" if row.grave else ""
    mark = "!" if row.grave else "i" if row.findings else ""
    written = {name: write(getattr(row, name)) for name, write in _words.WRITTEN.items()}
    ratio, *rest = (written[name] for name in _words.COLUMNS)
    inset = "  " if row.nested else ""
    name = page.name(row.name[start:], page.site_width - len(inset))
    return [
        Text(f"{mark:1}{row.depth:>4}", style),
        Text(inset + name, style),
        Text(row.kind if page.wide else KINDS[row.kind]),
        Text(ratio, style),
        Text(bar(row.branch_ratio, ends, bars, unicode=page.unicode), style or "blue"),
        *(Text(cell) for cell in rest),
        Text(sparkline(row.trend[-trend:], unicode=page.unicode)),
    ]
