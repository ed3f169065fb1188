"""What to try against a branch that adds nothing, by what keeps it so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

_TEXTS = {
    "frozen": "if it is meant to train: requires_grad_(True) before the optimizer is built",
    "in no optimizer group": "put every parameter of the branch into an optimizer group (a name or "
    "shape filter often leaves scalars out): "
    'optimizer.add_param_group({"params": [model.get_parameter(name) for name in NAMES]})',
    "lr 0": "give its optimizer group a learning rate above 0",
    "both factors zero": "leave one factor of the branch at 0, the last one, and draw the others "
    "again, by their initialisation or: for name in DRAWN: "
    "torch.nn.init.kaiming_uniform_(model.get_parameter(name), a=5**0.5)",
    "no gradient": "look for what cuts the branch off (detach, no_grad), for a factor of 0 that is "
    "no parameter, and for a ReLU behind a last weight that is 0",
    "starved": "raise the branch's coefficient to about 1/sqrt(depth), or its learning rate, and "
    "leave weight decay off its scales",
    "held small": "raise the branch's coefficient to about 1/sqrt(depth), or its learning rate",
}


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
    drawn = [name for names in branches for name in _drawn(names, matrices)]
    names = [name for names in branches for name in names]
    text = _TEXTS.get(kind, "").replace("NAMES", repr(names)).replace("DRAWN", repr(drawn))
    return (text,) if text else ()


def _drawn(zero: Sequence[str], matrices: Collection[str]) -> list[str]:
    """Of the factors that are 0 those to draw again: matrices, and not what must stay the last."""
    found = [name for name in zero if name in matrices]
    return found if len(found) < len(zero) else found[:-1]
