"""What was set in two ways, and what the losses came to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from skipscope.comparison.records import Difference, Number, Pair
from skipscope.comparison.sites import numbers_at
from skipscope.history import History
from skipscope.records import Run
from skipscope.reports._collect import updates
from skipscope.reports._expected import usual_placement

#: Facts of a run that tell it from every other, or that are told elsewhere.
ITS_OWN = frozenset({"run_id", "rules", "uncaptured"})
WORDS = {"every_n_steps": "captures every n steps", "ranks_measured": "ranks measured"}
TENTH = 10  #: the losses of the last tenth of the common steps have a median
DRAWN = 1.1  #: two draws of one matrix differ by less
Floats = npt.NDArray[np.float64]


def differences(a: History, b: History) -> tuple[Difference, ...]:
    """Everything that differs: the run's facts, its rules, its optimizers, how it is built."""
    return tuple(one for one in _told(a, b) if one.a != one.b)


def _told(a: History, b: History) -> Iterator[Difference]:
    for one in fields(Run):
        if one.name not in ITS_OWN:
            values = (getattr(history.run, one.name) for history in (a, b))
            yield Difference(WORDS.get(one.name, one.name), *(_written(v) for v in values))
    yield from _options("rules: ", a.run.rules, b.run.rules)
    if len(a.groups) != len(b.groups):
        yield Difference("optimizer groups", str(len(a.groups)), str(len(b.groups)))
    for at, (one_group, two_group) in enumerate(zip_longest(a.groups, b.groups)):
        label = f"group {at} " if max(len(a.groups), len(b.groups)) > 1 else ""
        names = (group.optimizer if group else "-" for group in (one_group, two_group))
        yield Difference(f"{label}optimizer", *names)
        options = (group.options if group else {} for group in (one_group, two_group))
        yield from _options(label, *options)
    yield from _built(a, b)


def _options(label: str, a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[Difference]:
    for name in dict.fromkeys([*a, *b]):
        yield Difference(f"{label}{name}", _written(a.get(name, "-")), _written(b.get(name, "-")))


def _built(a: History, b: History) -> Iterator[Difference]:
    def of(what: str, one: str, two: str) -> Difference:
        return Difference(what, one, two)

    yield of("sites", *(str(len(h.sites.block_level)) for h in (a, b)))
    yield of("nested sites", *(str(sum(s.nested for s in h.sites.sites)) for h in (a, b)))
    yield of("streams", *(str(len(h.sites.streams)) for h in (a, b)))
    yield of("norms", *(_placement(h) for h in (a, b)))
    for kind in ("scaled", "projection"):
        counts = (sum(s.kind == kind for s in h.sites.block_level) for h in (a, b))
        yield of(f"{kind} shortcuts", *map(str, counts))
    yield of("alpha of the sums", *(_alphas(h) for h in (a, b)))
    yield of("trained elements", *(_elements(h, True) for h in (a, b)))
    yield of("frozen elements", *(_elements(h, False) for h in (a, b)))
    yield from _starts(a, b)


def _starts(a: History, b: History) -> Iterator[Difference]:
    """Matrices of one name that were drawn larger, or smaller: what a remedy of the start does."""
    one, two = (numbers_at(history, "weight_rms", 0) for history in (a, b))
    names = [p.name for p in a.parameters if len(p.shape) > 1]
    ratios = [_ratio(two.get(name), one.get(name)) for name in names]
    known = [value for value in ratios if value is not None and math.isfinite(value)]
    other = [value for value in known if not 1 / DRAWN < value < DRAWN]
    if other:
        text = f"x{np.median(other):.3g} (median) in {len(other)} of {len(known)}"
        yield Difference("matrices start at", "x1", text)


def _placement(history: History) -> str:
    sites = history.sites.block_level
    return usual_placement(site.norm_placement for site in sites) if sites else "-"


def _alphas(history: History) -> str:
    found = sorted({site.alpha for site in history.sites.block_level})
    if not found:
        return "-"
    return f"{found[0]:g}" if len(found) == 1 else f"{found[0]:g} to {found[-1]:g}"


def _elements(history: History, trainable: bool) -> str:
    held = [p.shape for p in history.parameters if p.trainable == trainable]
    return str(sum(int(np.prod(shape)) for shape in held)) if history.parameters else "-"


def _written(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value) if value != "" else "-"


def common_step(a: History, b: History) -> int | None:
    """The last step whose loss both runs know."""
    shared = np.intersect1d(_losses(a)[0], _losses(b)[0])
    return int(shared[-1]) if len(shared) else None


def training(a: History, b: History) -> tuple[Pair, ...]:
    """Losses at the first, the last common, the best and the last step; lr; updates."""
    return tuple(one for one in _training(a, b) if one.a is not None or one.b is not None)


def _training(a: History, b: History) -> Iterator[Pair]:
    common = common_step(a, b)
    losses = _losses(a), _losses(b)
    yield _loss("first loss", losses, 0)
    if common is not None:
        held = [_until(one, common) for one in losses]
        yield _loss(f"loss at step {common}", (held[0], held[1]), -1)
        yield _best(f"best loss up to step {common}", (held[0], held[1]))
        yield _both(f"median loss, last tenth up to {common}", (_median(*one) for one in held))
    if any(len(steps) and steps[-1] != common for steps, _ in losses):
        yield _loss("last loss", losses, -1)
        yield _best("best loss", losses)
    yield _both("loss not finite from step", (_broken(*one) for one in losses))
    for at in range(max(len(a.groups), len(b.groups))):
        yield from _rates(a, b, at)
    yield _both("skipped steps", (float(updates(history).skipped) for history in (a, b)))
    yield _both("median dW/W, last step seen", (updates(history).median for history in (a, b)))
    yield from _blocks(a, b)


def _both(what: str, values: Iterable[Number]) -> Pair:
    a, b = values
    return Pair(what, a, b)


def _blocks(a: History, b: History) -> Iterator[Pair]:
    """Parameters of the first and the last block: what nets without a site compare by, too."""
    shared = np.intersect1d(a.update_steps, b.update_steps)
    if not len(shared):
        return
    step = int(shared[-1])
    both = _with_blocks_of(a, b, step), _with_blocks_of(b, a, step)
    ends = [_ends(history, "block_gradient_norm", step) for history in both]
    yield _both(f"gradient, first / last block, step {step}", (_ratio(*one) for one in ends))
    moved = [_ends(history, "block_update_ratio", step) for history in both]
    yield _both(f"dW/W of the first block, step {step}", (one[0] for one in moved))
    yield _both(f"dW/W of the last block, step {step}", (one[1] for one in moved))


def _with_blocks_of(history: History, other: History, step: int) -> History:
    """The parameters' last numbers of `step`, with those blocks of `other` that have no site here.

    A block is known by its sites; a plain net has none, and parameters of the same names.
    """
    known = {parameter.name: parameter.block for parameter in other.parameters}
    parts = [replace(p, block=p.block or known.get(p.name, "")) for p in history.parameters]
    row = int(np.flatnonzero(history.update_steps == step)[-1])
    one = History(history.run)
    one.set_parameters(parts, history.groups)
    one.append_updates(step, history.updates[row], history.update_have[row])
    return one


def _ends(history: History, measure: str, step: int) -> tuple[Number, Number]:
    """A measure of the first and the last block that were measured."""
    known = [value for value in numbers_at(history, measure, step).values() if value is not None]
    return (known[0], known[-1]) if len(known) > 1 else (None, None)


def _ratio(first: Number, last: Number) -> Number:
    return first / last if first is not None and last else None


def _losses(history: History) -> tuple[npt.NDArray[np.int64], Floats]:
    """Steps and losses that are known; one that is not finite is known to be so."""
    table = history.table("loss")
    known = ~table.missing[:, 0]
    return table.steps[known], table.values[known, 0]


Losses = tuple[npt.NDArray[np.int64], Floats]


def _until(losses: Losses, step: int) -> Losses:
    return losses[0][losses[0] <= step], losses[1][losses[0] <= step]


def _loss(what: str, losses: tuple[Losses, Losses], row: int) -> Pair:
    values = [float(one[row]) if len(one) else None for _, one in losses]
    steps = [int(at[row]) if len(at) else None for at, _ in losses]
    same = steps[0] == steps[1]
    return Pair(what, values[0], values[1], *((None, None) if same else steps))


def _best(what: str, losses: tuple[Losses, Losses]) -> Pair:
    values: list[Number] = []
    at: list[int | None] = []
    for steps, one in losses:
        finite = np.flatnonzero(np.isfinite(one))
        best = finite[np.argmin(one[finite])] if len(finite) else None
        values.append(None if best is None else float(one[best]))
        at.append(None if best is None else int(steps[best]))
    return Pair(what, values[0], values[1], at[0], at[1])


def _median(steps: npt.NDArray[np.int64], losses: Floats) -> float | None:
    late = losses[steps > steps[-1] - max((steps[-1] - steps[0]) / TENTH, 1)] if len(steps) else ()
    return float(np.median(late)) if len(late) else None


def _broken(steps: npt.NDArray[np.int64], losses: Floats) -> float | None:
    bad = np.flatnonzero(~np.isfinite(losses))
    return float(steps[bad[0]]) if len(bad) else None


def _rates(a: History, b: History, group: int) -> Iterator[Pair]:
    """Learning rate of one group: at first, the highest, at last."""
    label = f"lr.{group}" if max(len(a.groups), len(b.groups)) > 1 else "lr"
    held = [_known(history, f"lr.{group}") for history in (a, b)]
    for word, pick in (("first", 0), ("last", -1)):
        yield _both(f"{label}, {word}", (float(one[pick]) if len(one) else None for one in held))
    if any(len(one) and one.max() > max(one[0], one[-1]) for one in held):
        yield _both(f"{label}, highest", (float(one.max()) if len(one) else None for one in held))


def _known(history: History, column: str) -> Floats:
    table = history.table("lr")
    if column not in table.columns:
        return np.zeros(0)
    at = table.columns.index(column)
    values: Floats = table.values[~table.missing[:, at], at]
    return values
