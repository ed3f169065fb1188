"""One operation of the graph, a tensor's place in it, and what is asked of tensors alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skipscope.find.vocabulary import Op

#: A tensor's place in the graph: (number of the node that made it, which of its outputs).
Edge = tuple[float, int]


@dataclass(slots=True)
class Node:
    """One operation: its class and where its operands come from (None: a constant)."""

    number: float
    op: Op
    inputs: tuple[Edge | None, ...]
    handle: Any = None  # the autograd node, for hooks; None for a node of ours
    hidden: Edge | None = None  # operands that autograd does not know

    @property
    def operands(self) -> Iterator[Edge]:
        """All edges that lead into the node."""
        yield from (edge for edge in self.inputs if edge is not None)
        if self.hidden is not None:
            yield self.hidden


@dataclass(frozen=True, slots=True)
class Branch:
    """All nodes on paths from `source` to an operand, by number."""

    source: Edge
    nodes: dict[float, Node]

    @property
    def consumers(self) -> list[Node]:
        """The nodes of the branch through which its gradient reaches x."""
        return [node for node in self.nodes.values() if self.source in node.inputs]

    @property
    def ops(self) -> frozenset[Op]:
        """The classes of operation in it."""
        return frozenset(node.op for node in self.nodes.values())


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, one level of lists, tuples and dicts deep."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, Tensor))
        elif isinstance(value, dict):
            yield from (item for item in value.values() if isinstance(item, Tensor))


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written in place; inference tensors are not counted."""
    return 0 if tensor.is_inference() else tensor._version


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's shape; -1 for an axis of no one length, as nested tensors have."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    if tensor.layout == torch.strided:  # this kind has no sizes to ask for
        return (tensor.size(0), *[-1] * (tensor.dim() - 1))
    sizes: Iterable[Any] = tensor.shape  # of a jagged axis a symbol
    return tuple(size if isinstance(size, int) else -1 for size in sizes)


def lacks_data(op: Op, missing: list[bool]) -> bool:
    """Whether an operation's data may be among its operands without edge.

    The data of a norm or a convolution comes first; a weight or bias behind it may be left out.
    """
    return missing[:1] == [True] if op in (Op.NORM, Op.CONVOLUTION) else any(missing)


def moves_last_axis(handle: Any) -> bool:
    """Whether a transposition or permutation makes another axis the last.

    Told from the numbers that autograd keeps with the node; a dimension counted from the end is
    kept as an unsigned number.
    """
    dims = getattr(handle, "_saved_dims", None)
    if dims is not None:
        return len(dims) > 0 and dims[-1] not in (len(dims) - 1, 2**64 - 1)
    pair = {getattr(handle, "_saved_dim0", None), getattr(handle, "_saved_dim1", None)}
    if None in pair or len(pair) < 2:
        return False
    last = len(handle._input_metadata[0].shape) - 1
    return bool(pair & {last, 2**64 - 1})
