"""What an addition gives when its branch is scaled or its shortcut left out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from skipscope.additions import Addition
from skipscope.find.node import shape_of


def replaced(
    addition: Addition,
    run: Callable[[], Tensor],
    branch_left: bool,
    scale: float,
    *,
    keeps: bool,
) -> Tensor:
    """The sum with its branch times `scale`, with or without the other operand.

    Shape, dtype and the tensor that is written to are those of the addition itself.

    Args:
        addition: the addition.
        run: performs it.
        branch_left: which operand is the branch.
        scale: the branch's further factor.
        keeps: whether the other operand is added.
    """
    if not keeps:
        return _branch_alone(addition, branch_left, scale)
    if scale == 1.0:
        return run()
    branch = addition.left if branch_left else addition.right
    if addition.into is branch:  # `out += x`, which may write to its branch
        branch.mul_(scale)
        return run()
    left, right = addition.left, addition.right
    left, right = (left * scale, right) if branch_left else (left, right * scale)
    first, second, factor = left, right, addition.right_factor
    if addition.left_factor != 1.0:  # a reversed subtraction
        first, second, factor = right, left, addition.left_factor
    if addition.into is None:
        return torch.add(first, second, alpha=factor)
    if addition.into is addition.left:
        return addition.into.add_(second, alpha=factor)
    return torch.add(first, second, alpha=factor, out=addition.into)


def _branch_alone(addition: Addition, branch_left: bool, scale: float) -> Tensor:
    branch, other = addition.left, addition.right
    factor = addition.left_factor
    if not branch_left:
        branch, other = other, branch
        factor = addition.right_factor
    factor *= scale
    if addition.into is branch:
        return branch if factor == 1.0 else branch.mul_(factor)
    value = branch if factor == 1.0 else branch * factor
    if addition.into is not None:
        return addition.into.copy_(value)
    value = value.to(torch.promote_types(branch.dtype, other.dtype))
    if shape_of(branch) != shape_of(other):
        value = value.expand(torch.broadcast_shapes(branch.shape, other.shape)).clone()
    # A sum is a tensor of its own: what writes to it must not reach the branch, which may be saved.
    return value.clone() if value is branch else value
