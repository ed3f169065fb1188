"""One process of a test: calls a function and writes down what it returns."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path


def main() -> None:
    where, root, settings = sys.argv[1:]
    module, function = where.split(":")
    rank = int(os.environ["RANK"])
    call = getattr(importlib.import_module(f"tests.ranks.{module}"), function)
    result = call(rank, Path(root), **json.loads(settings))
    Path(root, f"rank-{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
