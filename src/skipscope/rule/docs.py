"""A rule's docstring, taken apart: the advice of a report, `skipscope explain`, the docs page."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence

#: The headings of a rule's docstring, in this order; `Thresholds` names every keyword.
HEADINGS: tuple[str, ...] = (
    "What it sees",
    "Example",
    "Why it matters",
    "What to try",
    "When it is wrong",
    "Thresholds",
    "Source",
)

#: What can be set of every rule.
GATES = {
    "patience": "captures (or recorded steps) in a row, for a finding to appear and to clear",
    "min_steps": "steps that the run must have",
}

#: What stands in for the characters of an example, one for one, where they cannot be shown.
PLAIN = str.maketrans("▁▂▃▄▅▆▇█·─│┌┐└┘├┤┬┴┼", "_.:-=+*# -|+++++++++")

DRAWN = "    "  #: what a line of a drawing begins with


def title(docstring: str) -> str:
    """The first line of a docstring, without its full stop."""
    return inspect.cleandoc(docstring).split("\n", 1)[0].rstrip(".")


def sections(docstring: str) -> dict[str, str]:
    r"""Heading to text, in the order of `HEADINGS`.

    Raises:
        ValueError: a heading is absent.

    >>> text = "T.\n\n" + "\n".join(f"{h}:\n    words" for h in HEADINGS)
    >>> sections(text)["Source"]
    'words'
    """
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in inspect.cleandoc(docstring).splitlines():
        if line.endswith(":") and line[:-1] in HEADINGS:
            current = found.setdefault(line[:-1], [])
        else:
            current.append(line)
    absent = [heading for heading in HEADINGS if heading not in found]
    if absent:
        raise ValueError(f"docstring {title(docstring)!r} lacks the heading(s) {', '.join(absent)}")
    return {heading: inspect.cleandoc("\n" + "\n".join(found[heading])) for heading in HEADINGS}


def thresholds(text: str, defaults: Mapping[str, float]) -> tuple[tuple[str, float, str], ...]:
    r"""Name, default and meaning of what can be set of a rule, each on one line.

    Args:
        text: the section `Thresholds`, whose items are `* name: meaning`.
        defaults: of those, and of the gates.

    >>> thresholds("* above: times its\n  siblings", {"above": 6.0, "min_steps": 0})
    (('above', 6.0, 'times its siblings'), ('min_steps', 0, 'steps that the run must have'))
    """
    said = dict(item.split(": ", 1) for item in bullets(text))
    return tuple((name, value, {**GATES, **said}[name]) for name, value in defaults.items())


def plain(text: str) -> str:
    """The text of an example in ASCII, with every column where it was.

    >>> plain("sick ▁▃█·")
    'sick _:# '
    """
    return text.translate(PLAIN)


def wrapped(text: str, width: int) -> str:
    r"""`text` in lines of at most `width` columns.

    A paragraph or item with a longer line is filled anew; the others stay as they are written, and
    so does what is drawn, which is indented by four.

    >>> wrapped("one two three\nfour\n\n* five six\n  seven", 12).splitlines()
    ['one two', 'three four', '', '* five six', '  seven']
    >>> wrapped("* one two three\n    drawn as it is", 12).splitlines()
    ['* one two', '  three', '    drawn as it is']
    """
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if blocks and line and blocks[-1][-1] and not line.startswith(("* ", DRAWN)):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return "\n".join(_filled(block, width) for block in blocks)


def _filled(block: Sequence[str], width: int) -> str:
    if block[0].startswith(DRAWN) or max(map(len, block)) <= width:
        return "\n".join(block)
    words = " ".join(line.strip() for line in block)
    indent = "  " if words.startswith("* ") else ""
    return textwrap.fill(
        words, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def bullets(text: str) -> tuple[str, ...]:
    r"""The items of a list whose items start with `* `, each on one line.

    >>> bullets("* warm up\n  longer\n* clip")
    ('warm up longer', 'clip')
    """
    items = re.split(r"^\* ", text, flags=re.MULTILINE)[1:]
    return tuple(" ".join(item.split()) for item in items)


def advice(docstring: str) -> tuple[str, ...]:
    """The first three things to try."""
    return bullets(sections(docstring)["What to try"])[:3]
