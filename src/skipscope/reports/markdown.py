"""The report for TensorBoard's text tab and for a pull request: tables, no HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from skipscope.records import Diagnosis
from skipscope.reports import _words
from skipscope.reports._collect import view
from skipscope.reports._select import Profile, profile
from skipscope.reports._text import plain, sparkline
from skipscope.reports._view import Root, View

if TYPE_CHECKING:
    from skipscope.history import History


#: Columns that hold words, the others hold numbers.
TEXT = ("depth", "site", "number", "expected", "kind", "r over time", "findings")


def markdown(history: History, diagnosis: Diagnosis, *, unicode: bool = True) -> str:
    """The health report as Markdown; `unicode=False` keeps to ASCII."""
    shown = view(history, diagnosis)
    chosen = profile(shown)
    parts = [f"**{_escape(_words.headline(shown))}**"]
    if shown.sites:
        parts.append(f"Watched: {_escape(_words.context(shown))}.")
    parts += [part for root in shown.roots for part in _finding(root)]
    if shown.cleared:
        parts.append(_bullets(_words.cleared(shown, len(shown.cleared))))
    if chosen.rows:
        parts += ["### Profile along depth", _profile(shown, chosen, unicode)]
        if chosen.left_out:
            parts.append(f"{chosen.left_out} sites are not shown; the JSON report has all.")
        parts.append(f"Usual: {_escape(_words.expectations(shown))}.")
    for stream in shown.streams:
        numbers = _numbers(_words.depth_lines(stream))
        parts += [f"### Stream {stream.index}, {stream.sites} sites", numbers]
    parts += ["### Updates", _numbers([_words.update_line(shown)])]
    parts += [_escape(_words.training(shown)) + "."]
    parts += ["### Rules", _bullets([f"passed {_words.passed(shown)}", *_skipped(shown)])]
    unseen = _words.unseen(shown)
    if unseen:
        parts += ["### Not seen", _bullets(unseen)]
    parts += ["### Cost", _escape(_words.cost(shown)) + "."]
    parts += ["### Norms", _bullets(shown.conventions)]
    text = "\n\n".join(parts) + "\n"
    return text if unicode else plain(text)


def _skipped(shown: View) -> list[str]:
    return [f"skipped {line}" for line in _words.skipped(shown)]


def _escape(text: str) -> str:
    """`text` with nothing in it that Markdown or HTML would take for its own."""
    for character in "\\`*_[]|":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(text: str) -> str:
    """A name or a call, shown letter by letter; a pipe would end a table's cell."""
    return f"`{text.replace('`', chr(39)).replace('|', '/')}`" if text else ""


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    marks = ["---" if column in TEXT else "---:" for column in head]
    lines = [head, marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _finding(root: Root) -> list[str]:
    finding = root.finding
    where = ", ".join(_code(place) for place in finding.where[:6])
    more = f" and {len(finding.where) - 6} more" if len(finding.where) > 6 else ""
    severity = _words.SEVERITIES[finding.severity]
    lines = [f"- {_words.since(finding)}"]
    for label, text in _words.details(root):
        literal = label == "more" or (label == "try" and text.startswith("skipscope."))
        lines.append(f"- {label}: {_code(text) if literal else _escape(text)}")
    return [
        f"### {severity} {finding.code} {finding.name}: {where}{more}",
        _escape(finding.message),
        "\n".join(lines),
    ]


def _profile(shown: View, chosen: Profile, unicode: bool) -> str:
    many = len(shown.streams) > 1
    words = {**_words.COLUMNS, "branch_ratio_median": "median r"}
    names = list(_words.WRITTEN)
    head = ["depth", "site", *(words[name] for name in names), "kind", "r over time", "findings"]
    rows = []
    for row in chosen.rows:
        depth = f"{row.stream}.{row.depth}" if many else str(row.depth)
        numbers = [_words.WRITTEN[name](getattr(row, name)) for name in names]
        trend = _code(sparkline(row.trend, unicode=unicode))
        codes = " ".join(row.findings)
        rows.append([depth, _code(row.name), *numbers, row.kind, trend, codes])
    for label, quantiles in chosen.quantiles:
        numbers = [_words.WRITTEN[name](quantiles[name]) for name in names]
        rows.append(["", f"{label} of all", *numbers, "", "", ""])
    return _table(head, rows)


def _numbers(lines: Iterable[_words.Line]) -> str:
    rows = [[_escape(words.strip()), _escape(beside), value] for words, value, beside in lines]
    return _table(["number", "expected", "value"], rows)
