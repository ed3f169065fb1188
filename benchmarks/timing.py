"""Interleaved timing: every arm once, again and again; paired ratios, medians, ranges."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Clock = Literal["cpu", "wall"]
CLOCKS: tuple[Clock, ...] = ("cpu", "wall")


@dataclass(frozen=True)
class Seconds:
    """One timing: processor time of all threads of this process, and the clock on the wall."""

    cpu: float
    wall: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.cpu + other.cpu, self.wall + other.wall)

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.cpu - other.cpu, self.wall - other.wall)


@dataclass(frozen=True)
class Spread:
    """A median with the range it came from."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    def text(self, form: str = ".3f", factor: float = 1.0) -> str:
        middle, low, high = (format(factor * v, form) for v in (self.middle, self.low, self.high))
        return f"{middle} [{low} to {high}]"

    def verdict(self, aim: float, margin: float) -> str:
        """Whether an aim is met; a range wider than the margin at stake decides nothing."""
        if self.high - self.low > margin and self.low <= aim <= self.high:
            return f"not resolved (range {self.high - self.low:.3f}, margin {margin:.3f})"
        return "met" if self.middle <= aim else "missed"


def timed(function: Callable[[], object]) -> Seconds:
    """Runs once."""
    start = now()
    function()
    return now() - start


def now() -> Seconds:
    """Both clocks."""
    return Seconds(time.process_time(), time.perf_counter())


def interleave(
    arms: Mapping[str, Callable[[], object]], repetitions: int, rounds: int = 1, warmup: int = 2
) -> dict[str, list[Seconds]]:
    """Times the arms in turn, forwards and backwards alternately.

    Args:
        arms: name to what is run once.
        repetitions: timings per arm.
        rounds: runs that one timing is the median of (processor and wall clock each).
        warmup: rounds before anything counts.
    """
    found: dict[str, list[Seconds]] = {name: [] for name in arms}
    for _ in range(warmup):
        for run in arms.values():
            run()
    for _ in range(repetitions):
        gathered: dict[str, list[Seconds]] = {name: [] for name in arms}
        gc.collect()  # stays on: what an arm leaves to collect is a cost of its own
        for turn in range(rounds):
            order = list(arms.items())
            for name, run in order if turn % 2 == 0 else reversed(order):
                gathered[name].append(timed(run))
        for name, seconds in gathered.items():
            found[name].append(middle_of(seconds))
    return found


def middle_of(seconds: Sequence[Seconds]) -> Seconds:
    """The median of each clock."""
    return Seconds(median(s.cpu for s in seconds), median(s.wall for s in seconds))


def ratios(above: Sequence[Seconds], below: Sequence[Seconds], clock: Clock) -> Spread:
    """Ratio of the timings of one repetition, over all repetitions."""
    return Spread.of(
        [getattr(a, clock) / getattr(b, clock) for a, b in zip(above, below, strict=True)]
    )


def milliseconds(seconds: Sequence[Seconds], clock: Clock) -> Spread:
    """Median and range of timings."""
    return Spread.of([1000 * getattr(s, clock) for s in seconds])
