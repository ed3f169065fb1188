"""What to try against a branch that adds nothing, by what keeps it so."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

#: What biases are called: a branch with its bias at 0 still gets a gradient.
_BIAS = re.compile(r".*bias\w*|b\d*|beta|shift")

_TEXTS = {
    "frozen": "if it is meant to train: requires_grad_(True) before the optimizer is built",
    "in no optimizer group": "put every parameter of the branch into an optimizer group (a name or "
    "shape filter often leaves scalars out): "
    'optimizer.add_param_group({"params": [model.get_parameter(name) for name in NAMES]})',
    "lr 0": "give its optimizer group a learning rate above 0",
    "both factors zero": "leave one factor of the branch at 0, the last one, and draw the others "
    "again, by their initialisation or: ",
    "no gradient": "look for what cuts the branch off (detach, no_grad), for a factor of 0 that is "
    "no parameter, and for a ReLU behind a last weight that is 0",
    "starved": "raise the branch's coefficient to about 1/sqrt(depth), or its learning rate, and "
    "leave weight decay off its scales",
    "held small": "raise the branch's coefficient to about 1/sqrt(depth), or its learning rate",
}


_DRAW = "for name in {}: torch.nn.init.kaiming_uniform_(model.get_parameter(name), a=5**0.5)"
_OPEN = "for name in {}: torch.nn.init.ones_(model.get_parameter(name))"


def is_bias(parameter: str) -> bool:
    """Whether a parameter is added and multiplies nothing, as its name tells.

    >>> is_bias("0.norm.bias"), is_bias("attn.in_proj_bias"), is_bias("0.norm.weight")
    (True, True, False)
    """
    return _BIAS.fullmatch(parameter.rpartition(".")[2]) is not None


def dead_advice(
    kind: str, blamed: Iterable[Sequence[str]], matrices: Collection[str]
) -> tuple[str, ...]:
    """What to try; empty where the cause asks for nothing of its own.

    Args:
        kind: of cause, as RES103 names it.
        blamed: the parameters that are, of each branch.
        matrices: which parameters have two dimensions or more.

    >>> dead_advice("both factors zero", [["0.a", "0.b"], ["1.b", "1.gate"]], {"0.a", "0.b", "1.b"})
    ... # doctest: +ELLIPSIS
    ("leave ... by their initialisation or: for name in ['0.a', '1.b']: torch.nn.init...",)
    """
    branches = [list(names) for names in blamed]
    text = _TEXTS.get(kind, "")
    if kind != "both factors zero":
        names = [name for names in branches for name in names]
        return (text.replace("NAMES", repr(names)),) if text else ()
    again = [name for names in branches for name in _again(names, matrices)]
    drawn = [name for name in again if name in matrices]
    gates = [name for name in again if name not in matrices]
    lines = [line.format(names) for line, names in ((_DRAW, drawn), (_OPEN, gates)) if names]
    return (text + lines[0], *lines[1:])


def _again(zero: Sequence[str], matrices: Collection[str]) -> list[str]:
    """Of the factors that are 0 all but the last: a gate or a norm's weight, else a matrix."""
    last = ([name for name in zero if name not in matrices] or list(zero))[-1]
    return [name for name in zero if name != last]
