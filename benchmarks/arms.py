"""A plain training step, and the same step with a monitor in each of its ways."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

from benchmarks.nets import Training
from skipscope.monitor import Monitor
from skipscope.schedule import Schedule

#: Steps below this on which updates are measured and nothing is captured.
_EARLY = 50


def monitor_for(training: Training, **options: object) -> Monitor:
    """A monitor of a training that writes no report and hides no error."""
    settings: dict[str, object] = {"report": [], "on_error": "raise", **options}
    return Monitor(training.model, training.optimizer, **settings)


def captured(training: Training, **options: object) -> Callable[[], None]:
    """A step with everything: forward, backward, updates."""
    monitor = monitor_for(training, preset="debug", **options)

    def run() -> None:
        with monitor.step():
            training.step()

    return run


def updates_only(training: Training) -> Callable[[], None]:
    """A step of which only the parameters are measured, as most of the first 50 are."""
    monitor = monitor_for(training, every_n_steps=10**9)
    schedule = Schedule(every_n_steps=10**9)
    steps = cycle([step for step in range(_EARLY) if not schedule.captures(step)])

    def run() -> None:
        monitor.begin_step(step=next(steps))
        training.step()
        monitor.end_step()

    return run
