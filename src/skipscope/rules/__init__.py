"""The rules, in the order in which they look. A rule is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from skipscope.rule import Rule

_FILES = (
    "res001",  # a loss that never left its start
    "res101",  # one branch, or all of them, drown the shortcut
    "res102",  # a stream that starts small against its first branches
    "res103",  # a branch that adds nothing
    "res104",  # trainable parameters that training leaves out
    "res105",  # a start far from the identity
    "res201",  # the stream grows with depth or with time
    "res202",  # a stream that drifts away from mean 0
    "res203",  # late branches that hardly change the stream
    "res204",  # branches that can only add
    "res205",  # rows of the stream that have become one
    "res206",  # branches that cancel what the stream holds
    "res301",  # early blocks get far less, or far more, gradient
    "res302",  # a post-norm stack whose gradients collapse
    "res303",  # steps whose gradient is far above those before
    "res304",  # a shortcut that passes no gradient back
    "res401",  # steps too large for the weights
    "res402",  # steps too small to change anything
    "res403",  # steps that 16-bit weights round away
    "res404",  # weights that move without a gradient
    "res501",  # a shortcut that maps or scales for no reason
    "res502",  # operands of different shapes
    "res503",  # a block without its addition, or with two
    "res504",  # a norm or activation on the main path
    "res505",  # one block, called again and again
    "res506",  # the shortcut is dropped, not the branch
    "res507",  # a shortcut that is no longer x
    "res901",  # nothing to see, or no longer
    "res902",  # NaN or infinity, and where it comes from
    "res903",  # the monitor's own price
)


def _load(file: str) -> Rule:
    found = [value for value in vars(import_module(f"{__name__}.{file}")).values()
             if isinstance(value, Rule)]  # fmt: skip
    if len(found) != 1 or found[0].code.lower() != file:
        raise TypeError(f"rules/{file}.py must hold exactly one rule, with the code of its name")
    return found[0]


#: Code to rule.
RULES: Mapping[str, Rule] = {rule.code: rule for rule in map(_load, _FILES)}
