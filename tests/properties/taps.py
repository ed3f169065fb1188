"""What a random net says of itself: every residual addition it made, with its operands."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

#: How two operands can be added: the operation, and the coefficients of shortcut and branch in it.
ADDS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[float, float]]] = {
    "x + f": (lambda s, f: s + f, (1.0, 1.0)),
    "f + x": (lambda s, f: f + s, (1.0, 1.0)),
    "f += x": (lambda s, f: f.add_(s), (1.0, 1.0)),
    "x += f": (lambda s, f: s.add_(f), (1.0, 1.0)),  # for a stream that may be written to
    "torch.add": (lambda s, f: torch.add(input=s, other=f), (1.0, 1.0)),
    "alpha": (lambda s, f: torch.add(s, f, alpha=0.5), (1.0, 0.5)),
    "x - f": (lambda s, f: s - f, (1.0, -1.0)),
    "f - x": (lambda s, f: f - s, (-1.0, 1.0)),
    "clone += f": (lambda s, f: s.clone().add_(f), (1.0, 1.0)),
    "sum": (lambda s, f: sum([s, f]), (1.0, 1.0)),
    "relu_": (lambda s, f: torch.relu_(s + f), (1.0, 1.0)),
    "times": (lambda s, f: (s + f) * 0.7, (1.0, 1.0)),
}


@dataclass
class Tap:
    """One residual addition: operands as added, in float64, and places in the gradient's graph."""

    module: str
    kind: str
    nested: bool
    s: Tensor
    f: Tensor
    x_edge: Any
    y_edge: Any


@dataclass
class Taps:
    """The additions of the forwards of one step; a place that is passed again replaces itself."""

    found: list[Tap] = field(default_factory=list)
    listening: bool = True
    seen: list[weakref.ref[Any]] = field(default_factory=list)

    def saw(self, x: Tensor) -> None:
        """Keeps an eye on a tensor of the stream and on its node in the graph."""
        self.seen.append(weakref.ref(x))
        if x.grad_fn is not None:
            x.grad_fn.metadata["mark"] = mark = Mark()
            self.seen.append(weakref.ref(mark))

    def add(
        self, path: str, x: Tensor, s: Tensor, f: Tensor, how: str, kind: str, nested: bool
    ) -> Tensor:
        """Performs an addition, as `how` says, and remembers it."""
        run, (a, b) = ADDS[how]
        if not self.listening or not torch.is_grad_enabled():
            return run(s, f)
        operands = s.detach().double() * a, f.detach().double() * b
        x_edge = _edge(x)
        y = run(s, f)
        if kind == "identity" and a != 1:
            kind = "scaled"
        self.found.append(Tap(path, kind, nested, *operands, x_edge, _sum_edge(y, how)))
        return y

    def summed(self, path: str, x: Tensor, s: Tensor, f: Tensor, y: Tensor) -> Tensor:
        """Remembers an addition that was performed already; `f` in float64."""
        if self.listening and torch.is_grad_enabled():
            tap = Tap(path, "identity", False, s.detach().double(), f, _edge(x), _edge(y))
            self.found.append(tap)
        return y


class Mark:
    """Lives as long as the node that it is put on."""


class Deaf(Taps):
    """Performs additions and remembers none: what the watched net is given."""

    def __init__(self) -> None:
        super().__init__(listening=False)


def _edge(tensor: Tensor) -> Any:
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def _sum_edge(y: Tensor, how: str) -> Any:
    """The place of the sum itself, where something was done with it at once."""
    edge = _edge(y)
    if edge is None or how not in ("relu_", "times"):
        return edge
    node, output = edge.node.next_functions[0]
    return None if node is None else type(edge)(node, output)
