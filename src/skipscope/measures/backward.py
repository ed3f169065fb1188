"""Backward measures of a site: gradients at sum and input, and the two parts of the latter.

Gradients at a head of zeros are all 0 (a DiT's first step): their ratios are then undefined, and
so missing, neither NaN nor 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from skipscope.measure import Floats, measure


@measure("grad_sum_norm", "site", "L2", "gradient at the sum", log=True)
def grad_sum_norm(gy: Floats) -> Floats:
    """`|g_y|`, raw: it depends on batch, loss reduction and loss scale."""
    return np.sqrt(gy)


@measure("grad_input_norm", "site", "L2", "gradient at the input", log=True)
def grad_input_norm(gx: Floats) -> Floats:
    """`|g_x|`, raw, every reader of x included."""
    return np.sqrt(gx)


@measure("gradient_gain", "site", "", "gradient at input / at sum", log=True)
def gradient_gain(gx: Floats, gy: Floats) -> Floats:
    """`|g_x| / |g_y|`."""
    return np.sqrt(gx / gy)


@measure("branch_gradient", "site", "L2", "gradient through the branch", log=True)
def branch_gradient(gb: Floats) -> Floats:
    """Norm of what flows to x through the branch."""
    return np.sqrt(gb)


@measure("identity_gradient", "site", "L2", "gradient through the shortcut", log=True)
def identity_gradient(gi: Floats) -> Floats:
    """Norm of what flows to x through the shortcut."""
    return np.sqrt(gi)


@measure("gradient_branch_ratio", "site", "", "branch / identity part of the gradient, b", log=True)
def gradient_branch_ratio(gb: Floats, gi: Floats) -> Floats:
    """`b`; infinite where nothing flows through the shortcut."""
    return np.sqrt(gb / gi)


@measure("gradient_cosine", "site", "", "cosine of the two gradient parts")
def gradient_cosine(gib: Floats, gi: Floats, gb: Floats) -> Floats:
    """Cosine of identity part and branch part: do they reinforce or cancel?"""
    bounded: Floats = np.clip(gib / (np.sqrt(gi) * np.sqrt(gb)), -1.0, 1.0)  # rounding
    return bounded


@measure("shortcut_presence", "site", "", "presence of the shortcut in the gradient, a")
def shortcut_presence(
    gxy: Floats,
    gy: Floats,
    s: Floats,
    ss: Floats,
    n: Floats,
    x: Floats,
    xx: Floats,
    n_x: Floats,
    kind: npt.NDArray[Any],
) -> Floats:
    """`a = <g_x, alpha g_y> / |alpha g_y|^2`: about 1 where intact, near 0 where detached.

    The shortcut is `s = alpha*x`; alpha is 1 for an identity and else taken from the forward, so
    that a detached shortcut is held against what it should pass on. Missing at a projection.
    """
    size = np.sqrt((ss / n) / (xx / n_x)) * np.where(s * x < 0, -1.0, 1.0)
    alpha = np.where(kind == "identity", 1.0, size)
    return np.where(kind == "projection", np.nan, gxy / (alpha * gy))
