"""What an optimizer step did: gradients before it, and the real difference of the weights.

Two hooks per optimizer, for one step: before it, copies of the weights (within a byte budget, whole
blocks in turn when the model is larger); after it, the difference, formed inside the copies. A step
whose second hook never fires was skipped (an AMP overflow), which is not an update of size 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skipscope.guard import Guard
from skipscope.records import (
    HAVE_GRADIENT,
    HAVE_UPDATE,
    HAVE_WEIGHT,
    PARAMETER_SUMS,
    Parameter,
)
from skipscope.reduce import as_vector, difference_sums, local, shard_size, square_sum
from skipscope.transfer import Transfer

Numbers = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint8]
_NAN = float("nan")
_CHANGED = [field.name for field in PARAMETER_SUMS].index("changed")


@dataclass(slots=True)
class _Row:
    """Sums of one parameter in this step, still on its device."""

    ww: Tensor | float = _NAN
    gg: Tensor | float = _NAN
    dd: Tensor | float = _NAN
    changed: Tensor | float = _NAN
    optimizer: int = 0  #: id of the one that stepped it

    @property
    def numbers(self) -> tuple[Tensor | float, ...]:
        return self.ww, self.gg, self.dd, self.changed

    @property
    def have(self) -> int:
        measured = (self.ww, self.gg, self.dd)
        bits = (HAVE_WEIGHT, HAVE_GRADIENT, HAVE_UPDATE)
        return sum(
            bit for bit, value in zip(bits, measured, strict=True) if isinstance(value, Tensor)
        )


@dataclass
class Rotation:
    """Chooses whose weights are copied when not all fit: blocks in turn, from step to step.

    Args:
        blocks: indices of the parameters of each block, in order. sizes: bytes per parameter.
    """

    blocks: Sequence[Sequence[int]]
    sizes: Sequence[int]
    budget: int
    _next: int = field(default=0)

    @classmethod
    def over(
        cls, parameters: Sequence[nn.Parameter], table: Sequence[Parameter], budget: int
    ) -> Rotation:
        """By the blocks of a parameter table; a parameter outside of blocks is one of its own."""
        blocks: dict[str, list[int]] = {}
        for index in range(len(parameters)):
            block = table[index].block if index < len(table) else ""
            blocks.setdefault(block or f"parameter {index}", []).append(index)
        sizes = [shard_size(p) * p.element_size() for p in parameters]
        return cls(list(blocks.values()), sizes, budget)

    def take(self) -> set[int]:
        """The parameters to copy in this step."""
        chosen: set[int] = set()
        used = 0
        for _ in range(len(self.blocks)):
            block = self.blocks[self._next % len(self.blocks)]
            need = sum(self.sizes[index] for index in block)
            if need <= self.budget:  # a block that can never be copied must not hold up the others
                if used + need > self.budget:
                    break
                chosen.update(block)
                used += need
            self._next += 1
        return chosen


class Updates:
    """Watches the optimizers for one step; `close` it, then `collect()`.

    Args:
        parameters: all parameters of the model, in the order of the parameter table.
        optimizers: those that may step.
        copied: indices of the parameters whose weights are copied.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        optimizers: Sequence[Optimizer],
        copied: set[int],
        guard: Guard,
    ) -> None:
        self._parameters = parameters
        self._index = {id(parameter): index for index, parameter in enumerate(parameters)}
        self._optimizers = optimizers
        self._copied = copied
        self._guard = guard
        self._rows: dict[int, _Row] = {}
        self._before: dict[int, Tensor] = {}
        self._attached = ExitStack()
        self._ready: set[int] = set()
        #: by id, the optimizers that stepped, each with a fused one's own word on an overflow
        self._stepped: dict[int, Tensor | None] = {}

    def open(self) -> None:
        """Hooks every optimizer."""
        for optimizer in self._optimizers:
            before = optimizer.register_step_pre_hook(self._pre_hook)
            self._attached.callback(before.remove)
            after = optimizer.register_step_post_hook(self._post_hook)
            self._attached.callback(after.remove)

    def close(self) -> None:
        """Takes the hooks off and lets go of every tensor; safe to call twice."""
        self._attached.close()
        self._before.clear()
        self._rows.clear()
        self._stepped.clear()

    def gradients_ready(self, optimizer: Optimizer, scale: Tensor | float | None = None) -> None:
        """Reads the gradients now: accumulated, and not clipped yet."""
        self._read_gradients(optimizer, scale)
        self._ready.add(id(optimizer))

    def collect(self, transfer: Transfer) -> Callable[[], tuple[Numbers, Bits] | None]:
        """Puts the sums of the measured parameters into a transfer, to be had after its move.

        Shape:
            The result: (parameters, len(PARAMETER_SUMS)) and a `have` mask (parameters,); None
            when the step was skipped.
        """
        moved = self._move_rows(transfer)
        bits = {index: (row.have, row.optimizer) for index, row in self._rows.items()}
        stepped = set(self._stepped)
        words = {key: transfer.add(word) for key, word in self._stepped.items() if word is not None}

        def result() -> tuple[Numbers, Bits] | None:
            skipped = {key for key, word in words.items() if word().any()}
            if skipped.issuperset(stepped):
                return None
            sums = np.full((len(self._parameters), len(PARAMETER_SUMS)), np.nan)
            have = np.zeros(len(self._parameters), np.uint8)
            for members, numbers in moved:
                sums[members, 1:] = numbers()
            for index, (measured, optimizer) in bits.items():
                sums[index, 0] = local(self._parameters[index]).numel()
                have[index] = measured & ~HAVE_UPDATE if optimizer in skipped else measured
            # An optimizer that is called without any gradient (a loss of None) does nothing.
            idle = not (have & HAVE_GRADIENT).any() and not np.nansum(sums[:, _CHANGED])
            return None if idle else (sums, have)

        return result

    def _move_rows(self, transfer: Transfer) -> list[tuple[list[int], Callable[[], Numbers]]]:
        """Puts the rows into a transfer, a device at a time: who they are, and their numbers."""
        by_device: dict[torch.device, list[int]] = {}
        for index in self._rows:
            by_device.setdefault(self._parameters[index].device, []).append(index)
        moved = []
        for device, members in by_device.items():
            columns = zip(*(self._rows[index].numbers for index in members), strict=True)
            matrix = torch.stack([as_vector(column, device) for column in columns], dim=1)
            moved.append((members, transfer.add(matrix)))
        return moved

    # Hooks return None: what a pre-hook returns would replace the step's arguments.
    def _pre_hook(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._guard.call("the hook before an optimizer step", self._pre, optimizer, args, kwargs)

    def _post_hook(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._guard.call("the hook after an optimizer step", self._post, optimizer, args, kwargs)

    def _pre(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for index, parameter in self._of(optimizer):
                if index in self._copied:
                    self._before[index] = local(parameter).clone()
                    self._row(index).ww = square_sum(self._before[index])
        # With a closure the gradients of this step do not exist yet, those of the last may.
        closure = kwargs.get("closure") or next((a for a in args[1:] if callable(a)), None)
        if closure is None and id(optimizer) not in self._ready:
            self._read_gradients(optimizer, getattr(optimizer, "grad_scale", None))

    def _post(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if id(optimizer) not in self._ready and not self._has_gradients(optimizer):
            self._read_gradients(optimizer, getattr(optimizer, "grad_scale", None))
        overflow = getattr(optimizer, "found_inf", None)
        self._stepped[id(optimizer)] = (
            overflow.detach().clone() if isinstance(overflow, Tensor) else None
        )
        with torch.no_grad():
            for index, parameter in self._of(optimizer):
                before = self._before.pop(index, None)
                if before is not None:
                    row = self._row(index)
                    row.optimizer = id(optimizer)
                    row.dd, row.changed = difference_sums(before, local(parameter))

    def _has_gradients(self, optimizer: Optimizer) -> bool:
        return any(
            index in self._rows and isinstance(self._rows[index].gg, Tensor)
            for index, _ in self._of(optimizer)
        )

    def _read_gradients(self, optimizer: Optimizer, scale: Tensor | float | None) -> None:
        outside = [(i, p) for i, p in self._outside() if id(optimizer) == id(self._optimizers[0])]
        with torch.no_grad():
            for index, parameter in [*self._of(optimizer), *outside]:
                gradient = parameter.grad
                row = self._row(index)
                row.gg = _NAN
                if gradient is not None:
                    gg = square_sum(
                        gradient.coalesce().values() if gradient.is_sparse else gradient
                    )
                    row.gg = gg if scale is None else gg / (scale * scale)

    def _of(self, optimizer: Optimizer) -> Iterable[tuple[int, nn.Parameter]]:
        """The model's parameters in an optimizer, each once."""
        members = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        return [(self._index[i], p) for i, p in members.items() if i in self._index]

    def _outside(self) -> Iterable[tuple[int, nn.Parameter]]:
        """Trainable parameters that no optimizer holds; they may have gradients all the same."""
        held = {
            id(p) for o in self._optimizers for group in o.param_groups for p in group["params"]
        }
        return [
            (index, p)
            for index, p in enumerate(self._parameters)
            if p.requires_grad and id(p) not in held
        ]

    def _row(self, index: int) -> _Row:
        return self._rows.setdefault(index, _Row())
