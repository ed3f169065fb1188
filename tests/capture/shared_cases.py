"""The cases from the public record that lie beside the checkout; none of them where they do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

_AT = Path(__file__).resolve().parents[3] / "shared" / "cases"
#: Those of kinds a and H: they have a walk. (b: traps for tools, with a `main` only.)
CASES = sorted(
    path.stem
    for path in _AT.glob("[0-9][0-9]_*.py")
    if not 31 <= int(path.stem[:2]) <= 44 and "def walk" in path.read_text(encoding="utf-8")
) or ["absent"]


def load(name: str) -> Any:
    """One case as a module; skips the test where there is none."""
    path = _AT / f"{name}.py"
    if not path.is_file():
        pytest.skip("the shared cases do not lie beside this checkout")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
