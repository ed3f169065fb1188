"""A training step under an intervention, against the plain step of the same net."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks.nets import Training, gpt_training, mlp_training
from benchmarks.settings import Settings
from benchmarks.timing import CLOCKS, interleave, milliseconds, ratios
from skipscope import intervene

#: What is done to the sums of a net for the whole of its training.
ARMS: Mapping[str, dict[str, Any]] = {
    "shortcuts left out": {"shortcut": False},
    "branches scaled": {"branch_scale": 0.5},
}


def run(settings: Settings) -> Iterator[str]:
    """A net that computes much in each block, and one that computes next to nothing."""
    sizes = settings.depth, settings.width, settings.batch, settings.tokens
    yield from _compare(f"GPT, {settings.depth} layers", lambda: gpt_training(*sizes), settings)
    blocks = settings.mlp_depths[0]
    yield from _compare(f"residual MLP, {blocks} blocks", lambda: mlp_training(blocks), settings)


def _compare(net: str, make: Callable[[], Training], settings: Settings) -> Iterator[str]:
    trainings = {name: make() for name in ("plain", *ARMS)}
    with ExitStack() as stack:
        for name, changed in ARMS.items():
            stack.enter_context(intervene(trainings[name].model, **changed))
        arms = {name: training.step for name, training in trainings.items()}
        seconds = interleave(arms, settings.repetitions, settings.rounds)
    for clock in CLOCKS:
        plain = milliseconds(seconds["plain"], clock)
        yield f"{clock:4}  {net}: plain step {plain.text('.1f')} ms"
        for name in ARMS:
            ratio = ratios(seconds[name], seconds["plain"], clock)
            yield f"{clock:4}  {net}: {name} / plain = {ratio.text()}"
