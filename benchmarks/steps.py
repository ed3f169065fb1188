"""One step: captured against plain, in processor time and on the wall clock."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.arms import captured, updates_only
from benchmarks.nets import gpt_training
from benchmarks.settings import Settings
from benchmarks.timing import CLOCKS, interleave, milliseconds, ratios

AIM = 1.10


def run(settings: Settings) -> Iterator[str]:
    """Times the four kinds of step in turn, on one net."""
    training = gpt_training(settings.depth, settings.width, settings.batch, settings.tokens)
    yield (
        f"GPT, {settings.depth} layers, width {settings.width}, batch "
        f"{settings.batch} x {settings.tokens}, {training.size / 1e6:.1f} M parameters, AdamW; "
        f"{settings.repetitions} repetitions of {settings.rounds} interleaved steps"
    )
    arms = {
        "plain": training.step,
        "captured": captured(training),
        "captured without updates": captured(training, updates="off"),
        "updates only": updates_only(training),
    }
    seconds = interleave(arms, settings.repetitions, settings.rounds)
    for clock in CLOCKS:
        plain = milliseconds(seconds["plain"], clock)
        yield f"{clock:4}  plain step {plain.text('.1f')} ms"
        for name in list(arms)[1:]:
            ratio = ratios(seconds[name], seconds["plain"], clock)
            aim = f"; aim {AIM}: {ratio.verdict(AIM, AIM - 1)}" if name == "captured" else ""
            yield f"{clock:4}  {name} / plain = {ratio.text()}{aim}"
