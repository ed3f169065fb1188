"""What a mode is: one way to train, what the monitor gives there, and how that is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lightning import parts
from tests.modes import nets

#: The checks of a row, in their order, and what the page says they show.
CHECKS = {
    "bits": "losses, weights and random generators as without the monitor",
    "numbers": "a captured step as computed apart, in float64",
    "endings": "nothing attached after success, an exception, Ctrl-C and a skipped epoch",
    "growth": "no tensor more alive from step to step",
    "copies": "the net can be copied, pickled and saved afterwards",
    "exports": "scripted and exported too, where that of a plain run can",
}
ALL = tuple(CHECKS)
BODIES = ("cnn", "gpt")

EXACT = "everything"  #: the page says what that is


@dataclass(frozen=True, eq=False)  # each is itself: a key of what is kept
class Mode:
    """One row of the table.

    Args:
        name: unique; what the page calls it. group: the page's heading.
        exact: what is exact, in the page's words.
        missing: what is not available -> the reason that the record carries in its place.
        blind: measures that are not available although they can be computed by hand.
        hidden: modules (patterns) whose additions are not found.
        unseen: what the site map lists as noticed and not measured.
        uncaptured: why no step is captured, where none is.
        module: makes the LightningModule (or net, for a loop) of a body.
        trainer: a Trainer's arguments, made anew for each run.
        callbacks: other callbacks, made anew, which stand behind the monitor.
        data: the training data of a body.
        options: further options of the monitor.
        steps: optimizer steps of the run.
        looked: steps whose numbers are computed apart. Both presets capture 0, 1, 2 and 4.
        measures: which of the measures are compared; None: all of them.
        skipped: steps that no optimizer took; None: those in which the plain run's scale fell.
        compiled: bits are compared with a run that is eager at the captured steps.
        checks, bodies: those that apply. slow: left out of `make test`; of a row that is not,
            all but those checks named in `slow_checks` are in.
        needs: says why the mode cannot run here; "" where it can.
        fit: how it is run; what it returns, if anything, is the trainer that ran.
        off: why nothing is recorded at all, where nothing is.
        start: the first step that the history in memory has.
        bare: whether the monitor is given to the Trainer without a list.
        beside: further callbacks of a watched run.
        note: what else the page should say.
    """

    name: str
    group: str
    exact: str = EXACT
    missing: Mapping[str, str] = field(default_factory=dict)
    blind: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    uncaptured: str = ""
    module: Callable[[str], Any] = nets.Net
    trainer: Callable[[], dict[str, Any]] = dict
    callbacks: Callable[[], list[Any]] = list
    data: Callable[[str], Any] = lambda body: parts.loader(body, 6)
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 6
    looked: tuple[int, ...] = (2, 4)
    measures: tuple[str, ...] | None = None
    skipped: tuple[int, ...] | None = ()
    compiled: bool = False
    checks: tuple[str, ...] = ALL
    bodies: tuple[str, ...] = BODIES
    slow: bool = False
    slow_checks: tuple[str, ...] = ("exports",)
    needs: Callable[[], str] = lambda: ""
    fit: Callable[[Any, Any, Any, Path], Any] = lambda trainer, module, data, root: trainer.fit(
        module, data
    )
    off: str = ""
    start: int = 0
    bare: bool = False
    beside: Callable[[], list[Any]] = list
    note: str = ""

    @property
    def unavailable(self) -> str:
        """What is not available and why, in the page's words."""
        said = [f"{what}: {why}" for what, why in self.missing.items()]
        listed = f", listed as *{', '.join(self.unseen)}*" if self.unseen else ""
        said += [f"additions in {', '.join(self.hidden)}{listed}"] if self.hidden else []
        said += [f"everything: {self.off}"] if self.off else []
        said += [f"captured steps: {self.uncaptured}"] if self.uncaptured else []
        return "; ".join(said)
