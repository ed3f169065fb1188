"""How long it takes to load a long run: 10,000 captures of 200 sites."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.settings import Settings
from benchmarks.timing import CLOCKS, interleave, milliseconds
from skipscope.history import History, HistoryWriter
from skipscope.records import FACTS, SUMS, Site, SiteMap

AIM = 3.0  #: seconds


def run(settings: Settings) -> Iterator[str]:
    """Writes a run to a temporary directory and loads it again and again."""
    captures, sites = settings.load_captures, settings.load_sites
    with tempfile.TemporaryDirectory() as directory:
        path = _write(Path(directory), captures, sites)
        arms = {"load": lambda: History.load(path)}
        seconds = interleave(arms, settings.load_repetitions, warmup=1)["load"]
        megabytes = path.stat().st_size / 1e6
    yield f"{captures} captures x {sites} sites x {len(SUMS)} sums, {megabytes:.0f} MB"
    for clock in CLOCKS:
        spread = milliseconds(seconds, clock)
        met = "met" if spread.middle <= 1000 * AIM else "missed"
        yield f"{clock:4}  History.load {spread.text('.0f')} ms; aim {AIM:.0f} s: {met}"


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
