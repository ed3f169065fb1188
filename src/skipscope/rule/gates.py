"""When a rule may speak: warm-up, patience, and the sizes below which a law says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.names import counted
from skipscope.records import Group
from skipscope.rule.siblings import Stage

Mask = npt.NDArray[np.bool_]

#: Warm-up looks this many optimizer steps back, and ends after as many without a rise.
LOOK_BACK = 10


class NotMeasurable(Exception):  # noqa: N818 - an outcome, not an error
    """A rule, or one arm of it, cannot look; its text is the reason."""


@dataclass(frozen=True)
class Warmup:
    """Where the warm-up of the learning rate ends.

    `end` is the first step after it, 0 without a warm-up, None while it lasts or while fewer than
    ten steps without a rise are known.
    """

    end: int | None
    last: int = 0  #: last step known
    quiet: int = 0  #: steps known, where the learning rate has not risen so far and `end` is None


@dataclass(frozen=True)
class Streak:
    """Captures in a row that show the same thing in one column."""

    column: int
    first: int  #: row
    last: int  #: row
    steps: tuple[int, int]  #: of these rows


@dataclass(frozen=True)
class Gate:
    """What the framework asks of a hit of one rule."""

    patience: int = 3
    start: int = 0  #: first step that counts

    def streaks(
        self,
        steps: npt.NDArray[np.int64],
        shown: Mask,
        missing: Mask | None = None,
        patience: int | None = None,
    ) -> list[Streak]:
        """The latest streak of each column that is long enough; unmeasured rows do not count.

        Shape: `steps` (rows,), `shown` and `missing` (rows, columns).

        >>> shown = np.array([[True], [True], [False], [True]])
        >>> Gate(patience=2).streaks(np.arange(4), shown)
        [Streak(column=0, first=0, last=1, steps=(0, 1))]
        """
        need = self.patience if patience is None else patience
        found = []
        for column in map(int, np.flatnonzero(shown.sum(axis=0) >= need)):
            counts = steps >= self.start
            if missing is not None:
                counts = counts & ~missing[:, column]
            rows = np.flatnonzero(counts)
            latest = _latest(shown[rows, column], need)
            if latest:
                first, last = (int(rows[at]) for at in latest)
                found.append(Streak(column, first, last, (int(steps[first]), int(steps[last]))))
        return found


def _latest(shown: Mask, need: int) -> tuple[int, int] | None:
    """First and last position of the latest run of at least `need` true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], shown, [False])).astype(np.int8)))
    for first, after in reversed(list(zip(edges[::2], edges[1::2], strict=True))):
        if after - first >= need:
            return int(first), int(after - 1)
    return None


def warmup(lr: Table, skipped: Table | None, groups: Sequence[Group]) -> Warmup:
    """Find the end of the warm-up.

    It lasts while a group's learning rate is more than 1 % above its value ten optimizer steps
    before, or below half of the `max_lr` or `initial_lr` of its group and rising; it ends for good
    at the first ten steps without a rise. Skipped steps are no steps.
    """
    keep = np.ones(len(lr.steps), dtype=bool)
    if skipped is not None and len(skipped.steps) == len(lr.steps):
        keep = ~(skipped.values[:, 0] > 0)
    steps, rates = lr.steps[keep], np.nan_to_num(lr.values[keep])
    if not len(steps):
        return Warmup(None)
    peaks = np.array([_peak(group.options) for group in groups[: rates.shape[1]]])
    peaks = np.pad(peaks, (0, rates.shape[1] - len(peaks)))
    before = rates[np.maximum(np.arange(len(rates)) - LOOK_BACK, 0)]
    previous = np.vstack([rates[:1], rates[:-1]])
    rising = (rates > 1.01 * before) | ((rates < 0.5 * peaks) & (rates > previous))
    edges = np.concatenate(([-1], np.flatnonzero(rising.any(axis=1)), [len(steps)]))
    for last_rise, next_rise in pairwise(edges):
        if next_rise - last_rise > LOOK_BACK:
            return Warmup(int(steps[last_rise + 1]), int(steps[-1]))
    return Warmup(None, int(steps[-1]), 0 if rising.any() else len(steps))


def _peak(options: Mapping[str, float | bool | str | None]) -> float:
    """The learning rate that a schedule heads for, 0 where it does not say."""
    named = (options.get(name) for name in ("max_lr", "initial_lr"))
    return max((float(value) for value in named if isinstance(value, int | float)), default=0.0)


def after_warmup(found: Warmup, steps: int = 0) -> int:
    """The first step after warm-up.

    Raises:
        NotMeasurable: it is not over, or fewer than `steps` steps have passed since.
    """
    if found.end is None and found.quiet:
        raise NotMeasurable(
            f"needs {LOOK_BACK} steps, to tell that the learning rate does not warm up, has "
            f"{found.quiet}"
        )
    if found.end is None:
        raise NotMeasurable(f"needs the end of warm-up, not reached at step {found.last}")
    if found.last - found.end < steps:
        past = found.last - found.end
        raise NotMeasurable(f"needs {counted(steps, 'step')} after warm-up, has {past}")
    return found.end


def deep_enough(stages: Sequence[Stage], sites: int) -> tuple[Stage, ...]:
    """The stages with at least so many sites.

    Raises:
        NotMeasurable: there is none.
    """
    chosen = tuple(stage for stage in stages if len(stage.sites) >= sites)
    if not chosen:
        most = max((len(stage.sites) for stage in stages), default=0)
        raise NotMeasurable(f"needs {counted(sites, 'site')} in one stage, has {most}")
    return chosen
