"""The report for TensorBoard's text tab and for a pull request: tables, no HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from skipscope.names import counted
from skipscope.records import Diagnosis
from skipscope.reports import _looked, _words
from skipscope.reports._collect import view
from skipscope.reports._marks import bullets, code, escape, table
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
    parts = [f"**{escape(_words.headline(shown))}**"]
    watched = _words.context(shown)
    if watched:
        parts.append(f"Watched: {escape(watched)}.")
    parts += [part for root in shown.roots for part in _finding(root)]
    if shown.cleared:
        parts.append(bullets(_words.cleared(shown, len(shown.cleared))))
    if chosen.rows:
        parts += ["### Profile along depth", _profile(shown, chosen, unicode)]
        if chosen.left_out:
            parts.append(
                f"{counted(chosen.left_out, 'site')} left out here; the JSON report has all."
            )
        parts.append(f"Usual: {escape(_words.expectations(shown))}.")
    for stream in shown.streams:
        numbers = _numbers(_words.depth_lines(stream))
        parts += [f"### Stream {stream.index}, {counted(stream.sites, 'site')}", numbers]
    parts += ["### Updates", _numbers([_words.update_line(shown)])]
    parts += [escape(_words.training(shown)) + "."]
    parts += ["### Rules", bullets([f"passed {_looked.passed(shown)}", *_skipped(shown)])]
    unseen = _words.unseen(shown)
    if unseen:
        parts += ["### Not seen", bullets(unseen)]
    parts += ["### Cost", escape(_words.cost(shown)) + "."]
    parts += ["### Norms", bullets(shown.conventions)]
    text = "\n\n".join(parts) + "\n"
    return text if unicode else plain(text)


def _skipped(shown: View) -> list[str]:
    part = [f"in part {line}" for line in _looked.reasons(shown.in_part)]
    return [*part, *(f"skipped {line}" for line in _looked.skipped(shown))]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return table(head, rows, [column in TEXT for column in head])


def _finding(root: Root) -> list[str]:
    finding = root.finding
    where = ", ".join(code(place) for place in finding.where[:6])
    more = f" and {len(finding.where) - 6} more" if len(finding.where) > 6 else ""
    severity = _words.SEVERITIES[finding.severity]
    lines = [f"- {_words.since(finding)}"]
    for label, text in _words.details(root):
        literal = label == "more" or (label == "try" and text.startswith("skipscope."))
        lines.append(f"- {label}: {code(text) if literal else escape(text)}")
    return [
        f"### {severity} {finding.code} {finding.name}: {where}{more}",
        escape(finding.message),
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
        trend = code(sparkline(row.trend, unicode=unicode))
        codes = " ".join(row.findings)
        rows.append([depth, code(row.name), *numbers, row.kind, trend, codes])
    for label, quantiles in chosen.quantiles:
        numbers = [_words.WRITTEN[name](quantiles[name]) for name in names]
        rows.append(["", f"{label} of all", *numbers, "", "", ""])
    return _table(head, rows)


def _numbers(lines: Iterable[_words.Line]) -> str:
    rows = [[escape(words.strip()), escape(beside), value] for words, value, beside in lines]
    return _table(["number", "expected", "value"], rows)
