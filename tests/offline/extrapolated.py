"""Histories for extrapolation: branches of one size, of one ratio, with weights at the start."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from skipscope.extrapolation import extrapolate
from skipscope.extrapolation.records import StageAt
from skipscope.history import History
from skipscope.records import Parameter
from tests.offline.builders import (
    add_updates,
    make_history,
    make_map,
    make_parameter,
    make_site,
)

L = 24


def stage_of(history: History, *depths: str | int) -> StageAt:
    (moment,) = extrapolate(history, *depths).numbers.moments
    return moment.streams[0].stages[0]


def normalised(a: float, sites: int = L) -> np.ndarray[Any, Any]:
    """r of branches of one size: x_0 has mean square a, every branch 1."""
    return 1 / np.sqrt(np.arange(sites) + a)


def unnormed(r: npt.ArrayLike, **changes: Any) -> History:
    """Sites whose branches read the stream without a norm."""
    sites = make_map(*(make_site(k, norm_placement="none") for k in range(np.shape(r)[-1])))
    return make_history(r, **{"sites": sites, **changes})


def weights(
    history: History,
    last: npt.ArrayLike = 0.25,
    other: npt.ArrayLike = 0.25,
    inputs: int = 16,
    factor: float | None = None,
) -> History:
    """Two matrices a branch with these RMS at step 0; the last has so many inputs.

    Of 16 inputs, matrices of RMS 0.25 keep the size of what they read. `factor` is that of a
    `branch_scale`.
    """
    parameters: list[Parameter] = []
    norms: list[float] = []
    count = len(history.sites.sites)
    for site in range(count):
        for name, shape, rms in (
            ("fc1", (inputs, 16), np.broadcast_to(other, count)[site]),
            ("fc2", (16, inputs), np.broadcast_to(last, count)[site]),
            *([("fc2.branch_scale", (), factor)] if factor is not None else []),
        ):
            parameters.append(
                make_parameter(
                    len(parameters), name=f"blocks.{site}.{name}", shape=shape, role=name,
                    sites=(site,), block=f"blocks.{site}",
                )
            )  # fmt: skip
            norms.append(rms * math.sqrt(math.prod(shape)))
    return add_updates(history, weight=np.array(norms), parameters=tuple(parameters))


def text_of(history: History, *depths: str) -> str:
    return " ".join(str(extrapolate(history, *depths)).split())
