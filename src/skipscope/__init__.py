"""skipscope: what residual connections do while a network trains.

Public names are loaded on first use: `import skipscope` imports neither torch nor Lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skipscope import remedies as remedies
    from skipscope.ablation import ablate as ablate
    from skipscope.comparison import compare as compare
    from skipscope.extrapolation import extrapolate as extrapolate
    from skipscope.find import find_residuals as find_residuals
    from skipscope.history import History as History
    from skipscope.intervention import intervene as intervene
    from skipscope.lightning import Intervention as Intervention
    from skipscope.lightning import ResidualMonitor as ResidualMonitor
    from skipscope.monitor import Monitor as Monitor
    from skipscope.preflighting import preflight as preflight
    from skipscope.study import Study as Study
    from skipscope.theory import depth_multiplier as depth_multiplier

# No name here is that of a submodule: importing that would put the module in the function's place.
_PLACES = {
    "History": "history",
    "Intervention": "lightning",
    "Monitor": "monitor",
    "ResidualMonitor": "lightning",
    "Study": "study",
    "ablate": "ablation",
    "compare": "comparison",
    "depth_multiplier": "theory",
    "extrapolate": "extrapolation",
    "find_residuals": "find",
    "intervene": "intervention",
    "preflight": "preflighting",
}

__all__ = [
    "History",
    "Intervention",
    "Monitor",
    "ResidualMonitor",
    "Study",
    "ablate",
    "compare",
    "depth_multiplier",
    "extrapolate",
    "find_residuals",
    "intervene",
    "preflight",
    "remedies",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("skipscope")
    if name == "remedies":
        return importlib.import_module("skipscope.remedies")
    if name in _PLACES:
        value = getattr(importlib.import_module(f"skipscope.{_PLACES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'skipscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
