"""Update sizes over the weight matrices of a model: what tells a hot run from a cold one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Parameter
from skipscope.rule.gates import NotMeasurable

Floats = npt.NDArray[np.float64]

#: Their rows move only when their token occurs.
_SPARSE = ("Embedding", "EmbeddingBag")


def matrices(parameters: Sequence[Parameter]) -> list[Parameter]:
    """The trainable weights with two axes or more, embeddings left out.

    Norms, biases and scales have norms of their own kind; rows of an embedding move only when
    their token occurs.
    """
    return [p for p in parameters if p.trainable and len(p.shape) > 1 and p.owner not in _SPARSE]


def columns(table: Table, chosen: Sequence[Parameter]) -> Floats:
    """The values of some parameters, NaN where not measured. Shape: (rows, parameters).

    Raises:
        NotMeasurable: there are no such parameters, or none of them was measured.
    """
    at = {name: column for column, name in enumerate(table.columns)}
    held = [at[p.name] for p in chosen if p.name in at]
    values: Floats = table.values[:, held]
    if not held or table.missing[:, held].all():
        raise NotMeasurable(f"needs {table.label} of a trainable matrix, never measured")
    return values


def of_own_size(chosen: Sequence[Parameter], weight_rms: Table | None) -> list[Parameter]:
    """Those that start as large as a drawn matrix does; all, where none does or nothing is known.

    The update ratio of the others (zero-initialised modulators, LoRA's second matrices) is held
    against a size that they do not have: it says little about how fast they learn.
    """
    if weight_rms is None:
        return list(chosen)
    at = {name: column for column, name in enumerate(weight_rms.columns)}
    small = set()
    for parameter in chosen:
        column = at.get(parameter.name)
        known = np.zeros(0) if column is None else weight_rms.values[:, column]
        known = known[~np.isnan(known)]
        if len(known) and known[0] < _LEAST * fan_in(parameter) ** -0.5:
            small.add(parameter.name)
    return [p for p in chosen if p.name not in small] or list(chosen)


#: RMS times sqrt(fan_in) below which the update ratio takes this size in the weight's place.
_LEAST = 0.1


def fan_in(parameter: Parameter) -> int:
    """Inputs of one output of a matrix or convolution."""
    return max(math.prod(parameter.shape[1:]), 1)
