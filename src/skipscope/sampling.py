"""What is attached to a model and its optimizers for one step, and what comes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from skipscope.capture import Capture, Captured
from skipscope.guard import Guard
from skipscope.options import Options
from skipscope.records import Parameter
from skipscope.transfer import Transfer
from skipscope.updates import Bits, Numbers, Rotation, Updates
from skipscope.watch import Watch

logger = logging.getLogger("skipscope")


@dataclass(frozen=True)
class Measured:
    """What this process has of a step, on the host."""

    captured: Captured | None = None
    updated: tuple[Numbers, Bits] | None = None  #: None too where the optimizers skipped the step
    watched: bool = False  #: whether updates were looked at


class Sampling:
    """Attaches for one step at a time; `collect` what was seen, and `close`.

    Args:
        model: the model.
        options: the monitor's.
        guard: what happens with an error of ours.
    """

    def __init__(self, model: nn.Module, options: Options, guard: Guard) -> None:
        self._model = model
        self._options = options
        self._guard = guard
        self._watch = Watch(model, options.sites, options.exclude)
        self._rotation: Rotation | None = None
        self._capture: Capture | None = None
        self._updates: Updates | None = None
        self._said_skip = self._said_unknown = False

    @property
    def attached(self) -> bool:
        """Whether anything is."""
        return self._capture is not None or self._updates is not None

    def open_capture(
        self,
        uncaptured: str,
        loss_scale: Callable[[], Tensor | None],
        *,
        survey: bool,
        speaks: bool,
    ) -> None:
        """Captures forward and backward, unless this run is not captured.

        Args:
            uncaptured: why it is not; "" where it is.
            loss_scale: gives the factor of a GradScaler when a backward begins.
            survey: look for other readers of each x.
            speaks: whether this process tells what is left out.
        """
        if speaks and not self._said_unknown:
            self._said_unknown = True
            self._tell_unknown()
        if not uncaptured:
            self._capture = Capture(
                self._model, self._guard, self._watch, loss_scale, survey=survey
            )
            self._capture.open()
        elif speaks and not self._said_skip:
            self._said_skip = True
            logger.warning("skipscope captures nothing: %s.", uncaptured)

    def _tell_unknown(self) -> None:
        """A wrong name measures other places than were meant; the training goes on."""
        unknown = list(self._watch.unknown())
        if unknown:
            logger.warning(
                "skipscope: no module path, pattern or class of the model: %s", " | ".join(unknown)
            )

    def open_updates(self, optimizers: Sequence[Optimizer], table: Sequence[Parameter]) -> None:
        """Watches the optimizers; weights are copied block by block of the parameter table."""
        if not optimizers:
            return
        parameters = list(self._model.parameters())
        if self._rotation is None or len(self._rotation.sizes) != len(parameters):
            self._rotation = Rotation.over(parameters, table, self._options.update_bytes)
        self._updates = Updates(parameters, optimizers, self._rotation.take(), self._guard)
        self._updates.open()

    def blocks_changed(self) -> None:
        """The next step's copies begin anew, by what the parameter table says then."""
        self._rotation = None

    def gradients_ready(
        self, optimizers: Sequence[Optimizer], scale: Tensor | float | None
    ) -> None:
        """Reads the gradients now."""
        if self._updates is not None:
            for one in optimizers:
                self._updates.gradients_ready(one, scale)

    def collect(self, transfer: Transfer) -> Callable[[], Measured]:
        """Puts all numbers into a transfer and detaches; to be had after the transfer's move."""
        capture, updates = self._capture, self._updates
        captured = capture.collect(transfer) if capture is not None else None
        updated = updates.collect(transfer) if updates is not None else None
        self.close()

        def measured() -> Measured:
            return Measured(
                captured() if captured is not None else None,
                updated() if updated is not None else None,
                updated is not None,
            )

        return measured

    def close(self) -> None:
        """Takes everything off, whatever happens on the way; safe to call twice."""
        attached = [one for one in (self._updates, self._capture) if one is not None]
        self._capture = self._updates = None
        with ExitStack() as stack:
            for one in attached:
                stack.callback(self._guard.finish, "the end of a step", one.close)
