"""Runs functions in two processes that talk over gloo; kills them when they hang or one fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: Processes hang when no call ends for so many seconds; a busy machine is slow without that.
HANGS_AFTER = 300
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
    listed = json.dumps([(name, *call) for name, call in calls.items()])
    command = [sys.executable, "-m", "tests.ranks.child", str(root), listed]
    with (root / "output.txt").open("w") as said:
        started = subprocess.Popen(
            [*command, str(HANGS_AFTER - 5), str(ranks)],
            env={**os.environ, **_environment(ranks)},
            cwd=root,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that all of them can be ended
        )
    _wait(started, root)
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    output = [file.read_text() for file in sorted(root.glob("output-*.txt"))]
    assert started.wait() == 0, "\n".join([(root / "output.txt").read_text(), *output])
    results = {
        name: [json.loads((root / f"{name}-{rank}.json").read_text()) for rank in range(ranks)]
        for name in calls
    }
    for of_ranks in results.values():
        for result, text in zip(of_ranks, output, strict=True):
            result["output"] = text
    return results


def _wait(started: subprocess.Popen[bytes], root: Path) -> None:
    """Until all have ended, or no call ends any more."""
    ended, since = 0, time.monotonic()
    while started.poll() is None and time.monotonic() < since + HANGS_AFTER:
        if (now := len(list(root.glob("*.json")))) != ended:
            ended, since = now, time.monotonic()
        time.sleep(0.05)


def _environment(ranks: int) -> dict[str, str]:
    return {
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
