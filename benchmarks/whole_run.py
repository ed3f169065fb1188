"""A run of 1,000 steps at the default schedule, against the same run without monitor.

On 19 of 20 steps of a run nothing is attached, and these steps are all alike. So every step on
which something is attached is really run, at its place in the schedule and beside a plain step; of
the others `run_idle`, evenly spread, stand for all. The run's time is the sum over its steps.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median

from benchmarks.arms import monitor_for
from benchmarks.nets import Training, gpt_training
from benchmarks.settings import Settings
from benchmarks.timing import CLOCKS, Seconds, Spread, middle_of, timed
from skipscope.monitor import Monitor
from skipscope.schedule import Schedule

AIM = 1.01


def run(settings: Settings) -> Iterator[str]:
    """Each repetition is a run of its own, with a fresh net and a fresh monitor."""
    kinds = {step: _kind(step) for step in range(settings.run_steps)}
    counts = Counter(kinds.values())
    yield (
        f"{settings.run_steps} steps: "
        + ", ".join(f"{count} {kind}" for kind, count in counts.items())
        + f"; {settings.run_repetitions} repetitions; idle steps sampled, all others run"
    )
    runs = [_one_run(settings, kinds) for _ in range(settings.run_repetitions)]
    for clock in CLOCKS:
        whole = Spread.of([_ratio(r.seconds, counts, clock) for r in runs])
        yield f"{clock:4}  run / plain run = {whole.text('.4f')}; {_verdict(whole)}"
        by_host = Spread.of([_ratio(r.with_host_time, counts, clock) for r in runs])
        yield (
            f"{clock:4}  the same, idle steps as plain step + the monitor's own time = "
            f"{by_host.text('.4f')}; {_verdict(by_host)}"
        )
    idle = Spread.of([r.idle_host for r in runs])
    yield f"the monitor's own time on an idle step: {idle.text('.0f', 1e6)} microseconds"
    first = Spread.of([r.first for r in runs])
    yield f"the first captured step above a plain step: {first.text('.0f', 1e3)} ms"


class _Run:
    """What one run took, by kind of step."""

    def __init__(self, pairs: dict[str, list[tuple[Seconds, Seconds]]], host: list[float]) -> None:
        plain = middle_of([plain for members in pairs.values() for plain, _ in members])
        #: kind -> (plain step, monitored step)
        self.seconds = {
            kind: (plain, middle_of([watched for _, watched in members]))
            for kind, members in pairs.items()
        }
        self.idle_host = median(host)
        extra = Seconds(self.idle_host, self.idle_host)
        self.with_host_time = {**self.seconds, "idle": (plain, plain + extra)}
        first_plain, first_watched = pairs["captured"][0]
        self.first = first_watched.wall - first_plain.wall


def _kind(step: int) -> str:
    schedule = Schedule(every_n_steps=50)
    if schedule.captures(step):
        return "captured"
    return "updates only" if schedule.updates(step) else "idle"


def _one_run(settings: Settings, kinds: dict[int, str]) -> _Run:
    watched, plain = (
        gpt_training(settings.depth, settings.width, settings.batch, settings.tokens)
        for _ in range(2)
    )
    monitor = monitor_for(watched)
    idle = [step for step, kind in kinds.items() if kind == "idle"]
    sampled = set(idle[:: max(1, len(idle) // settings.run_idle)])
    pairs: dict[str, list[tuple[Seconds, Seconds]]] = {}
    host: list[float] = []
    plain.step()  # the optimizer's state is made here
    gc.collect()
    for step, kind in kinds.items():
        if kind == "idle" and step not in sampled:
            continue
        below = timed(plain.step)
        above = timed(lambda at=step, own=host: _watched_step(monitor, watched, at, own))
        pairs.setdefault(kind, []).append((below, above))
        if kind != "idle":
            host.pop()
    monitor.close()
    return _Run(pairs, host)


def _watched_step(monitor: Monitor, training: Training, step: int, host: list[float]) -> None:
    start = time.perf_counter()
    monitor.begin_step(step=step)
    begun = time.perf_counter()
    training.step()
    stepped = time.perf_counter()
    monitor.end_step()
    host.append(begun - start + time.perf_counter() - stepped)


def _ratio(seconds: dict[str, tuple[Seconds, Seconds]], counts: Counter[str], clock: str) -> float:
    plain, watched = (
        sum(count * getattr(seconds[kind][arm], clock) for kind, count in counts.items())
        for arm in (0, 1)
    )
    return watched / plain


def _verdict(ratio: Spread) -> str:
    return f"aim {AIM}: {ratio.verdict(AIM, AIM - 1)}"
