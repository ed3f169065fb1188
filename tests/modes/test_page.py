"""docs/compatibility.md shows the rows of the table, each with an outcome."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.modes.mode import CHECKS, Mode
from tests.modes.test_modes import MODES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> Any:
    path = ROOT / "docs" / "generate_compatibility.py"
    spec = importlib.util.spec_from_file_location("generate_compatibility", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_exactly_the_rows_of_the_table(generator: Any) -> None:
    lines = generator.PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| mode |")]
    shown = [row.rstrip("|").rpartition(" | ")[0] + " " for row in rows]
    assert shown == [generator.static(mode) for mode in generator.tables()], (
        "the table has changed: make compatibility"
    )
    groups = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert groups == list(dict.fromkeys(mode.group for mode in generator.tables()))
    assert not any("**failed**" in row for row in rows)
    assert {mode.name for mode in MODES} <= {mode.name for mode in generator.tables()}


def test_what_a_row_says_of_its_run(generator: Any) -> None:
    mode = Mode("a", "g")
    told: dict[str, Any] = {check: {"passed": ["x"]} for check in CHECKS}
    assert generator.outcome(mode, told) == "passed"
    assert generator.outcome(Mode("a", "g", slow=True), told) == "passed, slow"
    assert generator.outcome(mode, {**told, "bits": {"passed": ["x"], "failed": ["y"]}}) == (
        "**failed**: bits"
    )
    assert generator.outcome(mode, {**told, "bits": {"skipped": ["no GPU"]}}) == "not run: no GPU"
    assert generator.outcome(mode, {"bits": {"passed": ["x"]}}).startswith("not run: numbers")
    assert generator.outcome(Mode("a", "g", checks=("bits",)), told) == (
        "passed, without numbers, endings, growth, copies, exports"
    )


def test_outcomes_are_written(tmp_path: Path) -> None:
    """Passed, failed and skipped, as a run of its own tells them."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "class M:\n"
        "    name = 'one'\n"
        "@pytest.mark.parametrize('mode', [M()])\n"
        "@pytest.mark.parametrize('check', ['bits', 'numbers', 'growth'])\n"
        "def test_it(mode, check):\n"
        "    if check == 'growth':\n"
        "        pytest.skip('no GPU')\n"
        "    assert check == 'bits'\n"
        "def test_other():\n"
        "    pass\n"
    )
    file = tmp_path / "outcomes.json"
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    command += ["-p", "no:cacheprovider", "-p", "tests.modes.outcomes", "--outcomes", str(file)]
    done = subprocess.run([*command, str(tmp_path)], check=False, cwd=ROOT, capture_output=True)
    assert done.returncode == 1, done.stdout.decode()
    (row,) = json.loads(file.read_text())["rows"].values()
    assert list(row["bits"]) == ["passed"]
    assert list(row["numbers"]) == ["failed"]
    assert row["growth"]["skipped"] == ["no GPU"]
