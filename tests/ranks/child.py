"""One process of some tests: calls functions and writes down what each returns."""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from torch import distributed


class _Said(logging.Handler):
    """What the monitor logs, warnings and worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "skipscope":
            self.lines.append(self.format(record))


def _free_port(note: Path, rank: int) -> str:
    """A port that the first rank finds free, and tells the others of.

    None that the system gives to sockets without one: who gets it meanwhile keeps the first rank
    from listening, and the others waiting.
    """
    if rank == 0:
        port = str(next(filter(_is_free, range(10_000 + 16 * os.getpid() % 20_000, 32_768))))
        note.with_suffix(".new").write_text(port)
        note.with_suffix(".new").rename(note)
    while not note.exists():
        time.sleep(0.01)
    return note.read_text()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def main() -> None:
    root, calls = Path(sys.argv[1]), json.loads(sys.argv[2])
    rank = int(os.environ["RANK"])
    for name, function, settings in calls:
        faulthandler.dump_traceback_later(float(sys.argv[3]))  # where it hangs
        os.environ["CALL"] = name
        os.environ["MASTER_PORT"] = _free_port(root / f"{name}.port", rank)
        said = _Said()
        logging.getLogger().addHandler(said)
        module, _, function = function.partition(":")
        place = root / name
        place.mkdir(exist_ok=True)
        result: dict[str, Any]
        try:
            call = getattr(importlib.import_module(f"tests.ranks.{module}"), function)
            result = call(rank, place, **settings)
        except Exception:
            result = {"error": traceback.format_exc()}
            if distributed.is_initialized():
                distributed.destroy_process_group()
        logging.getLogger().removeHandler(said)
        Path(root, f"{name}-{rank}.json").write_text(json.dumps({**result, "said": said.lines}))


if __name__ == "__main__":
    main()
