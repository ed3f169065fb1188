"""Recall, false alarms and confusions, each with its interval."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

HEALTHY = "healthy"


def wilson(hits: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for a share, at 95 % with the default z.

    >>> [round(bound, 4) for bound in wilson(40, 40)]
    [0.9124, 1.0]
    """
    if trials == 0:
        return 0.0, 1.0
    share, squared = hits / trials, z * z
    middle = (share + squared / (2 * trials)) / (1 + squared / trials)
    spread = math.sqrt(share * (1 - share) / trials + squared / (4 * trials**2))
    half = z * spread / (1 + squared / trials)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results as Markdown."""
    broken = [row for row in rows if "error" in row]
    rows = [row for row in rows if "error" not in row]
    faults = [row for row in rows if row["task"] != HEALTHY]
    healthy = [row for row in rows if row["task"] == HEALTHY]
    lines = [*_recall(faults), "", *_alarms(healthy), "", *_confusions(faults)]
    lines += [f"ERROR in {row['task']} {row['seed']}: {row['error']}" for row in broken]
    return "\n".join(lines)


def _share(hits: int, trials: int) -> str:
    low, high = wilson(hits, trials)
    share = f"{hits / trials:.3f}" if trials else "-"
    return f"{hits} of {trials} | {share} | {low:.3f} to {high:.3f}"


def _recall(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| rule | found | recall | 95 % interval |"
    yield "|---|---|---|---|"
    for code in sorted({row["task"] for row in rows}):
        found = [bool(row["found"]) for row in rows if row["task"] == code]
        yield f"| {code} | {_share(sum(found), len(found))} |"
    if rows:
        yield f"| all | {_share(sum(bool(row['found']) for row in rows), len(rows))} |"


def learned(row: Mapping[str, Any]) -> bool:
    """Whether the loss of a run fell at all: a net that does not learn is not healthy."""
    first, last = row["losses"]
    return bool(last < 0.995 * first)


def _alarms(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| healthy runs | with a warning or error | share | 95 % interval |"
    yield "|---|---|---|---|"
    works = [row for row in rows if learned(row)]
    rest = [row for row in rows if not learned(row)]
    for name, some in (
        ("at the end", works),
        ("the debug preset", [row for row in works if row["plan"]["preset"] == "debug"]),
        ("the default preset, 1500 steps", [r for r in works if r["plan"]["preset"] == "train"]),
    ):
        yield f"| {name} | {_share(sum(bool(_grave(row)) for row in some), len(some))} |"
    ever = sum(bool(row["alarms"]) for row in works)
    yield f"| at any quarter of the run | {_share(ever, len(works))} |"
    if rest:
        yield f"| loss did not fall | {_share(sum(bool(_grave(r)) for r in rest), len(rest))} |"
    counts = Counter(code for row in rows for code in _grave(row))
    if counts:
        yield ""
        yield "False alarms by rule: " + ", ".join(f"{c} {n}" for c, n in sorted(counts.items()))


def _grave(row: Mapping[str, Any]) -> set[str]:
    return {root["code"] for root in row["roots"] if root["severity"] != "info"}


def _confusions(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| planted | runs | other roots of severity warning or error | missed |"
    yield "|---|---|---|---|"
    for code in sorted({row["task"] for row in rows}):
        some = [row for row in rows if row["task"] == code]
        others = Counter(found for row in some for found in _grave(row) - {code})
        missed = Counter(row["fault"] for row in some if not row["found"])
        yield f"| {code} | {len(some)} | {_counts(others)} | {_counts(missed)} |"


def _counts(counts: Mapping[str, int]) -> str:
    parts: Iterable[str] = (f"{name} {count}" for name, count in sorted(counts.items()))
    return ", ".join(parts) or "-"
