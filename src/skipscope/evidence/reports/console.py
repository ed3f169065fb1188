"""A study's verdict for a terminal: the chain first, training before all else, validation last."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from skipscope.evidence.landmarks import LANDMARKS
from skipscope.evidence.outcome import Evidence
from skipscope.evidence.reports import _grids
from skipscope.evidence.verdict import Chain, Comparison, Verdict
from skipscope.reports._layout import LABEL, Page

STYLES = {"shown": "green", "not shown": "bold red", "not applicable": "dim"}
STATE = 15  #: width of the column that says how a link stands


def console(
    evidence: Evidence,
    verdict: Verdict,
    *,
    width: int = 80,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """The verdict as text.

    Args:
        evidence: what was run.
        verdict: what it shows.
        width: columns of the terminal, at least 70.
        color: write ANSI colours; nothing is said by colour alone.
        unicode: False writes plain ASCII.
    """
    page = Page(max(width, 70), unicode, color)
    return "\n".join(page.printed(_sections(evidence, verdict, page))) + "\n"


def _sections(evidence: Evidence, verdict: Verdict, page: Page) -> Iterable[RenderableType]:
    yield page.text(f"skipscope study  {verdict.headline}", "bold")
    yield page.text(evidence.title)
    facts = [(page.name(name, LABEL - 1), said) for name, said in _grids.facts(evidence)]
    yield page.labelled(facts)
    for chain in verdict.chains:
        yield from _chain(chain, page)
    yield from _titled("training", _grids.training(verdict.rows), page)
    yield page.text(_grids.TABLE_NOTE, "dim")
    if verdict.missing:
        yield page.labelled([("no run of", ", ".join(verdict.missing))])
    signals = _grids.signals(evidence)
    if signals.rows:
        yield from _titled("the first steps", signals, page)
        yield page.text(_grids.SIGNALS_NOTE, "dim")
    yield from _titled("learning rates", _grids.rates(verdict.rows), page)
    told = {chain.pair for chain in verdict.chains}
    for compared in verdict.comparisons:
        if compared.pair not in told or len(compared.places[0][1]) > 2:
            yield from _comparison(compared, page)
    yield from _validation(verdict, page)
    yield Text()
    yield page.text("published, not measured here", "bold")
    yield page.text(_grids.LANDMARKS_NOTE, "dim")
    yield page.labelled(
        [(one.kind, f"{one.text} ({one.source}): {one.reading}") for one in LANDMARKS], "dim"
    )


def _chain(chain: Chain, page: Page) -> Iterable[RenderableType]:
    yield Text()
    yield page.text(f"{chain.pair}: {chain.plain} against {chain.residual}", "bold")
    if chain.caution:
        yield page.labelled([("caution", chain.caution)])
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=2, justify="right")
    grid.add_column(width=STATE - 1)
    grid.add_column(width=page.width - STATE - 4, overflow="fold")
    for link in chain.links:
        state = link.answer.state
        said = Text.assemble((page.plain(link.name), "bold"), f": {page.plain(link.answer.reason)}")
        for note in link.answer.notes:
            if note not in link.answer.reason:
                said.append(page.plain(f"\n{note}"), "dim")
        grid.add_row(str(link.number), Text(state, STYLES[state]), said)
    yield grid


def _comparison(compared: Comparison, page: Page) -> Iterable[RenderableType]:
    yield Text()
    yield page.text(f"{compared.pair}: all arms by training loss, lowest first", "bold")
    yield page.text(
        "= is a tie; in brackets: the seeds in which the first is below the second", "dim"
    )
    rows = _grids.order(compared).rows
    yield page.labelled([(f"depth {depth}", f"{order}  ({ahead})") for depth, order, ahead in rows])
    yield page.labelled([("by depth", note) for note in compared.notes])


def _validation(verdict: Verdict, page: Page) -> Iterable[RenderableType]:
    grid = _grids.all_validation(verdict)
    if grid.rows:
        yield from _titled("validation, last", grid, page)
        yield page.text(_grids.VALIDATION_NOTE, "dim")


def _titled(title: str, grid: _grids.Grid, page: Page) -> Iterable[RenderableType]:
    """A table under its title; nothing where it has no rows."""
    if not grid.rows:
        return
    yield Text()
    yield page.text(title, "bold")
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for place, name in enumerate(grid.head):
        table.add_column(name, justify="left" if place < grid.words else "right", overflow="fold")
    before = ""
    for row in grid.rows:
        shown = ("" if row[0] == before else row[0], *row[1:])
        table.add_row(*(page.text(cell) for cell in shown))
        before = row[0]
    yield table
