"""How long it takes to load a long run: 10,000 captures of 200 sites.

python benchmarks/load_history.py [captures] [sites]
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from skipscope.history import History, HistoryWriter
from skipscope.records import FACTS, SUMS, Site, SiteMap


def _site(index: int) -> Site:
    """A site with some value in every field."""
    name = f"blocks.{index}"
    given = {field.name: () for field in dataclasses.fields(Site)}
    return Site(**{**given, "index": index, "depth": index, "name": name, "module": name})  # type: ignore[arg-type]


def _write(directory: Path, captures: int, sites: int) -> Path:
    rng = np.random.default_rng(0)
    sums = rng.random((sites, len(SUMS)))
    writer = HistoryWriter(directory, "benchmark")
    writer.set_sites(SiteMap(tuple(_site(index) for index in range(sites))))
    facts = np.zeros((50, len(FACTS)))
    for capture in range(captures):
        facts[:, 0] = np.arange(50) + 50 * capture
        writer.append_capture(50 * capture, sums, np.full(sites, 31), np.zeros(sites))
        writer.append_facts(facts)
    writer.close()
    return writer.path


def main() -> None:
    """Write a run, load it, print both times."""
    captures, sites = (int(number) for number in [*sys.argv[1:], "10000", "200"][:2])
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        path = _write(Path(directory), captures, sites)
        written = time.perf_counter()
        history = History.load(path)
        shape = history.sums.shape
        loaded = time.perf_counter()
        megabytes = path.stat().st_size / 1e6
        times = f"write {written - start:.2f} s, load {loaded - written:.2f} s"
        print(f"{shape} sums, {megabytes:.0f} MB: {times}")  # noqa: T201


if __name__ == "__main__":
    main()
