"""A study's verdict for a pull request or a README: tables, no HTML."""

from __future__ import annotations

from collections.abc import Iterable

from skipscope.evidence.outcome import Evidence
from skipscope.evidence.reports import _grids
from skipscope.evidence.verdict import Chain, Comparison, Verdict
from skipscope.reports._text import plain, visible


def markdown(evidence: Evidence, verdict: Verdict, *, unicode: bool = True) -> str:
    """The verdict as Markdown; `unicode=False` keeps to ASCII."""
    parts = [f"# {_escape(evidence.title)}", f"**{_escape(verdict.headline)}**"]
    parts.append(_bullets(f"{name}: {value}" for name, value in _grids.facts(evidence)))
    for chain in verdict.chains:
        parts += _chain(chain)
    for title, grid, note in _grids.before_validation(evidence, verdict):
        parts += [f"## {title}", _table(grid), *([_escape(note)] if note else [])]
    if verdict.missing:
        parts.append(f"No run of: {_escape(', '.join(verdict.missing))}.")
    for compared in verdict.comparisons:
        parts += _comparison(compared)
    held_out = _grids.all_validation(verdict)
    if held_out.rows:
        parts += ["## Validation, last", _table(held_out), _escape(_grids.VALIDATION_NOTE)]
    parts += ["## Arms", _table(_grids.arms(evidence))]
    parts += ["## Published, not measured here", _escape(_grids.LANDMARKS_NOTE)]
    parts.append(_table(_grids.landmarks()))
    text = "\n\n".join(parts) + "\n"
    return text if unicode else plain(text)


def _chain(chain: Chain) -> list[str]:
    title = f"## {_escape(chain.pair)}: {_escape(chain.plain)} against {_escape(chain.residual)}"
    parts = [title]
    if chain.caution:
        parts.append(f"Caution: {_escape(chain.caution)}.")
    parts.append(_table(_grids.links(chain)))
    notes = [
        f"{link.name}: {note}"
        for link in chain.links
        for note in link.answer.notes
        if note not in link.answer.reason
    ]
    return [*parts, _bullets(notes)] if notes else parts


def _comparison(compared: Comparison) -> list[str]:
    title = f"## {_escape(compared.pair)}: all arms"
    return [title, _table(_grids.order(compared)), _bullets(compared.notes)]


def _escape(text: str) -> str:
    """`text` with nothing in it that Markdown or HTML would take for its own."""
    text = visible(text)
    for character in "\\`*_[]|#~":
        text = text.replace(character, f"\\{character}")
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return " ".join(escaped.split())


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)


def _table(grid: _grids.Grid) -> str:
    marks = ["---" if place < grid.words else "---:" for place in range(len(grid.head))]
    lines = [[_escape(cell) for cell in line] for line in (grid.head, *grid.rows)]
    lines.insert(1, marks)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
