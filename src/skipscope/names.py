"""Names and numbers in a message: what comes near a wrong name, a number with its noun."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any

MOST = 8  #: names that are listed where none comes near


def near(name: str, known: Iterable[str], also: Iterable[str] = ()) -> str:
    """The tail of an error message that lists what comes near a wrong name.

    Where nothing does, it lists the first ones and how many more there are: where to see all of
    them is said by who knows it. `also` are second names of the same things: not listed again.

    >>> near("Abve", ["above", "reach"])
    '; did you mean above?'
    >>> near("zz", ["R1"], also=["above"]), near("abov", ["R1"], also=["above"])
    ('; known: R1', '; did you mean above?')
    >>> near("zz", ["above", "reach"]), near("zz", map(str, range(20)))
    ('; known: above, reach', '; known: 0, 1, 10, 11, 12, 13, 14, 15 and 12 more')
    """
    names = sorted(known)
    written = {one.lower(): one for one in (*names, *also)}
    close = difflib.get_close_matches(name.lower(), written, n=3, cutoff=0.6)
    if close:
        return f"; did you mean {' or '.join(written[one] for one in close)}?"
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"; known: {', '.join(names[:MOST]) or 'none'}{more}"


def check_list(argument: str, given: Any) -> None:
    """Whether an argument is a list (or tuple, or set) of names.

    Raises:
        ValueError: it is none, or holds what is no name; the message names the argument.
    """
    if isinstance(given, str):
        raise ValueError(
            f"{argument} must be a list of strings, got the string {given!r}; write [{given!r}]"
        )
    if not isinstance(given, Collection):
        raise ValueError(
            f"{argument} must be a list of strings, got {given!r}; write its names in [ ]"
        )
    for each in given:
        if not isinstance(each, str) or not each.strip():
            raise ValueError(
                f"{argument} must be a list of strings that name something, got {each!r} in it; "
                "take it out, or write the name it stands for"
            )


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "site"), counted(0, "warning"), counted(2, "branch", "branches")
    ('1 site', '0 warnings', '2 branches')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def a_kind(value: object) -> str:
    """The class of a value with its article.

    >>> [a_kind(one) for one in (3, "x", (1,), None)]
    ['an int', 'a str', 'a tuple', 'None']
    >>> [a_kind(type(name, (), {})()) for name in ("UNet", "MLP", "SGD", "Sequential", "Adam")]
    ['a UNet', 'an MLP', 'an SGD', 'a Sequential', 'an Adam']
    """
    if value is None:
        return "None"
    name = type(value).__name__
    spelled = name[:1] in "FHLMNRSX" and name[1:2].isupper()  # letter by letter: "an MLP"
    return f"a{'n' * (spelled or name[:1] in 'AEIOaeio')} {name}"
