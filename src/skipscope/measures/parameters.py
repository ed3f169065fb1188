"""Measures of weights: of one parameter, of a repeated block, of a site's branch.

An update ratio is `|dW| / max(|W|, .1*sqrt(numel/fan_in))`: a matrix that starts at 0 would read
1/t in its first steps without the floor. Over a block, squares are added up over the parameters
that were measured.
"""

from __future__ import annotations

import numpy as np

from skipscope.measure import Floats, measure


@measure("weight_norm", "parameter", "L2", "weight", log=True)
def weight_norm(ww: Floats) -> Floats:
    """`|W|` before the step."""
    return np.sqrt(ww)


@measure("weight_rms", "parameter", "RMS", "weight", log=True)
def weight_rms(ww: Floats, n: Floats) -> Floats:
    """Root mean square of W before the step."""
    return np.sqrt(ww / n)


@measure("gradient_norm", "parameter", "L2", "gradient", log=True)
def gradient_norm(gg: Floats) -> Floats:
    """Norm of the gradient: unscaled, after accumulation, before clipping."""
    return np.sqrt(gg)


@measure("update_norm", "parameter", "L2", "update", log=True)
def update_norm(dd: Floats) -> Floats:
    """`|dW|` of the step."""
    return np.sqrt(dd)


@measure("update_ratio", "parameter", "", "update / weight, u", log=True)
def update_ratio(dd: Floats, reference: Floats) -> Floats:
    """`u = |dW| / max(|W|, .1*sqrt(numel/fan_in))`."""
    return np.sqrt(dd / reference)


@measure("changed_share", "parameter", "", "elements that changed")
def changed_share(changed: Floats, n: Floats) -> Floats:
    """Share of the elements that the step changed at all."""
    return changed / n


@measure("block_weight_norm", "block", "L2", "weights of a block", log=True)
def block_weight_norm(ww: Floats) -> Floats:
    """Norm of a block's weights together."""
    return np.sqrt(ww)


@measure("block_gradient_norm", "block", "L2", "gradient of a block", log=True)
def block_gradient_norm(gg: Floats) -> Floats:
    """Norm of a block's parameter gradients together."""
    return np.sqrt(gg)


@measure("block_update_norm", "block", "L2", "update of a block", log=True)
def block_update_norm(dd: Floats) -> Floats:
    """Norm of a block's update."""
    return np.sqrt(dd)


@measure("block_update_ratio", "block", "", "update / weight of a block", log=True)
def block_update_ratio(dd: Floats, reference: Floats) -> Floats:
    """A block's update against its weights, over the parameters with both."""
    return np.sqrt(dd / reference)


@measure("branch_weight_norm", "branch", "L2", "weights of a branch", log=True)
def branch_weight_norm(ww: Floats) -> Floats:
    """Norm of the weights of a site's branch together."""
    return np.sqrt(ww)


@measure("branch_gradient_norm", "branch", "L2", "parameter gradient of a branch", log=True)
def branch_gradient_norm(gg: Floats) -> Floats:
    """Norm of the parameter gradients of a site's branch together."""
    return np.sqrt(gg)


@measure("branch_update_ratio", "branch", "", "update / weight of a branch", log=True)
def branch_update_ratio(dd: Floats, reference: Floats) -> Floats:
    """A branch's update against its weights, over the parameters with both."""
    return np.sqrt(dd / reference)
