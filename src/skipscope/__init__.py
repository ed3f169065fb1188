"""skipscope: what residual connections do while a network trains.

Public names are loaded on first use: `import skipscope` imports neither torch nor Lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skipscope.find import find_residuals as find_residuals
    from skipscope.history import History as History
    from skipscope.lightning import ResidualMonitor as ResidualMonitor
    from skipscope.monitor import Monitor as Monitor
    from skipscope.theory import depth_multiplier as depth_multiplier

_PLACES = {
    "History": "history",
    "Monitor": "monitor",
    "ResidualMonitor": "lightning",
    "depth_multiplier": "theory",
    "find_residuals": "find",
}

__all__ = [
    "History",
    "Monitor",
    "ResidualMonitor",
    "depth_multiplier",
    "find_residuals",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("skipscope")
    if name in _PLACES:
        value = getattr(importlib.import_module(f"skipscope.{_PLACES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'skipscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
