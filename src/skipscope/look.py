"""One forward and one backward of a model, captured; it keeps no trace of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skipscope.additions import Operations
from skipscope.capture import Capture, Captured
from skipscope.example import run_example
from skipscope.find import Discovery, Found
from skipscope.find.paths import canonical
from skipscope.guard import Guard
from skipscope.records import (
    HAVE_FORWARD,
    HAVE_GRAD,
    HAVE_GRADIENT,
    HAVE_WEIGHT,
    PARAMETER_SUMS,
    SUMS,
    Key,
    Site,
)
from skipscope.reduce import local, square_sum
from skipscope.restore import unchanged
from skipscope.transfer import Transfer
from skipscope.watch import Watch

_AT = {field.name: position for position, field in enumerate(SUMS)}


class Look:
    """What one forward and backward showed."""

    def __init__(
        self,
        caller: str,
        model: nn.Module,
        example: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        loss_fn: Callable[[Any], Tensor] | None,
    ) -> None:
        self._caller = caller
        self.names = [canonical(name) for name, _ in model.named_parameters()]
        self.trainable = [parameter.requires_grad for parameter in model.parameters()]
        capture = Capture(model, Guard("raise"), Watch(model, None, None), survey=True)
        transfer = Transfer()
        with unchanged(model), torch.enable_grad():
            try:
                capture.open()
                output = run_example(caller, model, example, kwargs)
                gradients = self._backward(model, output, loss_fn)
                captured = capture.collect(transfer)
            finally:
                capture.close()
        with torch.no_grad():
            parameters = list(model.parameters())
            weights = [transfer.add(square_sum(local(p))) for p in parameters]
            squares = [g if g is None else transfer.add(_square(g)) for g in gradients]
        transfer.move()
        self.captured: Captured = captured()
        self.sums = np.full((len(parameters), len(PARAMETER_SUMS)), np.nan)
        self.have = np.full(len(parameters), HAVE_WEIGHT, np.uint8)
        for row, (parameter, weight, square) in enumerate(
            zip(parameters, weights, squares, strict=True)
        ):
            self.sums[row, :2] = parameter.numel(), float(weight())
            if square is not None:
                self.sums[row, 2] = float(square())
                self.have[row] |= HAVE_GRADIENT

    def _backward(
        self, model: nn.Module, output: Any, loss_fn: Callable[[Any], Tensor] | None
    ) -> list[Tensor | None]:
        """The gradient of every parameter; none is put into `.grad`, so no hook there is called."""
        root, start, self.gradient = _root(output, loss_fn)
        wanted = [p for p in model.parameters() if p.requires_grad]
        if root is None or not wanted:
            raise ValueError(
                f"{self._caller}: nothing that can be trained leads to the output, so there is no "
                "gradient to look at"
            )
        found = iter(torch.autograd.grad([root], wanted, [start], allow_unused=True))
        return [next(found) if p.requires_grad else None for p in model.parameters()]

    @property
    def unused(self) -> tuple[str, ...]:
        """Trainable parameters without any gradient, not even 0."""
        return tuple(
            name
            for name, trainable, have in zip(self.names, self.trainable, self.have, strict=True)
            if trainable and not have & HAVE_GRADIENT
        )

    def zero(self) -> dict[Key, bool]:
        """Sites whose branch is 0 while a gradient arrives at their sum, by key.

        With each, whether a parameter of its branch gets a gradient; those of frozen branches are
        left out.
        """
        squares = {
            name: sums[2]
            for name, sums, have in zip(self.names, self.sums, self.have, strict=True)
            if have & HAVE_GRADIENT
        }
        rows = zip(self.captured.found, self.captured.sums, self.captured.have, strict=True)
        both = HAVE_FORWARD | HAVE_GRAD
        return {
            found.key: any(squares[name] != 0 for name in found.parameters if name in squares)
            for found, sums, have in rows
            if have & both == both
            and sums[_AT["ff"]] == 0
            and sums[_AT["gy"]] > 0
            and not squares.keys().isdisjoint(found.parameters)
        }

    def nonzero(self) -> set[Key]:
        """Sites whose branch was measured and is not 0."""
        rows = zip(self.captured.found, self.captured.sums, self.captured.have, strict=True)
        return {
            found.key for found, sums, have in rows if have & HAVE_FORWARD and sums[_AT["ff"]] != 0
        }

    def zeros_of(self, site: Site) -> list[str]:
        """The branch's parameters that are 0 all over."""
        weights = dict(zip(self.names, self.sums[:, 1], strict=True))
        return [name for name in site.parameters if weights.get(name) == 0]


class Still:
    """Which of some sites are 0 in evaluation mode too, and whether anything could change that.

    Evaluation mode tells a branch that is 0 from one that stochastic depth dropped. A branch is
    asleep when no parameter of the model moves it: its own, one that a gate is computed from
    (adaLN-zero), or one before x.
    """

    def __init__(
        self,
        model: nn.Module,
        example: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        keys: Collection[Key],
    ) -> None:
        self.asleep: set[Key] = set()
        self.wakes: set[Key] = set()
        self._branches: dict[Key, Tensor] = {}
        self._keys = keys
        discovery = Discovery(model, self._on_site)
        try:
            with unchanged(model), torch.enable_grad():
                model.eval()
                with discovery.places, Operations(discovery):
                    run_example("preflight", model, example, kwargs)
                wanted = [p for p in model.parameters() if p.requires_grad]
                for key, branch in self._branches.items():
                    (self.wakes if _moves(wanted, branch) else self.asleep).add(key)
        finally:
            discovery.close()
            self._branches.clear()

    def _on_site(self, found: Found, s: Tensor, f: Tensor, run: Callable[[], Tensor]) -> Tensor:
        self._branches.pop(found.key, None)
        # The branch of several additions is formed without a graph: nothing is said of it.
        if found.key in self._keys and f.requires_grad and not f.detach().any():
            self._branches[found.key] = f.clone()  # an addition in place overwrites it
        return run()


def _moves(parameters: Sequence[Tensor], branch: Tensor) -> bool:
    """Whether any parameter changes a branch, to first order and along a random direction."""
    direction = _direction(branch)
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
        [branch], parameters, [direction], retain_graph=True, allow_unused=True
    )
    return any(bool(_square(g) != 0) for g in gradients if g is not None)


def _direction(like: Tensor) -> Tensor:
    """A random tensor of norm 1, the same at every call, from a generator of our own."""
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(0))
    unit: Tensor = drawn / drawn.norm()
    return unit.to(like.device, like.dtype)


def _root(
    output: Any, loss_fn: Callable[[Any], Tensor] | None
) -> tuple[Tensor | None, Tensor | None, str]:
    """Where the backward starts, with which gradient (None: 1), and that in words."""
    if loss_fn is not None:
        loss: object = loss_fn(output)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
            raise TypeError(
                "preflight: loss_fn must return one number as a tensor, got "
                f"{type(loss).__name__}{shape}; reduce it, by mean() for example"
            )
        return (loss if loss.requires_grad else None), None, "that of loss_fn"
    root = next((t for t in _floating(output) if t.requires_grad), None)
    if root is None or root.numel() == 1:
        return root, None, "that of the model's output, one number and taken for the loss"
    return root, _direction(root), "fixed random unit gradient at the output: no loss was given"


def _floating(output: Any) -> Iterator[Tensor]:
    """The floating tensors of an output, in its own order."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        yield from (t for value in output.values() for t in _floating(value))
    elif isinstance(output, (list, tuple)):
        yield from (t for value in output for t in _floating(value))
    elif is_dataclass(output):
        yield from (t for value in vars(output).values() for t in _floating(value))


def _square(gradient: Tensor) -> Tensor:
    dense = gradient.coalesce().values() if gradient.is_sparse else gradient
    return square_sum(local(dense))
