"""One captured step: the sums of every residual addition, forward and backward.

A `Capture` owns everything that is attached for the step and takes it off again. In the forward it
reads the operands of each addition before the addition runs. For the backward it hangs hooks on the
gradient's nodes: a pre-hook at the sum (g_y), post-hooks where the shortcut and the branch hand
their shares to x, and a pre-hook at x (g_x). The split is thus measured, never a difference.

A hook holds a `Slot` (see `slots`) and never a tensor of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from skipscope.additions import Addition, Operations, Passing
from skipscope.capture.forward import MAX_ROWS, RowSums, forward_sums, row_sums
from skipscope.capture.guarded import Guarded
from skipscope.capture.slots import NO_BACKWARD, Slot, hook_of, share_hook_of
from skipscope.eager import EagerStance
from skipscope.find import Discovery, Found
from skipscope.find.node import Edge, Node
from skipscope.find.readers import note_other_readers, shortcut_consumers
from skipscope.guard import Guard
from skipscope.merge import SiteRows
from skipscope.records import (
    HAVE_FORWARD,
    HAVE_INPUT,
    REASONS,
    SUMS,
    Key,
)
from skipscope.reduce import FORWARD, dense, in_transform, reducible
from skipscope.transfer import Transfer
from skipscope.watch import Watch

_NO_INPUT_GRADIENT = REASONS.index("x has no gradient: it is a raw input or behind frozen layers")
_FROZEN = REASONS.index("the whole block is frozen")
_ON_A_VIEW = REASONS.index("x was overwritten in place through a view")


@dataclass(frozen=True)
class Captured:
    """What a captured step leaves behind: numbers only.

    Shape:
        sums: (len(found), len(SUMS)) float64; have, why: (len(found),) uint8.
    """

    found: tuple[Found, ...]
    sums: npt.NDArray[np.float64]
    have: npt.NDArray[np.uint8]
    why: npt.NDArray[np.uint8]
    loss: float
    scale: float  #: of a GradScaler; gradients and loss are divided by it already
    unseen: dict[tuple[str, str, str], int]
    called: dict[str, str]

    @property
    def rows(self) -> SiteRows:
        """The numbers alone, by the sites' identities."""
        return SiteRows(tuple(one.key for one in self.found), self.sums, self.have, self.why)


class Capture(Passing):
    """Attaches to a model for one optimizer step; `close` it, then read `result()`.

    Args:
        model: the model whose forward will run.
        guard: what happens with an error of ours.
        watch: which modules' sites are measured; others are found all the same.
        loss_scale: gives the factor of a GradScaler when a backward begins.
        survey: look for other readers of each x, which walks the whole graph; once is enough.
    """

    def __init__(
        self,
        model: nn.Module,
        guard: Guard,
        watch: Watch,
        loss_scale: Callable[[], Tensor | None] = lambda: None,
        *,
        survey: bool = False,
    ) -> None:
        self._guard = guard
        self._survey = survey
        self._watch = watch
        self._loss_scale = loss_scale
        self._discovery = Discovery(model, self._on_site, whole=watch.named, guard=guard)
        self._slots: dict[Key, Slot] = {}
        self._read: dict[Slot, RowSums] = {}
        self._rows_read = 0
        self._all_slots: list[Slot] = []
        self.loss: Tensor | None = None  #: what backward was called on
        self.scale: Tensor | None = None
        self._attached = ExitStack()

    def open(self) -> None:
        """Attaches: eager stance, module places, the function mode."""
        self._attached.enter_context(EagerStance())
        self._attached.enter_context(self._discovery.places)
        self._attached.enter_context(Operations(Guarded(self, self._guard)))

    def close(self) -> None:
        """Takes everything off, whatever happens on the way; safe to call twice."""
        with ExitStack() as stack:  # what comes first here is done last
            for memory in (self._all_slots, self._slots, self._read):
                stack.callback(memory.clear)
            stack.callback(self._discovery.close)
            for slot in self._all_slots:
                stack.callback(slot.remove)
            stack.push(self._attached)
        self.loss = self.scale = None

    # ------------------------------------------------------------------ forward
    def is_idle(self) -> bool:
        """Outside of modules and of autograd nothing is found: an optimizer steps, most likely."""
        return not self._discovery.places.running

    def addition(self, addition: Addition, run: Callable[[], Tensor]) -> Tensor:
        """Measured where it is residual and watched."""
        return self._discovery.addition(addition, run)

    def fused(self, what: str, operands: list[Tensor]) -> None:
        """Listed as not measured."""
        self._discovery.fused(what, operands)

    def call(self, name: str, args: Iterable[Any], result: Any) -> None:
        """Completes the graph."""
        self._discovery.call(name, args, result)

    def before_backward(self, roots: list[Tensor]) -> None:
        """Remembers the loss; looks once for other readers of the sites' inputs."""
        if in_transform():
            return
        if len(roots) == 1 and roots[0].numel() == 1:
            self.loss = roots[0].detach().reshape(()).clone()  # (1,) is one number too
            scale = self._loss_scale()
            self.scale = scale.detach().clone() if scale is not None else None
        if self._survey:
            note_other_readers(self._discovery.graph, self._discovery.found.values(), roots)

    def _on_site(self, found: Found, s: Tensor, f: Tensor, run: Callable[[], Tensor]) -> Tensor:
        if not self._watch(found.module):
            if not found.parallel:  # told to the rules, once a site: it is not missing
                unseen = self._discovery.observations.unseen
                unseen["left out", found.module, found.source] += 1
            return run()
        before = self._slots.get(found.key)
        slot = before if found.parallel else None
        if slot is None:
            slot = Slot(before)
            slot.splits = found.watched == "addition"
            self._all_slots.append(slot)
        self._slots[found.key] = slot
        with torch.no_grad():
            self._measure_forward(slot, found, s, f)
        result = run()
        if not dense(s, f):
            return result
        self._hook(slot, found, result)
        if result._is_view() and (result is s or result is f) and slot.why == NO_BACKWARD:
            # What reads the viewed tensor itself gets its gradient past the view's node.
            slot.why = _ON_A_VIEW
        return result

    def _measure_forward(self, slot: Slot, found: Found, s: Tensor, f: Tensor) -> None:
        if not reducible(s, f):
            slot.unread = True
            return
        factors = (found.shortcut_factor, 1.0 if found.parallel else found.alpha)
        x: Tensor | None = None
        if found.relation.path or found.shortcut_factor != 1.0:
            x = self._discovery.places.tensor_at(found.relation.source)
        read = row_sums(s, f, x, factors=factors, rows=found.rows)
        self._read[slot] = read
        self._rows_read += read.rows
        if self._rows_read > MAX_ROWS:
            self._make_sums()
        slot.have = HAVE_FORWARD
        if x is not None or not found.relation.path:
            slot.have |= HAVE_INPUT

    def _make_sums(self) -> None:
        """The forward sums of all sites that were read and wait for it."""
        for slot, sums in zip(self._read, forward_sums(list(self._read.values())), strict=True):
            slot.forward = sums
        self._read.clear()
        self._rows_read = 0

    # ------------------------------------------------------------------ backward
    def _hook(self, slot: Slot, found: Found, result: Tensor) -> None:
        if not result.requires_grad or result.grad_fn is None:
            slot.why = _FROZEN
            return
        if result._is_view():  # its gradient arrives only where the view itself is read
            slot.why = _ON_A_VIEW
        guarded = self._guard
        if slot.sum_handle is not None:
            slot.sum_handle.remove()
        slot.sum_handle = result.grad_fn.register_prehook(
            hook_of(guarded, slot.at_sum, result.output_nr)
        )
        source = self._input_node(found)
        if source is None:
            slot.why = _NO_INPUT_GRADIENT
            return
        slot.awaits_input = True
        if not found.parallel:
            for node in shortcut_consumers(self._discovery.graph, found):
                self._hook_share(slot, "shortcut", node, found.relation.source)
            slot.handles.append(
                source.handle.register_prehook(
                    hook_of(guarded, slot.at_input, found.relation.source[1])
                )
            )
        for node in found.relation.branch.consumers:
            if node.number not in slot.hooked:
                slot.hooked.add(node.number)
                self._hook_share(slot, "branch", node, found.relation.source)

    def _hook_share(self, slot: Slot, part: str, node: Node, source: Edge) -> None:
        if node.handle is None:
            return
        places = [place for place, edge in enumerate(node.inputs) if edge == source]
        slot.handles.append(
            node.handle.register_hook(share_hook_of(self._guard, slot, part, places))
        )

    def _input_node(self, found: Found) -> Node | None:
        node = self._discovery.graph.node(found.relation.source)
        return node if node.handle is not None else None

    # ------------------------------------------------------------------ result
    def collect(self, transfer: Transfer) -> Callable[[], Captured]:
        """Puts all numbers of the step into a transfer; after its move, the result can be had."""
        self._make_sums()
        found = tuple(f for f in self._discovery.found.values() if f.key in self._slots)
        slots = [self._slots[f.key].counted() for f in found]
        vectors = [transfer.add(vector) for slot in slots for vector in slot.vectors()]
        loss = None if self.loss is None else transfer.add(self.loss)
        scale = None if self.scale is None else transfer.add(self.scale)
        unseen = dict(self._discovery.observations.unseen)
        called = dict(self._discovery.places.called)

        def captured() -> Captured:
            factor = float(scale()) if scale is not None else 1.0
            sums = np.full((len(slots), len(SUMS)), np.nan)
            for row, _ in enumerate(slots):
                sums[row, :FORWARD] = vectors[2 * row]()
                sums[row, FORWARD:] = vectors[2 * row + 1]() / factor**2
            return Captured(
                found=found,
                sums=sums,
                have=np.array([slot.have for slot in slots], np.uint8),
                why=np.array([slot.reason for slot in slots], np.uint8),
                loss=float(loss()) / factor if loss is not None else float("nan"),
                scale=factor,
                unseen=unseen,
                called=called,
            )

        return captured
