"""Whether cost grows in step with depth: a residual MLP of 100 and of 1,000 blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.arms import captured
from benchmarks.nets import mlp_training
from benchmarks.settings import Settings
from benchmarks.timing import CLOCKS, Clock, Seconds, Spread, interleave, milliseconds
from skipscope.find import find_residuals

AIM = 1.5


def run(settings: Settings) -> Iterator[str]:
    """All depths in turn within each repetition, so that all see the same machine.

    On one thread: there is nothing to share in tensors this small, and threads that wait for each
    other on a busy machine would drown everything.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield from _on_one_thread(settings)
    finally:
        torch.set_num_threads(threads)


def _on_one_thread(settings: Settings) -> Iterator[str]:
    arms = {}
    for depth in settings.mlp_depths:
        training = mlp_training(depth)
        arms[f"plain {depth}"] = training.step
        arms[f"captured {depth}"] = captured(training)
        arms[f"find {depth}"] = lambda t=training: find_residuals(t.model, t.inputs)
        arms[f"forward {depth}"] = lambda t=training: t.model(t.inputs)
    seconds = interleave(arms, settings.mlp_repetitions)
    yield f"residual MLP, width 16, batch 16; {settings.mlp_repetitions} repetitions; one thread"
    for what, without in (("captured", "plain"), ("find", "forward")):
        for clock in CLOCKS:
            yield from _compare(settings.mlp_depths, seconds, what, without, clock)


def _compare(
    depths: tuple[int, int],
    seconds: dict[str, list[Seconds]],
    what: str,
    without: str,
    clock: Clock,
) -> Iterator[str]:
    """Cost per site: the time above that without monitor, divided by the sites."""
    costs = []
    for depth in depths:
        pairs = zip(seconds[f"{what} {depth}"], seconds[f"{without} {depth}"], strict=True)
        extra = [getattr(a, clock) - getattr(b, clock) for a, b in pairs]
        costs.append([value / depth for value in extra])
        step = milliseconds(seconds[f"{what} {depth}"], clock)
        yield (
            f"{clock:4}  {what} at depth {depth}: {Spread.of(costs[-1]).text('.3f', 1000)} ms per "
            f"site above {without}; in all {step.text('.0f')} ms"
        )
    growth = Spread.of([deep / shallow for shallow, deep in zip(*costs, strict=True)])
    yield (
        f"{clock:4}  {what}: cost per site, deep / shallow = {growth.text('.2f')}; "
        f"aim {AIM}: {growth.verdict(AIM, AIM - 1)}"
    )
