"""What a captured step holds of one site: numbers, and the hooks that bring them.

A hook holds a `Slot` and a slot holds numbers and, between g_y and g_x, gradients; never a tensor
of the graph, which would keep the graph alive for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from skipscope.guard import Guard
from skipscope.records import HAVE_GRAD, HAVE_INPUT_GRAD, HAVE_SPLIT, REASONS, SUMS
from skipscope.reduce import FORWARD, as_vector, dense, dot, gradient_sums

NO_BACKWARD = REASONS.index("no backward reached it")
_WHOLE = REASONS.index("watched as a whole module: its two paths cannot be told apart")
_IRREDUCIBLE = REASONS.index("operands of this type cannot be reduced")
_VECTORIZED = REASONS.index("only a vectorized backward reached it")
_SECOND_ORDER = REASONS.index("only a backward with create_graph reached it")


class Slot:
    """The sums of one site in one forward of this step, and its hooks.

    Args:
        earlier: that of the forward before.
    """

    def __init__(self, earlier: Slot | None = None) -> None:
        self.earlier = earlier
        self.forward: Tensor | None = None
        self.backward: Tensor | None = None
        self.have = 0
        self.why = NO_BACKWARD
        self.handles: list[RemovableHandle] = []
        self.sum_handle: RemovableHandle | None = None
        self._gy: Tensor | None = None
        self._shares: dict[str, Tensor] = {}
        self._told = False  #: whether the present backward counts
        self.awaits_input = False  #: whether a hook stands at x, where g_y is reduced with the rest
        self.unread = False  #: operands that no sums can be made of
        self.splits = True  #: whether the shares of shortcut and branch can be told apart
        self.hooked: set[float] = set()  #: numbers of the branch's nodes that have a hook

    @property
    def reason(self) -> int:
        """Why a number of this site is missing; 0 where none is."""
        if self.unread:
            return _IRREDUCIBLE
        return 0 if self.have & HAVE_SPLIT else self.why

    def counted(self) -> Slot:
        """Of the step's forwards up to this one, the last that a backward reached; else this."""
        slot: Slot | None = self
        while slot is not None and not slot.have & HAVE_GRAD:
            slot = slot.earlier
        return self if slot is None else slot

    def remove(self) -> None:
        """Takes every hook off and lets go of gradients and sums."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        if self.sum_handle is not None:
            self.sum_handle.remove()
        self.sum_handle = None
        self.forward = self.backward = None
        self.release()

    def release(self) -> None:
        """Lets go of gradients."""
        self._gy = None
        self._shares.clear()

    # Each returns None: a hook that returns something would replace the gradient.
    def at_sum(self, output: int, gradients: tuple[Tensor | None, ...]) -> None:
        """The gradient at the sum arrives: a backward begins anew for this site."""
        gradient = gradients[output]
        self._told = gradient is not None and self._is_training(gradient)
        if gradient is None or not self._told:
            return
        self.release()  # of several backwards the last one counts
        self.have &= ~(HAVE_GRAD | HAVE_INPUT_GRAD | HAVE_SPLIT)
        self._gy = gradient.detach()
        self.backward = None if self.awaits_input else self._without_input()
        self.have |= HAVE_GRAD

    def at_share(self, part: str, places: list[int], shares: tuple[Tensor | None, ...]) -> None:
        """A reader of x hands its share over; `part` is "shortcut" or "branch"."""
        if self._gy is None or not self._told:
            return
        for place in places:
            share = shares[place]
            if share is not None:
                before = self._shares.get(part)
                share = share.detach()
                self._shares[part] = share if before is None else before + share

    def at_input(self, output: int, gradients: tuple[Tensor | None, ...]) -> None:
        """The whole gradient at x arrives: all that this backward tells is there."""
        gradient = gradients[output]
        if gradient is None or self._gy is None or not self._told:
            return
        self.backward = gradient_sums(
            gradient.detach(), self._gy, self._shares.get("shortcut"), self._shares.get("branch")
        )
        self.have |= HAVE_INPUT_GRAD | (HAVE_SPLIT if self.splits else 0)
        self.why = 0 if self.splits else _WHOLE
        self.release()

    def _is_training(self, gradient: Tensor) -> bool:
        """Whether this is a training gradient, and not one with create_graph (a penalty), or many.

        Many at once come from `is_grads_batched`, as a vectorized Jacobian asks for.
        """
        if not torch.is_grad_enabled() and dense(gradient):
            return True
        if not self.have & HAVE_GRAD:
            self.why = _SECOND_ORDER if torch.is_grad_enabled() else _VECTORIZED
        return False

    def _without_input(self) -> Tensor | None:
        """The backward part as far as it is known before x: g_y alone."""
        if self._gy is None:
            return None
        unknown = [float("nan")] * (len(SUMS) - FORWARD - 1)
        return as_vector((dot(self._gy, self._gy), *unknown), self._gy.device)

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Both parts; NaN where nothing was measured."""
        if self.backward is None:
            self.backward = self._without_input()  # the backward never reached x
        nothing = torch.full((len(SUMS),), float("nan"))
        forward = self.forward if self.forward is not None else nothing[:FORWARD]
        backward = self.backward if self.backward is not None else nothing[FORWARD:]
        return forward, backward


def hook_of(guard: Guard, method: Callable[[int, Any], None], output: int) -> Callable[..., None]:
    """A node pre-hook that never raises and returns None."""

    def hook(gradients: Any) -> None:
        guard.call("a gradient hook", method, output, gradients)

    return hook


def share_hook_of(guard: Guard, slot: Slot, part: str, places: list[int]) -> Callable[..., None]:
    """A node post-hook that never raises and returns None."""

    def hook(inputs: Any, outputs: Any) -> None:
        guard.call("a gradient hook", slot.at_share, part, places, inputs)

    return hook
