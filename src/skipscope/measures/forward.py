"""Forward measures of a site `y = s + f`: branch against shortcut, sum against input."""

from __future__ import annotations

import numpy as np

from skipscope.measure import Floats, measure


@measure("branch_ratio", "site", "", "branch / shortcut, r", log=True)
def branch_ratio(ff: Floats, ss: Floats) -> Floats:
    """`r = |f| / |s|`, whole tensor; infinite where only the shortcut is 0."""
    return np.sqrt(ff / ss)


@measure("branch_ratio_median", "site", "", "branch / shortcut, median over rows", log=True)
def branch_ratio_median(r_median: Floats) -> Floats:
    """Median over tokens or samples of `|f| / |s|`, rows with a 0 left out; local to a rank."""
    return r_median


@measure("cosine", "site", "", "cosine of shortcut and branch, c")
def cosine(sf: Floats, ss: Floats, ff: Floats) -> Floats:
    """`c = <s, f> / (|s| |f|)`; undefined, so missing, where one of them is 0."""
    bounded: Floats = np.clip(sf / (np.sqrt(ss) * np.sqrt(ff)), -1.0, 1.0)  # rounding
    return bounded


@measure("growth", "site", "", "sum / shortcut, g", log=True)
def growth(yy: Floats, ss: Floats) -> Floats:
    """`g = |y| / |s|`, which is `sqrt(1 + 2*r*c + r^2)`."""
    return np.sqrt(yy / ss)


@measure("stream_growth", "site", "", "RMS of sum / RMS of input", log=True)
def stream_growth(yy: Floats, n: Floats, xx: Floats, n_x: Floats) -> Floats:
    """RMS of the stream after the site over that before it; right at projections too."""
    return np.sqrt((yy / n) / (xx / n_x))


@measure("block_influence", "site", "", "1 - mean cosine of input and sum", log=True)
def block_influence(influence: Floats, rows: Floats) -> Floats:
    """`1 - mean over rows of cos(x, y)`.

    Source: ShortGPT, arXiv 2403.03853.
    """
    return influence / rows


@measure("adapter_ratio", "site", "", "RMS of shortcut / RMS of input", log=True)
def adapter_ratio(ss: Floats, n: Floats, xx: Floats, n_x: Floats) -> Floats:
    """What the shortcut's own path does to the scale; 1 at an identity."""
    return np.sqrt((ss / n) / (xx / n_x))


@measure("zero_branch_share", "site", "", "samples with branch 0")
def zero_branch_share(zero_f: Floats, samples: Floats) -> Floats:
    """Share of the samples in which every element of the branch is 0."""
    return zero_f / samples


@measure("zero_shortcut_share", "site", "", "samples with shortcut 0")
def zero_shortcut_share(zero_s: Floats, samples: Floats) -> Floats:
    """Share of the samples in which every element of the shortcut is 0."""
    return zero_s / samples


@measure("mean_shift", "site", "", "squared channel mean / variance of the sum", log=True)
def mean_shift(channel: Floats, yy: Floats, n: Floats) -> Floats:
    """Mean over channels of the squared mean, over what is left of the mean square; 0 to infinity.

    Large where all rows point the same way: the cheapest measure of rank collapse.
    """
    return channel / np.maximum(yy / n - channel, 0.0)


@measure("row_alignment", "site", "", "mean cosine between rows of the sum")
def row_alignment(row_cosine: Floats, row_pairs: Floats) -> Floats:
    """Mean cosine of two rows of the sum: tokens of one sample, or samples; 1 where all are one.

    Missing where there are no two rows to compare.
    """
    return row_cosine / row_pairs
