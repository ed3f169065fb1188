"""Peak memory with and without monitor: `ru_maxrss` of a process of its own for each.

`python -m benchmarks.memory ARM DEPTH WIDTH BATCH TOKENS STEPS` prints one process's peak.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.settings import Settings
from benchmarks.timing import Spread

ARMS = ("plain", "captured without updates", "captured")


def run(settings: Settings) -> Iterator[str]:
    """The arms in turn, each in a fresh process that trains a few steps and captures each."""
    sizes = (settings.depth, settings.width, settings.batch, settings.tokens, settings.memory_steps)
    peaks: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(settings.memory_repetitions):
        for arm in ARMS:
            peaks[arm].append(_peak_of_process(arm, sizes))
    yield f"{settings.memory_repetitions} processes each, {settings.memory_steps} steps, same GPT"
    for arm, values in peaks.items():
        yield f"peak memory, {arm}: {Spread.of(values).text('.0f')} MiB"
    for arm in ARMS[1:]:
        extra = [with_ - without for with_, without in zip(peaks[arm], peaks["plain"], strict=True)]
        yield f"{arm} above plain: {Spread.of(extra).text('.0f')} MiB"


def _peak_of_process(arm: str, sizes: tuple[int, ...]) -> float:
    command = [sys.executable, "-m", "benchmarks.memory", arm, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def peak(arm: str, depth: int, width: int, batch: int, tokens: int, steps: int) -> float:
    """Trains a few steps in this process; its peak so far, in MiB.

    The plain arm does not even import skipscope: what its code takes is part of the difference.
    """
    import resource

    from benchmarks.nets import gpt_training

    training = gpt_training(depth, width, batch, tokens)
    step = training.step
    if arm != "plain":
        from benchmarks.arms import captured

        options = {} if arm == "captured" else {"updates": "off"}
        step = captured(training, **options)
    for _ in range(steps):
        step()
    # Linux counts in KiB, macOS in bytes.
    unit = 2**20 if platform.system() == "Darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


if __name__ == "__main__":
    print(peak(sys.argv[1], *map(int, sys.argv[2:])))
