"""Strict JSON: strings for numbers that are not finite, null for what was not measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any) -> str:
    """`value` as JSON, characters beyond ASCII escaped.

    >>> print(dumps({"r": [float("nan"), None, 0.5]}), end="")
    {
      "r": [
        "NaN",
        null,
        0.5
      ]
    }
    """
    return json.dumps(_strict(value), allow_nan=False, indent=2) + "\n"


def _strict(value: Any) -> Any:
    """`value` in the types that JSON has."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _strict(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(held) for held in value]
    return value
