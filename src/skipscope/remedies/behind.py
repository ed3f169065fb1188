"""What autograd's graph holds behind a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor


def nodes_behind(tensors: Iterable[Tensor]) -> Iterator[Any]:
    """Every node that made some tensors, each once; those of leaves among them.

    >>> import torch
    >>> x = torch.ones(1, requires_grad=True)
    >>> [node.name() for node in nodes_behind([x * x])]
    ['MulBackward0', 'torch::autograd::AccumulateGrad']
    """
    todo: list[Any] = [tensor.grad_fn for tensor in tensors]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        todo += [function for function, _ in node.next_functions]
