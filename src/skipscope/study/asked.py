"""What a study is asked for, checked before anything is built: each error names its argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from skipscope.names import a_kind

MANY = 1000  #: a number of seeds above it is meant as a seed
MOST = 2**32 - 1  #: the largest seed that NumPy takes


def number(what: str, value: Any, least: int = 1) -> int:
    """A whole number from `least` on.

    Raises:
        ValueError: it is none.

    >>> number("steps", 3)
    3
    """
    if not _whole(value) or value < least:
        raise ValueError(f"{what} must be {least} or more, a whole number, got {value!r}")
    return int(value)


def _whole(value: Any) -> bool:
    """Whether it is an int, of Python or NumPy; True and 2.0 are none."""
    return hasattr(value, "__index__") and not isinstance(value, (bool, torch.Tensor))


def seeds(what: str, wanted: int | Sequence[int]) -> tuple[int, ...]:
    """Seeds from their number, or as they are.

    Raises:
        ValueError: there is none, one stands twice, or one is no seed.

    >>> seeds("seeds", 3), seeds("seeds", [5])
    ((0, 1, 2), (5,))
    """
    told = f"{what} must be a number from 1 on, or different numbers from 0 on, got {wanted!r}"
    if _whole(wanted) and wanted > MANY:  # type: ignore[operator]
        raise ValueError(f"{what}: {wanted} are too many; for this one seed give [{wanted}]")
    found = list(range(wanted)) if _whole(wanted) else _listed(wanted, told)  # type: ignore[arg-type]
    if not found or len(set(found)) < len(found):
        raise ValueError(told)
    if not all(_whole(seed) and 0 <= seed <= MOST for seed in found):
        raise ValueError(f"{told} (the largest seed is {MOST})")
    return tuple(map(int, found))


def depths(wanted: Iterable[int]) -> tuple[int, ...]:
    """Depths in order, each once.

    Raises:
        ValueError: there is none, or one is no number from 1 on.

    >>> depths((20, 10, 20))
    (10, 20)
    """
    told = f"depths must be whole numbers from 1 on, as (10, 20), got {wanted!r}"
    found = _listed(wanted, told)
    if not found or not all(_whole(depth) and depth >= 1 for depth in found):
        raise ValueError(told)
    return tuple(sorted(set(map(int, found))))


def rate(what: str, value: Any) -> float:
    """A learning rate: finite, from 0 on.

    Raises:
        ValueError: it is none.
    """
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(value, str) or not math.isfinite(found) or found < 0:
        raise ValueError(f"{what} must be a finite number from 0 on, got {value!r}")
    return found


def rates(wanted: Iterable[float], lr: float) -> tuple[float, ...]:
    """A grid of learning rates in order, each once; one that is `lr` but for rounding is `lr`.

    Raises:
        ValueError: one is no rate, or two are the same in the six digits that name a training.

    >>> rates((0.3, 0.1), lr=0.1 * 3) == (0.1, 0.1 * 3)
    True
    """
    told = f"rates must be finite numbers from 0 on, as (0.01, 0.1), got {wanted!r}"
    grid: list[float] = []
    for one in _listed(wanted, told):
        value = rate("rates", one)
        known = next((o for o in (lr, *grid) if math.isclose(value, o, rel_tol=1e-9)), value)
        grid += [] if known in grid else [known]
    names: dict[str, float] = {}
    for value in (lr, *grid):
        other = names.setdefault(f"{value:g}", value)
        if other != value:
            raise ValueError(f"rates: {other!r} and {value!r} are the same in six digits; give one")
    return tuple(sorted(grid))


def callables(**given: Callable[..., Any] | None) -> None:
    """Sees to it that each of these can be called, where it is given.

    Raises:
        TypeError: one cannot.
    """
    for what, one in given.items():
        if one is not None and not callable(one):
            raise TypeError(f"{what} must be a function, got {a_kind(one)}")


def device(wanted: Any) -> str:
    """The name of a device that there is.

    Raises:
        ValueError: there is none of this name, or it holds no numbers.

    >>> device(torch.device("cpu"))
    'cpu'
    """
    try:
        found = torch.device(wanted)
        if found.type == "meta":
            raise RuntimeError("holds no numbers")
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:  # the second: built without CUDA
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device: nothing trains on {wanted!r}: {reason}") from error
    return str(found)


def _listed(wanted: Any, told: str) -> list[Any]:
    if isinstance(wanted, (str, bytes)):
        raise ValueError(told)
    try:
        return list(wanted)
    except TypeError:
        raise ValueError(told) from None
