"""The table of faults: for each rule one or more ways to plant what it should find."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.faults.nets import CNNS, FAMILIES, TRANSFORMERS, Plan, draw
from benchmarks.faults.training import Place, Training

#: Plants a fault and returns the paths of its places; ("model",) for the whole net.
Plant = Callable[[Training, random.Random], tuple[str, ...]]
Tweak = Callable[[Plan, random.Random], Plan]

PRE_NORM = ("pre-norm", "sandwich")
#: Nets whose stream passes nothing between two sums, and whose branches do not start at 0.
OPEN = (*PRE_NORM, "pre-activation-cnn", "norm-free-cnn", "batch-norm-mlp", "norm-free-mlp")

#: Steps of a run in which a fault shows at once.
SHORT = 36


@dataclass(frozen=True)
class Fault:
    """One way to plant one fault."""

    code: str  #: of the rule that should find it
    name: str
    plant: Plant
    families: tuple[str, ...]
    tweak: Tweak | None
    info: bool  #: an information is what the rule has to say
    presets: tuple[str, ...]
    spreading: bool  #: the finding rightly names more places than the planted ones
    at_once: bool  #: the first steps show it, so short runs are made shorter

    def plan(self, rng: random.Random) -> Plan:
        """A plan in which this fault can be planted; one fault in a net, so nothing is frozen."""
        preset = "train" if rng.random() < 0.25 else "debug"
        if preset not in self.presets:
            preset = self.presets[0]
        plan = draw(rng, self.families, preset)
        plan = replace(plan, variant="", drop=0.0)
        if self.at_once and preset == "debug":
            plan = replace(plan, steps=min(plan.steps, SHORT))
        return self.tweak(plan, rng) if self.tweak is not None else plan


FAULTS: dict[str, list[Fault]] = {}


def fault(
    code: str,
    *,
    families: tuple[str, ...] = tuple(FAMILIES),
    tweak: Tweak | None = None,
    info: bool = False,
    presets: tuple[str, ...] = ("debug", "train"),
    spreading: bool = False,
    at_once: bool = False,
) -> Callable[[Plant], Plant]:
    """Enters a function that plants into the table."""

    def enter(plant: Plant) -> Plant:
        made = Fault(
            code, plant.__name__, plant, families, tweak, info, presets, spreading, at_once
        )
        FAULTS.setdefault(code, []).append(made)
        return plant

    return enter


def at_random(training: Training, rng: random.Random, inner: bool = False) -> Place:
    """A random addition whose shortcut is x itself; an inner one has two blocks on either side."""
    places = [place for place in training.places() if place.shape_kept]
    if inner:
        blocks = list(dict.fromkeys(id(place.block) for place in places))
        usable = set(blocks[2:-2])
        places = [place for place in places if id(place.block) in usable] or places[2:-2]
    return rng.choice(places)


def everywhere(training: Training) -> list[Place]:
    """All additions whose shortcut is x itself."""
    return [place for place in training.places() if place.shape_kept]


__all__ = ["CNNS", "FAULTS", "OPEN", "PRE_NORM", "TRANSFORMERS", "Fault", "fault"]
