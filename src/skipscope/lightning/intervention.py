"""Interventions as a Lightning callback."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from skipscope.intervention import Intervention as Intervening
from skipscope.intervention.arm import Arm, Projections
from skipscope.lightning.base import CallbackBase


class Intervention(CallbackBase):
    """Trains with other sums than the model's own, in this fit only: see `skipscope.intervene`.

    It acts from the start of the fit to its end, on every process, in its validations too. What it
    cannot do, it refuses with an error: a run that is not the one asked for must not go on.

    Args:
        sites: names of sites, module paths (with `*` and `?`) or class names; None: all
            block-level sites.
        branch_scale: a in y = s + a F.
        shortcut: whether s is added.
        projections: what `shortcut=False` does at projections: "keep" or "cut" P(x).

    Raises:
        ValueError: an argument makes no sense.

    Example:
        >>> Intervention(shortcut=False).intervention is None  # known once a fit has begun
        True
    """

    def __init__(
        self,
        sites: str | list[str] | None = None,
        branch_scale: float = 1.0,
        shortcut: bool = True,
        projections: Projections = "keep",
    ) -> None:
        super().__init__()
        Arm.wanted(sites, branch_scale, shortcut, projections)
        self._settings: dict[str, Any] = {
            "sites": sites,
            "branch_scale": branch_scale,
            "shortcut": shortcut,
            "projections": projections,
        }
        self.intervention: Intervening | None = (
            None  #: what it acts on, and acted on in the last fit
        )
        self._trained = False  # whether any batch of this fit was trained on
        self._acting = ExitStack()

    @property
    def state_key(self) -> str:
        """What tells this callback's state in a checkpoint from another's."""
        return f"skipscope.Intervention:{self._settings}"

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins; before the first validation."""
        self._acting.close()
        self._trained = False
        self.intervention = Intervening(pl_module, **self._settings)
        self._acting.enter_context(self.intervention)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Notes that there was one."""
        self._trained = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Tells of names that were no site's in any forward, and of having acted nowhere.

        A fit in which no batch came trained nothing, so nothing went wrong.

        Raises:
            ValueError: so it was.
        """
        if self.intervention is not None and self._trained:
            self.intervention.check_end()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends."""
        self._acting.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends."""
        self._acting.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Ends, where nothing else has."""
        self._acting.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without what is attached, and without what the Trainer hangs on its callbacks."""
        kept = {key: value for key, value in vars(self).items() if key not in ("log", "log_dict")}
        return {**kept, "intervention": None, "_acting": ExitStack()}
