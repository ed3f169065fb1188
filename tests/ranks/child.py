"""The processes of some tests: each calls functions and writes down what each returns."""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import os
import signal
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
    """Loads what the calls need, once for all ranks; then each rank is a process of its own."""
    root, calls, hangs_after, ranks = sys.argv[1], json.loads(sys.argv[2]), *sys.argv[3:5]
    for _, function, _ in calls:
        importlib.import_module(_module_of(function))
    Path(root, "loaded.json").touch()
    running = {}
    for rank in range(int(ranks)):
        if (process := os.fork()) == 0:
            _become(rank, Path(root))
            _make_calls(rank, Path(root), calls, float(hangs_after))
            os._exit(0)
        running[process] = rank
    while running:
        process, status = os.wait()
        del running[process]
        if status:  # the others may wait for it
            for other in running:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"rank failed: {os.waitstatus_to_exitcode(status)}")


def _become(rank: int, root: Path) -> None:
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    output = os.open(root / f"output-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(output, stream.fileno())


def _make_calls(rank: int, root: Path, calls: Any, hangs_after: float) -> None:
    environment = dict(os.environ)
    for name, function, settings in calls:
        os.environ.update(environment)  # a Trainer takes some of it away at its end
        faulthandler.dump_traceback_later(hangs_after)  # where it hangs
        os.environ["CALL"] = name
        os.environ["MASTER_PORT"] = _free_port(root / f"{name}.port", rank)
        said = _Said()
        logging.getLogger().addHandler(said)
        place = root / name
        place.mkdir(exist_ok=True)
        result: dict[str, Any]
        try:
            module = importlib.import_module(_module_of(function))
            result = getattr(module, function.partition(":")[2])(rank, place, **settings)
        except Exception:
            result = {"error": traceback.format_exc()}
            if distributed.is_initialized():
                distributed.destroy_process_group()
        except BaseException:  # the others wait for this one: no call can be made
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        logging.getLogger().removeHandler(said)
        Path(root, f"{name}-{rank}.json").write_text(json.dumps({**result, "said": said.lines}))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _module_of(function: str) -> str:
    return f"tests.ranks.{function.partition(':')[0]}"


if __name__ == "__main__":
    main()
