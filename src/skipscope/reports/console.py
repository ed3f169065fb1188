"""The report for a terminal or a log file, at any width, with or without colour and Unicode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from skipscope.names import counted
from skipscope.records import Diagnosis
from skipscope.reports import _looked, _words
from skipscope.reports._collect import view
from skipscope.reports._layout import Page
from skipscope.reports._profile import captions, profile_grid
from skipscope.reports._select import MANY, profile
from skipscope.reports._text import listed
from skipscope.reports._view import Root, View

if TYPE_CHECKING:
    from skipscope.history import History

SCREEN = 50  #: lines that the report of a deep network fills at most
CLEARED = 4  #: lines for findings that have ended
SHORT = 12  #: sites that a report without errors and warnings shows
STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}


def console(
    history: History,
    diagnosis: Diagnosis,
    *,
    width: int = 80,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """The health report as text: verdict, findings, profile along depth, numbers, fine print.

    Args:
        history: what was recorded.
        diagnosis: what the rules say of it.
        width: columns of the terminal, at least 70.
        color: write ANSI colours; nothing is said by colour alone.
        unicode: False writes plain ASCII.
    """
    shown = view(history, diagnosis)
    page = Page(max(width, 70), unicode, color)
    deep = len(shown.block_level) >= MANY
    top = page.printed(_top(shown, page, deep))
    rest = page.printed(_rest(shown, page, deep))
    ended = _cleared(shown, page, 1 if deep else CLEARED)
    room = SCREEN - len(top) - len(ended) - len(rest) if deep else None
    return "\n".join([*top, *_findings(shown.roots, page, room), *ended, *rest]) + "\n"


def _top(shown: View, page: Page, deep: bool) -> Iterable[RenderableType]:
    yield page.text(_words.headline(shown), "bold")
    watched = _words.context(shown)
    if watched:
        yield page.labelled([("watched", watched)], most=1 if deep else 2)


def _cleared(shown: View, page: Page, most: int) -> list[str]:
    """What has ended since the last report, a line each."""
    lines = [page.clipped(line, page.width, 1) for line in _words.cleared(shown, most)]
    return page.printed([Text(), *(Text(line, "dim") for line in lines)]) if lines else []


def _findings(roots: Sequence[Root], page: Page, room: int | None) -> list[str]:
    """A block for each root.

    Where the screen is short, the gravest has as much of its block as fits, the others their head,
    then their message, then the rest; how many were left out stands below.
    """
    if room is None:
        return _spaced([_block(root, page)[-1] for root in roots])
    blocks = [_block(root, page, most=2) for root in roots]
    spare = min(len(roots) - 1, 1)  # the head of the next one, or the line that counts them
    shown: list[list[str]] = []
    for variant in blocks[0] if blocks else ():
        if not shown or len(_spaced([variant])) + spare <= room:
            shown = [variant]
    for head, *_ in blocks[1:]:
        if len(_spaced([*shown, head])) < room:
            shown.append(head)
    for richness in (1, -1):
        for at in range(1, len(shown)):
            trial = [*shown[:at], blocks[at][richness], *shown[at + 1 :]]
            if len(_spaced(trial)) < room:
                shown = trial
    left = Counter(root.finding.code for root in roots[len(shown) :])
    if not left:
        return _spaced(shown)
    codes = listed([f"{count} {code}" for code, count in left.items()], 3)
    return [*_spaced(shown), f"and {left.total()} more: {codes}; --format markdown has them all"]


def _block(root: Root, page: Page, most: int | None = None) -> list[list[str]]:
    """A finding as lines, from its head alone to all that is known of it.

    Args:
        root: the finding.
        page: where it is printed.
        most: lines that its message and each detail may take.
    """
    head = page.printed([_head(root, page)])
    message = page.clipped(root.finding.message, page.width - 2, most)
    told = head + page.printed([Padding(Text(message), (0, 0, 0, 2))])
    if root.finding.severity == "info":
        return [head, told]
    details = [(f"  {label}", text) for label, text in _words.details(root)]
    short, full = (page.printed([page.labelled(details, most=lines)]) for lines in (1, most))
    return [head, told, told + short, told + full]


def _spaced(blocks: Sequence[Sequence[str]]) -> list[str]:
    """Blocks one below the other, a blank line before and after each one of several lines."""
    lines: list[str] = []
    before = 2
    for block in blocks:
        if before > 1 or len(block) > 1:
            lines.append("")
        lines += block
        before = len(block)
    return lines


def _head(root: Root, page: Page) -> Text:
    """Severity, code, name, where, since when: one line."""
    finding = root.finding
    head = f"{_words.SEVERITIES[finding.severity]} {finding.code} {finding.name}"
    when = _words.since(root.finding)
    room = page.width - len(head) - len(when) - 4
    where = page.name(listed(finding.where, 3), max(room, 8))
    gap = max(page.width - len(head) - 2 - len(where) - len(when), 2)
    style = STYLES[finding.severity]
    return Text.assemble((page.plain(head), style), "  ", (where, "bold"), " " * gap, when)


def _rest(shown: View, page: Page, deep: bool) -> Iterable[RenderableType]:
    chosen = profile(shown, most=SHORT if shown.calm else MANY - 1)
    if chosen.rows:
        yield Text()
        yield profile_grid(chosen, page)
        yield page.labelled(captions(shown, chosen, page), "dim")
    yield Text()
    if not shown.calm and not deep:
        yield _numbers(shown, page)
        yield Text()
    numbers = _words.in_short(shown, 1 if deep else 2) if shown.calm or deep else []
    passed = ("passed", _looked.passed(shown))
    yield page.labelled([*numbers, ("training", _words.training(shown)), passed])
    yield page.labelled(_fine_print(shown, 2 if deep else 4), most=1 if deep else None)
    cost = ("cost", _words.cost(shown))
    yield page.labelled([cost, ("norms", "; ".join(shown.conventions))], "dim")


def _numbers(shown: View, page: Page) -> Table:
    """The depth numbers and the updates, each beside what was expected of it."""
    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    name_width = 48 if page.wide else 30
    grid.add_column("along depth", width=name_width, no_wrap=True, overflow="crop")
    grid.add_column("", width=7, justify="right", no_wrap=True, overflow="crop")
    grid.add_column("expected", width=page.width - name_width - 9, overflow="fold")
    streams = sorted(shown.streams, key=lambda one: -one.sites)
    lines: list[_words.Line] = []
    for stream in streams[:3]:
        if len(streams) > 1:
            lines.append((f"stream {stream.index}, {counted(stream.sites, 'site')}", "", ""))
        lines += _words.depth_lines(stream)
    if len(streams) > 3:
        lines.append((f"and {len(streams) - 3} shorter streams", "", ""))
    for words, value, expected in [*lines, _words.update_line(shown)]:
        grid.add_row(page.name(words, name_width), value, page.text(expected))
    return grid


def _fine_print(shown: View, most: int) -> Iterable[tuple[str, str]]:
    if shown.in_part:
        yield "in part", _looked.in_part(shown)
    yield from _first("skipped", _looked.skipped(shown), most)
    yield from _first("not seen", _words.unseen(shown), most)


def _first(label: str, lines: Sequence[str], most: int) -> Iterable[tuple[str, str]]:
    """The first lines, and how many there are besides."""
    kept = most if len(lines) <= most else most - 1
    for line in lines[:kept]:
        yield label, line
    if len(lines) > kept:
        yield label, f"and {len(lines) - kept} more: skipscope report RUN --format json"
