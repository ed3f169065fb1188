"""Laws that measures are held against: closed forms of depth, for branches and gradients.

Four laws of the branch ratio along depth, k residual additions deep, branches independent of the
shortcut (cosine 0, the state at initialisation):

* `"normalised"`: each branch reads a normalised input (BatchNorm, pre-norm), so that all branches
  are of one size: `r_k = 1/sqrt(k + a)`, `a = (RMS x_0 / RMS f)^2`, variance linear in depth;
* `"constant"`: nothing is normalised, r is the same everywhere, variance exponential in depth;
* `"depth-scaled"`: branches times `1/sqrt(L)` without norms: `r = scale/sqrt(L)`, variance bounded
  for any depth.

Source: He et al. 2015, arXiv 1512.03385; De & Smith 2020, arXiv 2002.10444; Marion et al. 2022,
arXiv 2206.06929.
"""

from __future__ import annotations

import math
from typing import Literal

Law = Literal["normalised", "normalised-scaled", "constant", "depth-scaled"]


def depth_multiplier(d: float, n: int) -> float:
    """What n blocks of effective local derivative d do to a gradient: `d^n`.

    A scalar model of one direction, no proof of stability.

    >>> [float(f"{depth_multiplier(d, 20):.4g}") for d in (0.8, 0.98, 1, 1.02)]
    [0.01153, 0.6676, 1.0, 1.486]
    >>> f"{depth_multiplier(0.8, 50):.4g}", f"attenuated {1 / depth_multiplier(0.8, 50):.0f} times"
    ('1.427e-05', 'attenuated 70065 times')
    """
    return math.pow(d, n)


def depth_factor(multiplier: float, n: int) -> float:
    """The factor per block that makes a depth multiplier over n blocks: its n-th root.

    Raises:
        ValueError: `multiplier` is negative or n is not positive.

    >>> round(depth_factor(0.8**20, 20), 12)
    0.8
    """
    if multiplier < 0 or n < 1:
        raise ValueError(f"no {n}-th root of {multiplier}")
    return math.pow(multiplier, 1.0 / n)


def growth(r: float, c: float = 0.0) -> float:
    """`|y| / |s|` of a sum with branch ratio r and cosine c: `sqrt(1 + 2*r*c + r^2)`.

    >>> growth(0.75), growth(0.5, 1.0), growth(0.5, -1.0)
    (1.25, 1.5, 0.5)
    """
    return math.sqrt(max(1.0 + 2.0 * r * c + r * r, 0.0))


def block_influence(r: float, c: float = 0.0) -> float:
    """`1 - cos(x, x + f)`; about `r^2*(1 - c^2)/2` for small r, 0 where f only scales x.

    Raises:
        ValueError: the sum is 0 (r 1, c -1), where no cosine exists.

    Source: ShortGPT, arXiv 2403.03853.

    >>> [round(block_influence(r), 3) for r in (0.1, 0.3, 1.0)]
    [0.005, 0.042, 0.293]
    """
    if growth(r, c) == 0.0:
        raise ValueError("the branch cancels the shortcut: no cosine with a sum of 0")
    return 1.0 - (1.0 + r * c) / growth(r, c)


def expected_branch_ratio(
    k: int, law: Law = "normalised", *, a: float = 1.0, scale: float = 1.0, depth: int = 1
) -> float:
    """Branch ratio that a law expects after k earlier residual additions.

    Args:
        k: additions before this one, from 0.
        law: one of the module's laws.
        a: `(RMS x_0 / RMS f)^2`, for "normalised"; with f before its `1/sqrt(L)` for
            "normalised-scaled".
        scale: r itself for "constant"; of the branch before `1/sqrt(L)` for "depth-scaled".
        depth: additions in all, L, for the two that are scaled.

    Raises:
        ValueError: no such law.

    >>> [round(expected_branch_ratio(k), 3) for k in (0, 1, 3, 8)]
    [1.0, 0.707, 0.5, 0.333]
    >>> expected_branch_ratio(7, "depth-scaled", depth=16)
    0.25
    >>> expected_branch_ratio(9, "normalised-scaled", depth=16)
    0.2
    """
    if law == "normalised":
        return 1.0 / math.sqrt(k + a)
    if law == "normalised-scaled":
        return 1.0 / math.sqrt(k + a * depth)
    if law == "constant":
        return scale
    if law == "depth-scaled":
        return scale / math.sqrt(depth)
    raise ValueError(f"no law {law!r}: normalised, normalised-scaled, constant, depth-scaled")


def expected_variance_growth(
    start: int, stop: int, law: Law = "normalised", *, a: float = 1.0, scale: float = 1.0
) -> float:
    """Mean square of the stream after `stop` additions over that after `start`; `stop` is L.

    >>> expected_variance_growth(0, 3)
    4.0
    >>> expected_variance_growth(0, 3, "constant")  # He initialisation doubles it per block
    8.0
    >>> round(expected_variance_growth(0, 10**6, "depth-scaled"), 3)  # bounded by e
    2.718
    >>> expected_variance_growth(0, 10**6, "normalised-scaled")  # 2 at any depth
    2.0
    """
    if law == "normalised-scaled":
        return (stop + a * stop) / (start + a * stop)
    if law == "normalised":
        return (stop + a) / (start + a)
    ratio = expected_branch_ratio(start, law, scale=scale, depth=stop)
    return (1.0 + ratio * ratio) ** (stop - start)


def expected_half_depth_growth(
    depth: int, law: Law = "normalised", *, a: float = 1.0, scale: float = 1.0
) -> float:
    """`H`, RMS of the stream at full depth over that at half depth.

    Raises:
        ValueError: fewer than two additions.

    >>> round(expected_half_depth_growth(100), 3)  # below sqrt(2)
    1.407
    >>> expected_half_depth_growth(8, "constant")  # sqrt(2) per block
    4.0
    >>> round(expected_half_depth_growth(100, "depth-scaled"), 3)
    1.282
    """
    if depth < 2:
        raise ValueError(f"no half depth of {depth} additions")
    return math.sqrt(expected_variance_growth(depth // 2, depth, law, a=a, scale=scale))


def expected_budget(
    depth: int, law: Law = "normalised", *, a: float = 1.0, scale: float = 1.0
) -> float:
    """Residual budget `B = sum of ln(1 + r^2)` over `depth` additions.

    `ln(1 + L/a)` for "normalised", `ln(1 + 1/a)` for "normalised-scaled", proportional to L for
    "constant", at most `scale^2` for "depth-scaled".

    >>> round(expected_budget(27), 3)  # ln 28
    3.332
    >>> round(expected_budget(27, "constant"), 3)  # 27 ln 2
    18.715
    >>> round(expected_budget(100, "depth-scaled"), 3)
    0.995
    """
    return math.log(expected_variance_growth(0, depth, law, a=a, scale=scale))


def equilibrium_update_ratio(lr: float, weight_decay: float) -> float:
    """Update ratio at which AdamW settles on scale-invariant weights: `sqrt(2*lr*weight_decay)`.

    Source: Kosson et al. 2023, arXiv 2305.17212.

    >>> round(equilibrium_update_ratio(6e-4, 0.1), 4)  # GPT-2's recipe
    0.011
    """
    return math.sqrt(2.0 * lr * weight_decay)
