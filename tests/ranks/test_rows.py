"""The rows of several processes: every check of `tests.modes` that can be made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.modes.mode import Mode
from tests.modes.test_modes import PRESETS, is_slow, wanted
from tests.ranks.launch import Results, launch
from tests.ranks.table import TOGETHER
from tests.ranks.union import numbers

MANY = 200


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, root: Path) -> dict[str, Results]:
    """One start of two processes, for all that is to be tested."""
    asked: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for item in request.session.items:
        if item.path == Path(__file__) and getattr(item, "originalname", "") == "test_mode":
            given = item.callspec.params  # type: ignore[attr-defined]
            asked[row_of(given["mode"])].append((given["body"], given["preset"], given["check"]))
    calls = {
        row_of(mode): ("rows:check", {"mode": mode.name, "wanted": asked[row_of(mode)]})
        for mode in TOGETHER
        if row_of(mode) in asked
    }
    return launch(root, calls)


def row_of(mode: Mode) -> str:
    """A row's name as that of a folder."""
    return f"row {TOGETHER.index(mode)}"


def rows() -> Iterator[pytest.param]:
    for at, mode in enumerate(TOGETHER):
        for body in mode.bodies:
            for preset in PRESETS:
                for check in mode.checks:
                    if wanted(mode, body, preset, check):
                        slow = [pytest.mark.slow] if is_slow(at, mode, body, check) else []
                        name = f"{mode.name}-{body}-{preset}-{check}"
                        yield pytest.param(mode, body, preset, check, marks=slow, id=name)


@pytest.mark.parametrize(("mode", "body", "preset", "check"), rows())
def test_mode(
    results: dict[str, Results], root: Path, mode: Mode, body: str, preset: str, check: str
) -> None:
    row, name = row_of(mode), f"{body}-{preset}"
    for rank, result in enumerate(results[row]):
        assert "error" not in result, f"rank {rank}: {result['error']}"
        why = result["told"][f"{name}-{check}"]
        assert not why, f"rank {rank}: {why}"
    if check == "numbers":
        numbers(mode, body, root / row / name)


# ------------------------------------------------------------------ many steps
@pytest.mark.slow
@pytest.mark.parametrize("mode", TOGETHER, ids=lambda mode: mode.name)
def test_no_tensor_more_after_200_captured_steps(tmp_path: Path, mode: Mode) -> None:
    settings = {"mode": mode.name, "body": mode.bodies[TOGETHER.index(mode) % 2], "steps": MANY}
    first, other = launch(tmp_path, {"many": ("rows:many_steps", settings)})["many"]
    assert (first.get("error"), other.get("error")) == (None, None)
    assert (first["growth"], other["growth"]) == (0, 0)
    assert (first["captures"], other["captures"]) == (MANY, 0)
