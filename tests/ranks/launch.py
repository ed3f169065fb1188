"""Runs functions in two processes that talk over gloo; kills them when they hang or one fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: Processes hang when no call ends for so many seconds; a busy machine is slow without that.
HANGS_AFTER = 120
Results = list[dict[str, Any]]  #: one a rank


def launch(
    root: Path, calls: dict[str, tuple[str, dict[str, Any]]], *, ranks: int = 2
) -> dict[str, Results]:
    """Makes some calls in each of several processes, one after the other; what each returned.

    One start serves several tests: it takes longer than they do.

    Args:
        root: an empty folder.
        calls: by name, "module:function" in `tests.ranks` and its settings; it is called with its
            rank and a folder of its own, and returns plain values.
        ranks: how many processes.
    """
    command = [sys.executable, "-m", "tests.ranks.child"]
    listed = json.dumps([(name, *call) for name, call in calls.items()])
    started = []
    for rank in range(ranks):
        with (root / f"output-{rank}.txt").open("w") as said:
            started.append(
                subprocess.Popen(
                    [*command, str(root), listed, str(HANGS_AFTER - 5)],
                    env={**os.environ, **_environment(rank, ranks)},
                    cwd=root,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
            )
    _wait(started, root)
    for process in started:
        process.kill()
        process.wait()
    output = [(root / f"output-{rank}.txt").read_text() for rank in range(ranks)]
    assert all(process.returncode == 0 for process in started), "\n".join(output)
    results = {
        name: [json.loads((root / f"{name}-{rank}.json").read_text()) for rank in range(ranks)]
        for name in calls
    }
    for of_ranks in results.values():
        for result, text in zip(of_ranks, output, strict=True):
            result["output"] = text
    return results


def _wait(started: list[subprocess.Popen[bytes]], root: Path) -> None:
    """Until all have ended, one has failed, for which the others may wait, or no call ends."""
    ended, since = 0, time.monotonic()
    while time.monotonic() < since + HANGS_AFTER:
        codes = [process.poll() for process in started]
        if None not in codes or any(codes):
            return
        if (now := len(list(root.glob("*.json")))) != ended:
            ended, since = now, time.monotonic()
        time.sleep(0.05)


def _environment(rank: int, ranks: int) -> dict[str, str]:
    return {
        "MASTER_ADDR": "127.0.0.1",
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
