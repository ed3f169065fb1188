"""Values in the types that strict JSON has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def strict(value: Any) -> Any:
    """`value` with a string for what is not finite, and lists for tuples.

    >>> strict({"r": (0.5, float("nan"), None), 3: -float("inf")})
    {'r': [0.5, 'NaN', None], '3': '-Infinity'}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): strict(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(held) for held in value]
    return value
