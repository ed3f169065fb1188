"""How the last matrix of each branch starts, against the others: was it scaled with depth?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Parameter
from skipscope.rule.siblings import Stage, of_branch, parameter_role

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class OutputMatrices:
    """RMS at the start of the matrices of a stage's branches."""

    last: dict[str, float]  #: role of a branch's last matrix to their median RMS
    names: dict[str, tuple[str, ...]]  #: role to parameters
    others: Floats  #: RMS of the matrices before it
    widths: frozenset[int]  #: inputs of one output, over all of them

    @property
    def usual(self) -> float:
        """The median RMS of the matrices that are not last."""
        return float(np.median(self.others))

    @property
    def one_scale(self) -> bool:
        """Whether the others all start at one standard deviation."""
        return bool(np.all(np.abs(self.others / self.usual - 1) < _NEAR))

    def at(self, factor: float) -> list[str]:
        """The roles whose last matrices start at `factor` times the usual RMS."""
        return [
            role for role, rms in self.last.items() if abs(rms / (factor * self.usual) - 1) < _NEAR
        ]


#: RMS of a drawn matrix against the standard deviation it was drawn with.
_NEAR = 0.1


def output_matrices(
    stage: Stage, parameters: Sequence[Parameter], weight_rms: Table
) -> OutputMatrices | None:
    """Read them at step 0; None where a branch of several matrices was not measured then."""
    if not len(weight_rms.steps) or weight_rms.steps[0] != 0:
        return None
    start = {
        name: float(value)
        for name, value in zip(weight_rms.columns, weight_rms.values[0], strict=True)
        if np.isfinite(value) and value > 0
    }
    roles: dict[str, list[Parameter]] = {}
    others: list[float] = []
    widths = set()
    for site in stage.sites:
        branch = [p for p in of_branch(site, parameters) if len(p.shape) == 2 and p.name in start]
        if not branch:
            continue
        *before, last = sorted(branch, key=lambda parameter: parameter.index)
        roles.setdefault(parameter_role(last), []).append(last)
        others += [start[p.name] for p in before]
        widths |= {p.shape[1] for p in branch}
    if not others:
        return None
    medians = {
        role: float(np.median([start[p.name] for p in held])) for role, held in roles.items()
    }
    names = {role: tuple(p.name for p in held) for role, held in roles.items()}
    return OutputMatrices(medians, names, np.array(others), frozenset(widths))
