"""Runs functions in two processes that talk over gloo, and kills the processes when they hang."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: Processes that take longer hang.
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
    port = random.SystemRandom().randrange(20000, 32000)  # below those the system deals out
    listed = json.dumps([(name, *call) for name, call in calls.items()])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.ranks.child", str(root), listed],
            env={**os.environ, **_environment(rank, ranks, port)},
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    output = []
    try:
        output = [process.communicate(timeout=HANGS_AFTER)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(output)
    results = {
        name: [json.loads((root / f"{name}-{rank}.json").read_text()) for rank in range(ranks)]
        for name in calls
    }
    for of_ranks in results.values():
        for result, text in zip(of_ranks, output, strict=True):
            result["output"] = text
    return results


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
