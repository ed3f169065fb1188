"""One process of some tests: calls functions and writes down what each returns."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
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


def main() -> None:
    root, calls = Path(sys.argv[1]), json.loads(sys.argv[2])
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    for number, (name, function, settings) in enumerate(calls):
        os.environ["MASTER_PORT"] = str(port + number)
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
