"""Write docs/compatibility.md: the table of modes, and what became of each row's checks.

pytest tests/modes tests/ranks -p tests.modes.outcomes --outcomes outcomes.json
python docs/generate_compatibility.py outcomes.json

A row is whatever has the fields of `tests.modes.mode.Mode` that the page shows; its tests are those
with the parameters `mode` and `check`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
#: Where rows stand: modules with a list MODES. Those that are not there yet are passed over.
TABLES = ("tests.modes.table", "tests.ranks.table")
HEAD = """<!-- Written by docs/generate_compatibility.py from tests/modes and tests/ranks. -->

# Compatibility

What the monitor does in each way to train, and what it cannot tell there. Each row is a test that
trains a residual CNN (in-place additions and ReLU) and a small GPT with and without the monitor,
with `preset="debug"`, which captures every step, and with the default preset.

*Everything* means: losses, final weights and random generators are bit for bit those of the run
without the monitor; r, growth, cosines, gradient norms and gains, the gradient's split, and update
sizes of a captured step are within 1e-4 of a computation apart, by hand and in float64. Under
`torch.compile` captured steps run without the compiled code: bits are those of a run that executes
the same steps eagerly, those of the run without the monitor within a tolerance, and no graph is
compiled more often.

Rows run under a Lightning Trainer. `Monitor` in a plain loop gives the same history, number by
number, for the same model and seed. No row needs a logger, so none has one but where it says so.

Rows of *Several processes* train the same two nets in two processes over gloo. *Everything* means
there, on each rank: losses, weights and random generators are bit for bit those without the
monitor, and what the first rank records is within 1e-4 of one process, without wrapper, that sees
the batches of both and computes by hand (nets without dropout, whose draws would differ; batch
norms that normalise each rank's half by itself, as ranks do). Local to the ranks are the median of
r, which is the first rank's, and the alignment of samples, which is over pairs within a rank. A net
or its wrapper can be copied, pickled and saved as far as it can without the monitor. Nothing of
this is exported, with or without it.

The checks of a row:
"""
COLUMNS = "| mode | exact | not available, and why | remarks | checks |"
FOOT = """
*slow* rows run in `make test-all` only, as does *exports* of most rows; the others run in
`make test`. A row that did not pass says which checks failed. `make compatibility` runs all of them
and writes this page.
"""


def tables() -> list[Any]:
    """Every row, in order."""
    sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []
    found: list[Any] = []
    for name in TABLES:
        if importlib.util.find_spec(name.rpartition(".")[0]) and importlib.util.find_spec(name):
            found += importlib.import_module(name).MODES
    return found


def static(mode: Any) -> str:
    """The cells of a row that need no run."""
    cells = (mode.name, mode.exact, mode.unavailable, mode.note)
    return "".join(f"| {_escaped(cell)} " for cell in cells)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*.", "\\*.").replace(".*", ".\\*")


def outcome(mode: Any, told: Mapping[str, Mapping[str, list[str]]]) -> str:
    """What became of a row's checks, in a few words; nothing is left out."""
    marks = []
    failed = [check for check in mode.checks if told.get(check, {}).get("failed")]
    skipped = {why for check in mode.checks for why in told.get(check, {}).get("skipped", [])}
    absent = [check for check in mode.checks if not told.get(check)]
    if failed:
        marks.append(f"**failed**: {', '.join(failed)}")
    if skipped:
        marks.append(f"not run: {', '.join(sorted(skipped))}")
    if absent:
        marks.append(f"not run: {', '.join(absent)}")
    if not marks:
        left_out = [check for check in _all_checks() if check not in mode.checks]
        marks.append(f"passed, without {', '.join(left_out)}" if left_out else "passed")
    return ", ".join([*marks, *["slow"] * mode.slow])


def _all_checks() -> Mapping[str, str]:
    return dict(importlib.import_module("tests.modes.mode").CHECKS)


def page(modes: Iterable[Any], found: Mapping[str, Any]) -> str:
    """The whole page."""
    modes = list(modes)
    lines = [HEAD]
    lines += [f"* *{name}*: {meaning}" for name, meaning in _all_checks().items()]
    lines += [FOOT]
    lines.append(
        f"Last run with Python {found['python']}, PyTorch {found['torch']} and Lightning "
        f"{found['lightning']}."
    )
    for group in dict.fromkeys(mode.group for mode in modes):
        lines += [f"\n## {group}\n"]
        lines += [COLUMNS, "|---|---|---|---|---|"]
        lines += [
            f"{static(mode)}| {_escaped(outcome(mode, found['rows'].get(mode.name, {})))} |"
            for mode in modes
            if mode.group == group
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page; 1 when a row failed."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    PAGE.write_text(page(tables(), found), encoding="utf-8")
    return any(told.get("failed") for row in found["rows"].values() for told in row.values())


if __name__ == "__main__":
    sys.exit(main())
