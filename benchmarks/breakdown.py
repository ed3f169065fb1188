"""Host milliseconds per site, and where in the monitor a captured step spends them.

Functions of skipscope are wrapped here, in the benchmark's process, by a clock that counts each
one's own time only: what a wrapped function inside takes is taken off.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from benchmarks.arms import monitor_for
from benchmarks.nets import gpt_training
from benchmarks.settings import Settings
from benchmarks.timing import CLOCKS, Seconds, Spread, middle_of, milliseconds, now, timed

#: What a captured step consists of, and the functions that do it.
PARTS: tuple[tuple[str, str, str], ...] = (
    ("finding", "skipscope.find.discover", "Discovery.addition"),
    ("finding", "skipscope.find.discover", "Discovery.fused"),
    ("completing the graph", "skipscope.find.discover", "Discovery.call"),
    ("following modules", "skipscope.find.places", "Places._before"),
    ("following modules", "skipscope.find.places", "Places._after"),
    ("forward sums", "skipscope.capture", "Capture._measure_forward"),
    ("forward sums", "skipscope.capture", "Capture._make_sums"),
    ("hanging gradient hooks", "skipscope.capture", "Capture._hook"),
    ("gradient hooks", "skipscope.capture.slots", "Slot.at_sum"),
    ("gradient hooks", "skipscope.capture.slots", "Slot.at_share"),
    ("gradient hooks", "skipscope.capture.slots", "Slot.at_input"),
    ("updates", "skipscope.updates", "Updates._pre"),
    ("updates", "skipscope.updates", "Updates._post"),
    ("transfer", "skipscope.capture", "Capture.collect"),
    ("transfer", "skipscope.updates", "Updates.collect"),
    ("transfer", "skipscope.transfer", "Transfer.move"),
    ("recording", "skipscope.recorder", "Recorder.record_capture"),
    ("recording", "skipscope.recorder", "Recorder.describe_parameters"),
    ("recording", "skipscope.recorder", "Recorder.tell"),
    ("recording", "skipscope.recorder", "Recorder.flush"),
    ("diagnosis", "skipscope.judge", "Judge.at_capture"),
    ("starting the step", "skipscope.stepping", "Steps._begin"),
    ("ending the step", "skipscope.stepping", "Steps._measure"),
    ("meeting the other ranks", "skipscope.stepping", "Steps._meet"),
    ("recording the step", "skipscope.stepping", "Steps._record"),
    ("(the model's own additions)", "skipscope.capture.guarded", "_Once.__call__"),
)
#: Not the monitor's: the operation itself, run from inside.
_NOT_OURS = "(the model's own additions)"


class Watch:
    """Own time of each part, on both clocks; parts may lie within parts."""

    def __init__(self) -> None:
        self.own: dict[str, Seconds] = defaultdict(lambda: Seconds(0.0, 0.0))
        self._inner = [Seconds(0.0, 0.0)]

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its own time counted."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(Seconds(0.0, 0.0))
            start = now()
            try:
                return function(*args, **kwargs)
            finally:
                took = now() - start
                self.own[part] += took - self._inner.pop()
                self._inner[-1] += took

        return run


@contextmanager
def clocked() -> Iterator[Watch]:
    """Wraps all `PARTS` while it is open."""
    watch = Watch()
    with ExitStack() as stack:
        for part, module, path in PARTS:
            owner: Any = importlib.import_module(module)
            *way, name = path.split(".")
            for attribute in way:
                owner = getattr(owner, attribute)
            function = owner.__dict__[name]
            setattr(owner, name, watch.wrap(part, function))
            stack.callback(setattr, owner, name, function)
        yield watch


def run(settings: Settings) -> Iterator[str]:
    """Captured steps of the GPT with the clock on, each beside a plain step."""
    training = gpt_training(settings.depth, settings.width, settings.batch, settings.tokens)
    monitor = monitor_for(training, preset="debug")
    parts: dict[str, list[Seconds]] = defaultdict(list)
    extra: list[Seconds] = []
    steps = 3 * settings.repetitions
    for step in range(2 + steps):
        plain = timed(training.step)
        with clocked() as watch:
            watched = timed(lambda: _captured(monitor, training.step))
        if step >= 2:
            extra.append(watched - plain)
            for part in dict.fromkeys(part for part, *_ in PARTS):
                parts[part].append(watch.own[part])
    sites = len(monitor.history.sites.sites)
    yield f"{sites} sites; medians of {steps} captured steps; processor time is that of all threads"
    for clock in CLOCKS:
        own = [
            sum(getattr(parts[p][i], clock) for p in parts if p != _NOT_OURS) for i in range(steps)
        ]
        for what, values in (
            ("the monitor's own time", own),
            ("captured step above plain step", [getattr(seconds, clock) for seconds in extra]),
        ):
            spread = Spread.of(values)
            per_site = Spread.of([value / sites for value in values])
            yield (
                f"{clock:4}  {what}: {spread.text('.1f', 1e3)} ms, "
                f"per site {per_site.text('.2f', 1e3)} ms"
            )
    yield "of which (ms)                      cpu                     wall"
    for part, seconds in sorted(parts.items(), key=lambda item: -middle_of(item[1]).cpu):
        cpu, wall = (milliseconds(seconds, clock).text(".2f") for clock in CLOCKS)
        yield f"    {part:28} {cpu:22}  {wall}"
    yield from _full_window(monitor)


def _captured(monitor: Any, step: Callable[[], None]) -> None:
    with monitor.step():
        step()


def _full_window(monitor: Any) -> Iterator[str]:
    """A diagnosis looks at a window of captures; how long it takes once that is full."""
    history = monitor.history
    sums, have, why = history.sums[-1], history.have[-1], history.why[-1]
    updates, update_have, facts = history.updates[-1], history.update_have[-1], history.facts[-1]
    start = monitor.step_count
    for step in range(start, start + 400):
        history.append_capture(step, sums, have, why)
        history.append_updates(step, updates, update_have)
        rows = facts.repeat(50).reshape(-1, 50).T.copy()
        rows[:, 0] = range(50 * step, 50 * step + 50)
        history.append_facts(rows)

    def diagnose() -> None:
        history.append_facts(facts)  # so that no table is remembered
        monitor.diagnose()

    seconds = [timed(diagnose) for _ in range(9)]
    cpu, wall = (milliseconds(seconds, clock).text(".1f") for clock in CLOCKS)
    yield f"a diagnosis over a full window: cpu {cpu} ms, wall {wall} ms (one at each capture)"
