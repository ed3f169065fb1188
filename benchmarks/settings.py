"""How large the measurements are: the full size, and the smallest that still runs every piece."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Sizes of every piece; the defaults are those the aims are stated for."""

    repetitions: int = 7
    rounds: int = 5  #: runs of each arm within a repetition
    depth: int = 8
    width: int = 256
    batch: int = 8
    tokens: int = 128
    run_repetitions: int = 5
    run_steps: int = 1000
    run_idle: int = 40  #: steps that are timed for all those on which nothing is attached
    mlp_depths: tuple[int, int] = (100, 1000)
    mlp_repetitions: int = 7
    memory_repetitions: int = 5
    memory_steps: int = 4
    load_captures: int = 10_000
    load_sites: int = 200
    load_repetitions: int = 5


QUICK = Settings(
    repetitions=2,
    rounds=1,
    depth=2,
    width=32,
    batch=2,
    tokens=16,
    run_repetitions=2,
    run_steps=60,
    run_idle=3,
    mlp_depths=(5, 20),
    mlp_repetitions=2,
    memory_repetitions=1,
    memory_steps=2,
    load_captures=50,
    load_sites=10,
    load_repetitions=1,
)
