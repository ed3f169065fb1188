"""`python -m benchmarks`: all measurements in one process, or some of them by name."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import (
    breakdown,
    depth,
    interventions,
    load_history,
    memory,
    steps,
    transfers,
    whole_run,
)
from benchmarks.settings import QUICK, Settings

#: In the order they run.
PIECES: Mapping[str, Callable[[Settings], Iterator[str]]] = {
    "steps": steps.run,
    "whole-run": whole_run.run,
    "breakdown": breakdown.run,
    "transfers": transfers.run,
    "memory": memory.run,
    "depth": depth.run,
    "load-history": load_history.run,
    "interventions": interventions.run,
}


def machine() -> str:
    """What the numbers were taken on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"{dt.date.today().isoformat()}, {_processor()}, {cores} cores, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.system()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def load() -> str:
    """How busy the machine is, by others and by this process: averages over 1, 5 and 15 minutes."""
    averages = os.getloadavg() if hasattr(os, "getloadavg") else ()
    return "load " + " ".join(f"{average:.2f}" for average in averages)


def main(arguments: list[str] | None = None) -> None:
    """Runs the pieces that were asked for and prints their lines."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=", ".join(PIECES))
    parser.add_argument("--quick", action="store_true", help="smallest sizes: does it run at all?")
    parser.add_argument("--repetitions", type=int, help="of each step; 5 at least for a result")
    parser.add_argument("--threads", type=int, help="of torch; all cores, with --quick one")
    given = parser.parse_args(arguments)
    if unknown := sorted(set(given.pieces) - PIECES.keys()):
        parser.error(f"no piece {', '.join(unknown)}; there are {', '.join(PIECES)}")
    if given.threads or given.quick:
        torch.set_num_threads(given.threads or 1)
    settings = QUICK if given.quick else Settings()
    if given.repetitions:
        settings = replace(settings, repetitions=given.repetitions)
    print(machine())
    for name in given.pieces or PIECES:
        start = time.perf_counter()
        print(f"\n{name} ({load()})")
        for line in PIECES[name](settings):
            print(f"  {line}", flush=True)
        print(f"  took {time.perf_counter() - start:.0f} s ({load()})", flush=True)


if __name__ == "__main__":
    main()
