"""Levels of a site's operands: RMS, mean, standard deviation and largest magnitude.

A standard deviation comes from `sum of squares / n - mean^2` in float64, clipped at 0.
"""

from __future__ import annotations

import numpy as np

from skipscope.measure import Floats, measure


def _std(total: Floats, squares: Floats, n: Floats) -> Floats:
    return np.sqrt(np.maximum(squares / n - np.square(total / n), 0.0))


@measure("rms_shortcut", "site", "RMS", "shortcut", log=True)
def rms_shortcut(ss: Floats, n: Floats) -> Floats:
    """Root mean square of the shortcut."""
    return np.sqrt(ss / n)


@measure("rms_branch", "site", "RMS", "branch", log=True)
def rms_branch(ff: Floats, n: Floats) -> Floats:
    """Root mean square of the branch, as added."""
    return np.sqrt(ff / n)


@measure("rms_sum", "site", "RMS", "sum", log=True)
def rms_sum(yy: Floats, n: Floats) -> Floats:
    """Root mean square of the sum."""
    return np.sqrt(yy / n)


@measure("rms_input", "site", "RMS", "input", log=True)
def rms_input(xx: Floats, n_x: Floats) -> Floats:
    """Root mean square of the block's input."""
    return np.sqrt(xx / n_x)


@measure("mean_shortcut", "site", "", "mean of shortcut")
def mean_shortcut(s: Floats, n: Floats) -> Floats:
    """Mean of the shortcut."""
    return s / n


@measure("mean_branch", "site", "", "mean of branch")
def mean_branch(f: Floats, n: Floats) -> Floats:
    """Mean of the branch, as added."""
    return f / n


@measure("mean_sum", "site", "", "mean of sum")
def mean_sum(s: Floats, f: Floats, n: Floats) -> Floats:
    """Mean of the sum."""
    return (s + f) / n


@measure("mean_input", "site", "", "mean of input")
def mean_input(x: Floats, n_x: Floats) -> Floats:
    """Mean of the block's input."""
    return x / n_x


@measure("std_shortcut", "site", "", "standard deviation of shortcut", log=True)
def std_shortcut(s: Floats, ss: Floats, n: Floats) -> Floats:
    """Standard deviation of the shortcut over all elements."""
    return _std(s, ss, n)


@measure("std_branch", "site", "", "standard deviation of branch", log=True)
def std_branch(f: Floats, ff: Floats, n: Floats) -> Floats:
    """Standard deviation of the branch over all elements."""
    return _std(f, ff, n)


@measure("std_sum", "site", "", "standard deviation of sum", log=True)
def std_sum(s: Floats, f: Floats, yy: Floats, n: Floats) -> Floats:
    """Standard deviation of the sum over all elements."""
    return _std(s + f, yy, n)


@measure("std_input", "site", "", "standard deviation of input", log=True)
def std_input(x: Floats, xx: Floats, n_x: Floats) -> Floats:
    """Standard deviation of the block's input over all elements."""
    return _std(x, xx, n_x)


@measure("max_shortcut", "site", "", "largest |shortcut|", log=True)
def max_shortcut(max_s: Floats) -> Floats:
    """Largest magnitude in the shortcut."""
    return max_s


@measure("max_branch", "site", "", "largest |branch|", log=True)
def max_branch(max_f: Floats) -> Floats:
    """Largest magnitude in the branch."""
    return max_f


@measure("max_sum", "site", "", "largest |sum|", log=True)
def max_sum(max_y: Floats) -> Floats:
    """Largest magnitude in the sum; may exceed the range of its dtype."""
    return max_y


@measure("max_input", "site", "", "largest |input|", log=True)
def max_input(max_x: Floats) -> Floats:
    """Largest magnitude in the block's input."""
    return max_x


@measure("min_branch", "site", "", "smallest branch element")
def min_branch(min_f: Floats) -> Floats:
    """Smallest element of the branch with its sign: 0 or more where it can only add."""
    return min_f
