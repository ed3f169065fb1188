"""Adding a rule is one file and one line; adding a measure likewise. Done here on a copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import skipscope.records

PACKAGE = Path(skipscope.records.__file__).parent

RULE = '''
"""RES999 test-rule."""

from __future__ import annotations

from collections.abc import Iterator

from skipscope.history import Table
from skipscope.rule import Hit, rule


@rule(code="RES999", name="test-rule", severity="info", patience=1, min_steps=0)
def test_rule(half_ratio: Table, *, limit: float = 0.1) -> Iterator[Hit]:
    """Half of r is large.

    What it sees:
        * half of r.

    Example:
        Made up.

            sick     █
            healthy  ▁

    Why it matters:
        * It shows that a rule is one file and one line.

    What to try:
        * nothing.

    When it is wrong:
        * never.

    Thresholds:
        * limit: half of r above which it fires.

    Source:
        * this test.
    """
    value = float(half_ratio.values[-1, 0])
    if value > limit:
        yield Hit(
            where=(half_ratio.columns[0],),
            value=value,
            expectation="small",
            message=f"half of r is {value:g}",
            first_step=0,
            last_step=0,
        )
'''

MEASURE = '''
"""Half of r, for a test."""

from __future__ import annotations

from typing import Any

import numpy as np

from skipscope.measure import measure


@measure("half_ratio", "site", "", "half of r")
def half_ratio(ff: Any, ss: Any) -> Any:
    """Half of |F|/|s|."""
    return np.sqrt(ff / ss) / 2
'''

PROBE = """
import numpy as np
from tests.offline.builders import make_history
import skipscope.measures
from skipscope.diagnose import diagnose

history = make_history([[0.6, 0.2]])
assert np.allclose(history.table("half_ratio").values, [[0.3, 0.1]])
(finding,) = diagnose(history, select=["RES999"]).findings
print(finding.message)
"""


def add_line(path: Path, before: str, line: str) -> None:
    """Puts one line before the first one that starts with `before`."""
    lines = path.read_text().splitlines()
    at = next(i for i, text in enumerate(lines) if text.strip().startswith(before))
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines.insert(at, indent + line)
    path.write_text("\n".join(lines) + "\n")


def run(copy: Path, probe: str) -> subprocess.CompletedProcess[str]:
    root = PACKAGE.parents[1]
    code = f"import sys; sys.path[:0] = [{str(copy.parent)!r}, {str(root)!r}]\n{probe}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=copy.parent
    )


def test_a_rule_and_a_measure_are_one_file_and_one_line_each(tmp_path: Path) -> None:
    copy = tmp_path / "skipscope"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert "half_ratio" in run(copy, PROBE).stderr  # neither is there yet
    (copy / "rules" / "res999.py").write_text(RULE.lstrip())
    (copy / "measures" / "halves.py").write_text(MEASURE.lstrip())
    add_line(copy / "rules" / "__init__.py", '"res901"', '"res999",')
    add_line(copy / "measures" / "__init__.py", '"steps"', '"halves",')
    done = run(copy, PROBE)
    assert done.stdout == "half of r is 0.3\n", done.stderr
