"""Two runs side by side: before and after a remedy, plain and residual, two configurations.

Nothing here says which run is better, or why they differ: two runs differ by chance too.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from skipscope.comparison.findings import pair_findings
from skipscope.comparison.records import ComparisonNumbers, Side
from skipscope.comparison.sites import Steps, pair_streams
from skipscope.comparison.training import common_step, differences, training
from skipscope.comparison.words import ROWS, parts
from skipscope.diagnose import diagnose
from skipscope.history import History, check_history
from skipscope.records import Diagnosis
from skipscope.reports._collect import updates
from skipscope.reports.parts import Part
from skipscope.reports.shown import Shown

__all__ = ["Comparison", "compare"]


class Comparison(Shown[ComparisonNumbers]):
    """The numbers of two runs, and how they are shown: `str` gives the console's form."""

    schema = "skipscope-comparison/1"

    def _parts(self, *, whole: bool) -> Iterable[Part]:
        return parts(self.numbers, None if whole else ROWS)


def compare(
    a: History,
    b: History,
    *,
    names: tuple[str, str] = ("A", "B"),
    diagnoses: tuple[Diagnosis, Diagnosis] | None = None,
) -> Comparison:
    """Two runs side by side.

    Args:
        a: what was recorded of the first, the one that the other is held against.
        b: of the second.
        names: what they are called.
        diagnoses: what the rules say of them; None: ask all rules.

    Raises:
        TypeError: one of the two is no history.
        ValueError: the names are not two.

    >>> compare(History(), History()).numbers.notes[0]
    'A has no captures: no profile to compare'
    """
    check_history("compare", "a", a)
    check_history("compare", "b", b)
    two: object = names
    if not isinstance(two, (tuple, list)) or len(two) != 2:
        raise ValueError(
            f"compare: names are two, of a and of b, got {names!r}; give names=('before', 'after')"
        )
    said = diagnoses or (diagnose(a), diagnose(b))
    first, last, notes = _moments(a, b)
    streams, alone = pair_streams(a, b, first, last)
    by_place = bool(streams) and not alone and all(one.match == "name" for one in streams)
    if a.run.run_id and a.run.run_id == b.run.run_id:
        notes = ("A and B are one run", *notes)
    return Comparison(
        ComparisonNumbers(
            a=_side(a, names[0]),
            b=_side(b, names[1]),
            differences=differences(a, b),
            findings=pair_findings(*said, by_place),
            training=training(a, b),
            common_step=common_step(a, b),
            first=first,
            last=last,
            streams=streams,
            alone=alone,
            notes=notes,
        )
    )


def _side(history: History, name: str) -> Side:
    steps = history.fact("step")
    return Side(
        name=name,
        run_id=history.run.run_id,
        model=history.run.model,
        sites=len(history.sites.block_level),
        nested=sum(site.nested for site in history.sites.sites),
        captures=len(history.capture_steps),
        steps=updates(history).steps,
        last_step=int(steps.max()) if len(steps) else None,
        uncaptured=history.run.uncaptured,
    )


def _moments(a: History, b: History) -> tuple[Steps | None, Steps | None, tuple[str, ...]]:
    """Steps of the captures to compare: the first and the last step that both captured."""
    notes = [
        f"{name} has no {what}: no profile to compare"
        for name, history in (("A", a), ("B", b))
        for what, there in (
            ("captures", len(history.capture_steps)),
            ("residual additions", len(history.sites.block_level)),
        )
        if not there
    ]
    if notes:
        return None, None, tuple(notes)
    of_a, of_b = a.capture_steps, b.capture_steps
    shared = np.intersect1d(of_a, of_b)
    if not len(shared):
        ends = (int(of_a[-1]), int(of_b[-1]))
        told = f"no step was captured in both: the profile is of step {ends[0]} and step {ends[1]}"
        return None, ends, (told,)
    first, last = int(shared[0]), int(shared[-1])
    if of_a[-1] != of_b[-1]:
        notes.append(
            f"A was captured until step {of_a[-1]}, B until step {of_b[-1]}: the profile is of "
            f"step {last}, the last that both have; findings are of the whole runs"
        )
    return ((first, first) if first != last else None), (last, last), tuple(notes)
