"""What a measure is: a numpy formula over the sums of a history, with its name, unit and label.

A measure is a function whose parameters name what it needs (see `INPUTS`); `tabulate` hands it the
arrays, with NaN where something was not measured, and works out what is missing in the result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from skipscope.records import (
    FACTS,
    HAVE_FORWARD,
    HAVE_GRAD,
    HAVE_GRADIENT,
    HAVE_INPUT,
    HAVE_INPUT_GRAD,
    HAVE_SPLIT,
    HAVE_UPDATE,
    HAVE_WEIGHT,
    SUMS,
)

Floats = npt.NDArray[np.float64]
Axis = Literal["site", "stream", "stage", "parameter", "block", "branch", "step"]

_INPUT = ("n_x", "x", "xx", "max_x", "influence")
#: Bits of the `have` mask without which a field of a site is not measured.
SITE_NEEDS: Mapping[str, int] = {
    **dict.fromkeys((field.name for field in SUMS), HAVE_FORWARD),
    **dict.fromkeys(_INPUT, HAVE_FORWARD | HAVE_INPUT),
    "gy": HAVE_GRAD,
    "gx": HAVE_INPUT_GRAD,
    "gxy": HAVE_GRAD | HAVE_INPUT_GRAD,
    **dict.fromkeys(("gi", "gb", "gib"), HAVE_SPLIT),
}
#: The same for the fields of a parameter; `reference` is `max(|W|^2, .01*numel/fan_in)`.
PARAMETER_NEEDS: Mapping[str, int] = {
    **dict.fromkeys(("n", "ww", "reference"), HAVE_WEIGHT),
    "gg": HAVE_GRADIENT,
    **dict.fromkeys(("dd", "changed"), HAVE_UPDATE),
}
_SITE = frozenset(SITE_NEEDS)
_PARAMETER = frozenset(PARAMETER_NEEDS)
#: What a measure's function may ask for, by axis: sums are (rows, columns); `kind` is the kind of
#: each site, (columns,); `counted` tells which sites of a chain a residual budget takes in,
#: (columns,). For a stream or stage the columns are its block-level sites along depth; for a block
#: or branch they are blocks or sites, each sum added up over the parameters measured. Step facts
#: are (steps,), `lr` is (steps, groups).
INPUTS: Mapping[str, frozenset[str]] = {
    "site": _SITE | {"kind"},
    "stream": _SITE | {"counted"},
    "stage": _SITE | {"counted"},
    "parameter": _PARAMETER,
    "block": _PARAMETER,
    "branch": _PARAMETER,
    "step": frozenset(field.name for field in FACTS) | {"lr"},
}


@dataclass(frozen=True)
class Measure:
    """A formula with its name; `tabulate.compute` applies it."""

    name: str
    axis: Axis  #: what the columns of its table are
    unit: str  #: "" where dimensionless
    label: str  #: a few words for a table's head
    log: bool  #: a logarithmic scale shows it best
    function: Callable[..., Any]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of what the function takes."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def doc(self) -> str:
        """The function's docstring."""
        return inspect.getdoc(self.function) or ""


def measure(
    name: str, axis: Axis, unit: str, label: str, log: bool = False
) -> Callable[[Callable[..., Any]], Measure]:
    """Make a function a measure.

    Raises:
        TypeError: the function asks for something that its axis does not have.

    >>> @measure("share", "site", "", "share of zero samples")
    ... def share(zero_f, samples):
    ...     return zero_f / samples
    >>> share.inputs
    ('zero_f', 'samples')
    """
    if axis not in get_args(Axis):
        raise TypeError(f"measure {name}: no axis {axis!r}, only {', '.join(get_args(Axis))}")

    def declare(function: Callable[..., Any]) -> Measure:
        made = Measure(name, axis, unit, label, log, function)
        if unknown := [wanted for wanted in made.inputs if wanted not in INPUTS[axis]]:
            raise TypeError(f"measure {name}: axis {axis!r} has no {', '.join(unknown)}")
        return made

    return declare


def collect(*modules: ModuleType) -> dict[str, Measure]:
    """The measures that modules define, by name, in their order.

    Raises:
        ValueError: two have one name.
    """
    found: dict[str, Measure] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, Measure):
                if value.name in found:
                    raise ValueError(f"{module.__name__}: there is a measure {value.name} already")
                found[value.name] = value
    return found
