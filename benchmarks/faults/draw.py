"""`python -m benchmarks.faults.draw RES101 --seed 3`: the example in a rule's docstring, measured.

A net with the rule's fault and the same net without it, from the same start and on the same data.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.faults.drawings import BASE, BY_SITE, DRAWINGS, Drawing
from benchmarks.faults.faults import FAULTS
from benchmarks.faults.nets import build
from benchmarks.faults.run import touches
from benchmarks.faults.training import Outcome, Training, train
from skipscope.history import History, Table
from skipscope.rule import listed, short
from skipscope.rules import RULES

Floats = npt.NDArray[np.float64]

LEVELS = "▁▂▃▄▅▆▇█"
ABSENT = "·"  #: not measured, or not finite
MOST = 36  #: characters in a row
NUMBER = 9  #: columns of a number
REDUCED: dict[str, Callable[[Floats], float]] = {
    "median": np.nanmedian,
    "mean": np.nanmean,
    "max": np.nanmax,
}


def characters(values: Sequence[float] | Floats, ends: tuple[float, float], log: bool) -> str:
    """One character a value, its height between the ends of the scale.

    >>> characters([0, 1, 7, math.nan], (0, 7), log=False)
    '▁▂█·'
    >>> characters([1, 1e-7, 1e-4, 0], (1e-7, 1), log=True)
    '█▁▄▁'
    """
    return "".join(_character(value, *ends, log) for value in values)


def _character(value: float, low: float, high: float, log: bool) -> str:
    if not math.isfinite(value):
        return ABSENT
    if log:
        value, low, high = (math.log(v) if v > 0 else -math.inf for v in (value, low, high))
    share = (value - low) / (high - low) if high > low else 0.0
    return LEVELS[round(min(max(share, 0.0), 1.0) * (len(LEVELS) - 1))]


def ends(values: Floats, log: bool) -> tuple[float, float]:
    """The ends of a scale: of all positive numbers, or of all numbers and 0.

    >>> [float(end) for end in ends(np.array([2.0, 0.0, math.nan, 8.0]), log=True)]
    [2.0, 8.0]
    """
    shown = values[np.isfinite(values)]
    if log:
        shown = shown[shown > 0]
        return float(shown.min()), float(shown.max())
    return min(0.0, float(shown.min())), max(0.0, float(shown.max()))


def thinned(values: Floats, several: str) -> Floats:
    """At most `MOST` values: one for as many neighbours as that takes."""
    size = -(-len(values) // MOST)
    groups = [values[at : at + size] for at in range(0, len(values), size)]
    return np.array(
        [np.nan if np.isnan(group).all() else REDUCED[several](group) for group in groups]
    )


def picture(drawing: Drawing, finds: str, rows: dict[str, Floats], stages: dict[str, float]) -> str:
    """The rows with their numbers, what the rule finds, and the scale."""
    shown = {name: thinned(row, drawing.several) for name, row in rows.items()}
    scale = ends(np.concatenate(list(shown.values())), drawing.log)
    width = max(len(drawing.label), *map(len, shown.values()))
    heads = ["first", drawing.extreme, "last", *([drawing.stage_label] if stages else [])]
    lines = [f"{'':9}{drawing.label:{width}}" + "".join(f"{head:>{NUMBER}}" for head in heads)]
    for name, row in shown.items():
        numbers = _numbers(row, drawing.extreme) + ([_text(stages[name])] if stages else [])
        drawn = characters(row, scale, drawing.log)
        lines.append(f"{name:9}{drawn:{width}}" + "".join(f"{n:>{NUMBER}}" for n in numbers))
    kind = "logarithmic" if drawing.log else "linear"
    lines.append(f"{'scale':9}{_text(scale[0])} to {_text(scale[1])}, {kind}")
    return "\n".join([*lines, f"{'found':9}{finds}"])


def _numbers(row: Floats, extreme: str) -> list[str]:
    """First, extreme and last, or that nothing was measured."""
    if np.isnan(row).all():
        return ["none"] * 3
    farthest = np.nanmax(row) if extreme == "largest" else np.nanmin(row)
    return [_text(row[0]), _text(farthest), _text(row[-1])]


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else "0" if value == 0 else short(value)


def found(code: str) -> str:
    """What a rule finds, its thresholds written out."""
    return DRAWINGS[code].found.format(**RULES[code].thresholds)


# ------------------------------------------------------------------------------ the two runs
def runs(code: str, seed: int) -> tuple[dict[str, Outcome], tuple[str, ...]]:
    """The sick and the healthy run, and where the fault was planted."""
    drawing = DRAWINGS[code]
    outcomes = {}
    places: tuple[str, ...] = ("model",)
    for name in ("sick", "healthy"):
        sick = name == "sick"
        plan = replace(BASE, **{**drawing.plan, **(drawing.sick if sick else {})})
        torch.manual_seed(seed)
        training = Training(plan, build(plan), seed)
        if sick:
            training.every_n_steps = drawing.every_n_steps
        if drawing.fault and (sick or drawing.repaired):
            [fault] = [fault for fault in FAULTS[code] if fault.name == drawing.fault]
            planted = fault.plant(training, random.Random(f"{code} {seed}"))
            places = planted if sick else places
        if not sick and drawing.repaired:
            drawing.repaired(training)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcomes[name] = train(training)
    return outcomes, places


def values(drawing: Drawing, history: History, places: tuple[str, ...], row: int) -> Floats:
    """What is drawn of a run: along its sites at one capture, or along its steps."""
    table = history.table(drawing.measure)
    numbers: Floats = table.values
    if drawing.over:
        numbers = drawing.times * numbers / history.table(drawing.over).values
    if drawing.along == BY_SITE:
        shown: Floats = numbers[row]
        return shown
    if drawing.column == "place":
        return numbers[:, _column(history, table, places[0])]
    if drawing.column == "norm":
        return np.asarray(np.sqrt(np.nansum(numbers**2, axis=1)))
    return np.asarray(np.nanmedian(numbers, axis=1)) if numbers.shape[1] > 1 else numbers[:, 0]


def row_of(numbers: Floats, which: str) -> int:
    """Which capture of the sick run is drawn, of both runs.

    Raises:
        ValueError: none is broken.
    """
    if which == "broken":
        broken = ~np.isfinite(numbers).all(axis=1)
        if not broken.any():
            raise ValueError("every number is finite: another seed, or more steps")
        return int(broken.argmax())
    return 0 if which == "first" else len(numbers) - 1


def _column(history: History, table: Table, place: str) -> int:
    """The first site or matrix at a place."""
    paths = {site.name: site.module for site in history.sites.sites}
    paths |= {p.name: p.name for p in history.parameters if len(p.shape) > 1}
    return next(at for at, name in enumerate(table.columns) if touches(paths.get(name, "-"), place))


def draw(code: str, seed: int) -> str:
    """Both rows of a rule's drawing, from two trainings."""
    drawing = DRAWINGS[code]
    outcomes, places = runs(code, seed)
    histories = {name: outcome.monitor.history for name, outcome in outcomes.items()}
    row = row_of(histories["sick"].table(drawing.measure).values, drawing.row)
    rows = {name: values(drawing, history, places, row) for name, history in histories.items()}
    stages: dict[str, float] = {}
    if drawing.stage:
        for name, history in histories.items():
            stages[name] = float(history.table(drawing.stage).values[row, 0])
    for name, outcome in outcomes.items():
        codes = sorted({finding.code for finding in outcome.diagnosis.findings})
        print(f"{name}: planted at {listed(places)}; found {codes}", file=sys.stderr)
    return picture(drawing, found(code), rows, stages)


def main(arguments: list[str] | None = None) -> None:
    """Prints the example; what the rules found of both runs goes to standard error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.draw", description=__doc__)
    parser.add_argument("code", choices=sorted(DRAWINGS), metavar="CODE")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(draw(given.code, given.seed))


if __name__ == "__main__":
    main()
