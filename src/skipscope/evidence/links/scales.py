"""Link 5: the branches of the residual arm are of a size that can be read."""

from __future__ import annotations

import math

from skipscope.evidence.link import Kind, Pair, at_least, at_most, decided, not_applicable
from skipscope.evidence.outcome import Outcome
from skipscope.evidence.statistics import median
from skipscope.evidence.verdict import Answer, Check
from skipscope.names import counted
from skipscope.reports._text import number

SMALLEST, LARGEST = 1e-3, 2.0  #: of the median r of a run
GRAVE = ("RES101", "RES201")


def scales(pair: Pair) -> Answer:
    """Look at r and at the findings of every residual run."""
    runs = pair.runs(pair.residual)
    start = pair.residual.signal_from
    each = [value for run in runs if (value := _median_r(run, start)) is not None]
    if not each:
        return not_applicable(f"no branch ratio was read in {pair.residual.name}")
    broken = [run for run in runs if _not_finite(run)]
    found = [
        f"{code} in {run.cell.key}"
        for run in runs
        for code, severity in run.findings
        if code in GRAVE and severity == "error"
    ]
    low, high = min(each), max(each)
    checks = [
        _none("runs with an r that is not finite", [run.cell.key for run in broken]),
        _none("errors RES101 or RES201", found),
        at_least("median r of a run, smallest", low, SMALLEST, number(low), "0.001"),
        at_most("median r of a run, largest", high, LARGEST, number(high), "2"),
    ]
    shown = f"median r {number(low)} to {number(high)} over {counted(len(each), 'run')}, all finite"
    return decided(checks, shown)


def _none(what: str, names: list[str]) -> Check:
    text = f"{len(names)}" + (f" (first: {names[0]})" if names else "")
    return Check(what, float(len(names)), text, "0", not names)


def _median_r(run: Outcome, start: int) -> float | None:
    """Median over the readings, once branches can have woken, of the median over sites."""
    values = [r for one in run.readings if one.step >= start and (r := one.r_median) is not None]
    return median(values) if values else None


def _not_finite(run: Outcome) -> bool:
    values = (r for one in run.readings for r in (one.r_smallest, one.r_median, one.r_largest))
    return any(r is not None and not math.isfinite(r) for r in values)


SCALES = Kind(
    name="scales interpretable",
    claim="branch and shortcut of the residual arm are of comparable size",
    criterion=(
        "residual arm: every r finite, no RES101 or RES201 of severity error, and the median r of "
        "every run between 0.001 and 2"
    ),
    ask=scales,
)
