"""The rules, in the order in which they look. A rule is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from skipscope.rule import Rule

_FILES = (
    "res101",  # one branch, or all of them, drown the shortcut
    "res103",  # a branch that adds nothing
    "res201",  # the stream grows with depth or with time
    "res901",  # nothing to see, or no longer
)


def _load(file: str) -> Rule:
    found = [value for value in vars(import_module(f"{__name__}.{file}")).values()
             if isinstance(value, Rule)]  # fmt: skip
    if len(found) != 1 or found[0].code.lower() != file:
        raise TypeError(f"rules/{file}.py must hold exactly one rule, with the code of its name")
    return found[0]


#: Code to rule.
RULES: Mapping[str, Rule] = {rule.code: rule for rule in map(_load, _FILES)}
