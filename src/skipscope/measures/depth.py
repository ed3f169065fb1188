"""Measures of a whole stream, or of one stage of it: one number from its block-level sites.

Sums are compared by RMS, so that stages of different shape compare. The depth multiplier alone is
a ratio of raw L2 norms, because it follows one gradient end to end.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from skipscope.measure import Floats, measure

Mask = npt.NDArray[np.bool_]


def _levels(yy: Floats, n: Floats) -> Floats:
    rms: Floats = np.sqrt(yy / n)
    return rms


def _middle(ff: Floats) -> npt.NDArray[np.int64]:
    """Column of the sum at half the depth, in each row.

    The law is about sites that add something. A branch of 0 (frozen or dead behind a zero start, or
    dropped) is no depth: counted in, it would leave one half with fewer summands than the other.
    """
    passed = np.cumsum(ff != 0, axis=1)
    half = np.maximum(passed[:, -1:] // 2, 1)
    middle: npt.NDArray[np.int64] = np.argmax(passed >= half, axis=1)
    return middle


def _half_depth_growth(yy: Floats, n: Floats, ff: Floats) -> Floats:
    rms = _levels(yy, n)
    return rms[:, -1] / rms[np.arange(len(rms)), _middle(ff)]


def _without_largest(yy: Floats, n: Floats, ff: Floats) -> Floats:
    rms = _levels(yy, n)
    later = np.arange(1, rms.shape[1]) > _middle(ff)[:, None]
    each = np.where(later, rms[:, 1:] / rms[:, :-1], 0.0)
    largest = np.where(later.any(axis=1), np.max(each, axis=1), 1.0)
    growth: Floats = _half_depth_growth(yy, n, ff) / largest
    return growth


def _residual_budget(ff: Floats, ss: Floats, counted: Mask) -> Floats:
    if not counted.any():
        return np.full(len(ff), np.nan)
    budget: Floats = np.log1p(ff / ss)[:, counted].sum(axis=1)
    return budget


def _gradient_ratio(gy: Floats, n: Floats) -> Floats:
    rms = np.sqrt(gy / n)
    return rms[:, 0] / rms[:, -1]


@measure("half_depth_growth", "stream", "", "RMS at full depth / at half depth, H", log=True)
def half_depth_growth(yy: Floats, n: Floats, ff: Floats) -> Floats:
    """`H`: at most sqrt(2) under the linear law, more than 2.5 means super-linear growth.

    Half the depth is half of the sites that add something: a branch of 0 does not count.
    """
    return _half_depth_growth(yy, n, ff)


@measure(
    "half_depth_growth_without_largest", "stream", "", "H without its largest site, H'", log=True
)
def half_depth_growth_without_largest(yy: Floats, n: Floats, ff: Floats) -> Floats:
    """`H'`: H over the largest growth from one sum to the next in the second half."""
    return _without_largest(yy, n, ff)


@measure("residual_budget", "stream", "", "sum of ln(1 + r^2), B", log=True)
def residual_budget(ff: Floats, ss: Floats, counted: Mask) -> Floats:
    """`B` without the first site of every stage and the first two behind an embedding."""
    return _residual_budget(ff, ss, counted)


@measure("total_growth", "stream", "", "RMS of last sum / of first input", log=True)
def total_growth(yy: Floats, n: Floats, xx: Floats, n_x: Floats) -> Floats:
    """RMS of the last sum over that of the first site's input."""
    return np.sqrt((yy / n)[:, -1] / (xx / n_x)[:, 0])


@measure("gradient_ratio", "stream", "", "gradient at first / at last sum, G", log=True)
def gradient_ratio(gy: Floats, n: Floats) -> Floats:
    """`G`: RMS of the gradient at the first site's sum over that at the last site's.

    Taken at the sums, so the first site itself stays out of it.
    """
    return _gradient_ratio(gy, n)


@measure("depth_multiplier", "stream", "", "gradient at first input / at last sum", log=True)
def depth_multiplier(gx: Floats, gy: Floats) -> Floats:
    """`|g_x at the first site| / |g_y at the last|`, end to end, raw L2.

    Missing where the first input has no gradient (a raw input). It is one direction of the
    Jacobian, no proof of stability.
    """
    return np.sqrt(gx[:, 0] / gy[:, -1])


@measure("site_multiplier", "stream", "", "depth multiplier: share of the sites", log=True)
def site_multiplier(gx: Floats, gy: Floats) -> Floats:
    """Product of the sites' gradient gains; times `link_multiplier` it is `depth_multiplier`."""
    product: Floats = np.prod(np.sqrt(gx / gy), axis=1)
    return product


@measure("link_multiplier", "stream", "", "depth multiplier: share of the links", log=True)
def link_multiplier(gx: Floats, gy: Floats) -> Floats:
    """Product over links of `|g_y| / |g_x of the next site|`.

    What norms, activations and projections between the sites do; 1 where nothing stands between.
    """
    product: Floats = np.prod(np.sqrt(gy[:, :-1] / gx[:, 1:]), axis=1)
    return product


@measure("depth_factor", "stream", "", "depth multiplier per site")
def depth_factor(gx: Floats, gy: Floats) -> Floats:
    """The n-th root of the depth multiplier over n sites."""
    factor: Floats = np.power(gx[:, 0] / gy[:, -1], 0.5 / gx.shape[1])
    return factor


@measure("stage_half_depth_growth", "stage", "", "H of a stage", log=True)
def stage_half_depth_growth(yy: Floats, n: Floats, ff: Floats) -> Floats:
    """`half_depth_growth` of one stage."""
    return _half_depth_growth(yy, n, ff)


@measure("stage_half_depth_growth_without_largest", "stage", "", "H' of a stage", log=True)
def stage_half_depth_growth_without_largest(yy: Floats, n: Floats, ff: Floats) -> Floats:
    """`half_depth_growth_without_largest` of one stage."""
    return _without_largest(yy, n, ff)


@measure("stage_residual_budget", "stage", "", "B of a stage", log=True)
def stage_residual_budget(ff: Floats, ss: Floats, counted: Mask) -> Floats:
    """`residual_budget` of one stage, without its first site."""
    return _residual_budget(ff, ss, counted)


@measure("stage_gradient_ratio", "stage", "", "G of a stage", log=True)
def stage_gradient_ratio(gy: Floats, n: Floats) -> Floats:
    """`gradient_ratio` of one stage; at the sums, so without its first site."""
    return _gradient_ratio(gy, n)
