"""Starts a function in two processes that talk over gloo, and kills them when they hang."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: A test that takes longer hangs.
HANGS_AFTER = 120


def launch(function: str, root: Path, *, ranks: int = 2, **settings: Any) -> list[dict[str, Any]]:
    """Calls `tests.ranks.FUNCTION(rank, root, **settings)` in every rank; what each returned.

    Args:
        function: "module:function"; it returns plain values.
        root: a folder of the test's own.
        ranks: how many processes.
        **settings: plain values.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }
        command = [sys.executable, "-m", "tests.ranks.child", function, str(root)]
        started.append(
            subprocess.Popen(
                [*command, json.dumps(settings)],
                env=environment,
                cwd=root,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    output: list[str] = []
    try:
        output += [process.communicate(timeout=HANGS_AFTER)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(output)
    return [
        {**json.loads((root / f"rank-{rank}.json").read_text()), "output": text}
        for rank, text in enumerate(output)
    ]
