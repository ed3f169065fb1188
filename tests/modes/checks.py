"""The checks of a row. Each takes a mode, a body and a preset, and asserts."""

from __future__ import annotations

import copy
import fnmatch
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from skipscope.records import REASONS
from tests.capture.reference import BACKWARD, BAR, FORWARD, Numbers
from tests.capture.steps import PARAMETER, error
from tests.lightning import parts
from tests.modes.mode import Mode
from tests.modes.runs import (
    Apart,
    Attending,
    Result,
    by_hand,
    captured,
    monitor,
    plain,
    run,
    skipped,
    watched,
)


# ------------------------------------------------------------------ (a) the same run
def bits(mode: Mode, body: str, preset: str) -> None:
    """Losses, weights and generators are those of the run without the monitor."""
    ours = watched(mode, body, preset)
    assert len(ours.losses) >= mode.steps - mode.start
    same(ours, unwatched(mode, body, preset))
    told(mode, body, preset, ours)
    if mode.compiled:
        close_to_the_compiled_run(mode, body, ours)


def told(mode: Mode, body: str, preset: str, ours: Result) -> None:
    """The record has the steps that it must have, captured and skipped."""
    if mode.off:
        assert ours.callback is not None
        assert ours.callback.monitor is None
        return
    steps = list(range(mode.start, mode.steps))
    assert ours.history.fact("step").tolist() == steps
    passed = ours.history.fact("skipped").tolist()
    assert [s for s, it in zip(steps, passed, strict=True) if it] == skipped(mode, body)
    if mode.uncaptured:
        assert not captured(ours)
        assert mode.uncaptured in ours.history.run.uncaptured
    elif preset == "debug":
        assert list(captured(ours)) == steps
    else:
        assert {mode.start, *mode.looked} <= set(captured(ours)) < set(steps) | {mode.steps}
    assert ours.history.run.compiled == mode.compiled


def same(ours: Result, theirs: Result) -> None:
    assert ours.losses == theirs.losses
    assert parts.equal(ours.weights, theirs.weights)
    for mine, other in zip(ours.generators, theirs.generators, strict=True):
        assert torch.equal(mine, other) if isinstance(mine, torch.Tensor) else mine == other


def unwatched(mode: Mode, body: str, preset: str) -> Result:
    """The run without the monitor; of a compiled mode, eager where the watched run is."""
    eager_at = captured(watched(mode, body, preset)) if mode.compiled else ()
    return plain(mode, body, eager_at)


def close_to_the_compiled_run(mode: Mode, body: str, ours: Result) -> None:
    """Weights within a tolerance, and nothing is compiled more often."""
    theirs = plain(mode, body)
    for mine, other in zip(ours.weights, theirs.weights, strict=True):
        assert torch.allclose(mine, other, rtol=1e-3, atol=1e-4)
    assert theirs.graphs[-1] > 0, "nothing was compiled"
    first = next((s for s in range(mode.steps) if s not in captured(ours)), None)
    assert ours.graphs[: first or 0] == [0] * (first or 0)
    assert ours.graphs[-1] == (0 if first is None else plain(mode, body, captured(ours)).graphs[-1])
    assert ours.graphs[-1] <= theirs.graphs[-1]


# ------------------------------------------------------------------ (b) the right numbers
def numbers(mode: Mode, body: str, preset: str) -> None:
    """Every measure of a captured step, or the reason why it is not available."""
    ours = watched(mode, body, preset)
    result, walking = by_hand(mode, body, captured(ours) if mode.compiled else ())
    assert result.losses == unwatched(mode, body, preset).losses
    off = differences(mode, body, ours, walking.apart)
    assert not off, "\n".join(off)
    facts_of_steps(mode, body, preset)


def differences(mode: Mode, body: str, ours: Any, steps: Mapping[int, Apart]) -> list[str]:
    """What is off of the steps that are looked at."""
    assert set(steps) == set(mode.looked)
    off: list[str] = []
    for step, apart in steps.items():
        assert apart.sites, "nothing was computed apart"
        off += site_errors(mode, ours, step, apart)
        off += parameter_errors(mode, body, ours, step, apart)
    assert reasons(mode, ours) == set(mode.missing.values())
    assert {u.what for u in ours.history.sites.unseen} == set(mode.unseen)
    return [f"{len(off)} wrong", *off[:8]] if off else []


def facts_of_steps(mode: Mode, body: str, preset: str) -> None:
    """Loss and loss scale are those that the plain run shows; Lightning divides its loss."""
    every = mode.trainer().get("accumulate_grad_batches", 1)
    ours = watched(mode, body, preset)
    steps = ours.history.fact("step").tolist()
    theirs = unwatched(mode, body, preset)
    for step in mode.looked:
        row = steps.index(step)
        loss, scale, _ = theirs.of_steps[step]
        assert ours.history.fact("loss")[row] == pytest.approx(loss * every, rel=1e-6)
        assert ours.history.fact("loss_scale")[row] == scale


def reasons(mode: Mode, ours: Any) -> set[str]:
    """What the record says of numbers that are not there, in the steps that are looked at."""
    steps = ours.history.capture_steps.tolist()
    why = ours.history.why[[steps.index(step) for step in mode.looked]]
    return {REASONS[code] for code in why.flat} - {""}


def site_errors(mode: Mode, ours: Any, step: int, apart: Apart) -> list[str]:
    pairs = zip(apart.taps.taps, apart.sites, strict=True)
    walked = [(t.module, n) for t, n in pairs if not is_hidden(mode, t.module or "")]
    assert [site.module for site in ours.history.sites.sites] == [module for module, _ in walked]
    if not walked:
        return []
    off = []
    for name in (*FORWARD, *BACKWARD):
        if mode.measures is not None and name not in mode.measures:
            continue
        table = ours.history.table(name)
        row = table.steps.tolist().index(step)
        for column, (_, expected) in enumerate(walked):
            got = None if table.missing[row, column] else float(table.values[row, column])
            if name in mode.blind:
                assert got is None, name
            else:
                where = f"{name} at {table.columns[column]}, step {step}"
                off += difference(where, name, got, expected[name], expected)
    return off


def is_hidden(mode: Mode, module: str) -> bool:
    return any(fnmatch.fnmatchcase(module, pattern) for pattern in mode.hidden)


def parameter_errors(mode: Mode, body: str, ours: Any, step: int, apart: Apart) -> list[str]:
    history = ours.history
    if step in skipped(mode, body):
        assert step not in history.update_steps
        return []
    off = []
    for name in PARAMETER:
        table = history.table(name)
        row = table.steps.tolist().index(step)
        assert set(apart.parameters) <= set(table.columns)
        for column, parameter in enumerate(table.columns):
            expected = apart.parameters.get(parameter, {})
            got = None if table.missing[row, column] else float(table.values[row, column])
            where = f"{name} of {parameter}, step {step}"
            off += difference(where, name, got, expected.get(name), expected)
    return off


def difference(
    where: str, name: str, got: float | None, wanted: float | None, all_of_it: Numbers
) -> list[str]:
    if got is None or wanted is None:
        return [] if got is wanted else [f"{where}: {got}, should be {wanted}"]
    off = error(name, got, wanted, all_of_it)
    return [] if off <= BAR else [f"{where}: {got}, should be {wanted} (error {off:.2g})"]


# ------------------------------------------------------------------ (c) as found
class Failing(Attending):
    """Raises between forward and backward of a step."""

    def __init__(self, error: BaseException, at: int) -> None:
        self.error, self.at = error, at

    def on_before_backward(self, trainer: Any, *args: Any) -> None:
        if trainer.fit_loop.epoch_loop.batch_idx == self.at:
            raise self.error


#: What goes wrong in a run, and what may arrive of it; Lightning ends an interrupted process.
MISTAKES: Mapping[type[BaseException], tuple[type[BaseException], ...]] = {
    LookupError: (LookupError,),
    KeyboardInterrupt: (KeyboardInterrupt, SystemExit),
}


def endings(mode: Mode, body: str, preset: str) -> None:
    """However a run ends, nothing stays attached."""
    ours = watched(mode, body, preset)
    assert ours.after == ours.before
    assert plain(mode, body).after == ours.after
    if not mode.steps:
        return
    for mistake, arrives in MISTAKES.items():
        left: list[Any] = []

        def prepare(trainer: Any, module: Any, left: list[Any] = left) -> None:
            left.extend((trainer, module, parts.attached(module)))

        failing = Failing(mistake("planned"), 2)
        with pytest.raises(arrives):
            run(mode, body, monitor(mode, preset, select=["RES901"]), failing, ending=prepare)
        trainer, module, before = left
        assert parts.attached(module, trainer.optimizers) == before, mistake
    short = run(mode, body, monitor(mode, preset, select=["RES901"]), ending=skip_the_rest)
    assert short.after == short.before
    assert len(short.losses) < len(ours.losses)


def skip_the_rest(trainer: Any, module: Any) -> None:
    """`on_train_batch_start` returning -1 ends the epoch in its third batch."""
    module.on_train_batch_start = lambda batch, batch_idx: -1 if batch_idx == 2 else None


# ------------------------------------------------------------------ (d) no growth
def growth(mode: Mode, body: str, preset: str) -> None:
    """As many tensors are alive after the last step as after an early one."""
    assert plain(mode, body).growth is not None
    assert watched(mode, body, preset).growth == plain(mode, body).growth


# ------------------------------------------------------------------ (e) still a plain net
def copies(mode: Mode, body: str, preset: str) -> None:
    """The net can be copied, pickled and saved."""
    for way in COPIES.values():
        ours, theirs = watched(mode, body, preset), unwatched(mode, body, preset)
        assert torch.equal(output(ours, body, way), output(theirs, body, way))


def exports(mode: Mode, body: str, preset: str) -> None:
    """Scripted and exported too, where the net of a plain run can be."""
    for way in EXPORTS.values():
        try:
            expected = output(unwatched(mode, body, preset), body, way)
        except Exception:
            continue  # so can the plain one not
        assert torch.equal(output(watched(mode, body, preset), body, way), expected)


Way = Callable[[Any, torch.Tensor], torch.Tensor]


def output(result: Result, body: str, way: Way) -> torch.Tensor:
    """What a run's net gives, taken in one of the ways."""
    inputs = parts.samples(body, 2)[0]
    net = getattr(result.module.body, "_orig_mod", result.module.body)
    weight = next(net.parameters())
    return way(net, inputs.to(weight.device, weight.dtype if inputs.is_floating_point() else None))


def _saved(net: Any, inputs: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False).eval()(inputs)


COPIES: dict[str, Way] = {
    "copied": lambda net, inputs: copy.deepcopy(net).eval()(inputs),
    "pickled": lambda net, inputs: pickle.loads(pickle.dumps(net)).eval()(inputs),
    "saved": _saved,
}
EXPORTS: dict[str, Way] = {
    "scripted": lambda net, inputs: torch.jit.script(copy.deepcopy(net).eval())(inputs),
    "exported": lambda net, inputs: torch.export.export(
        copy.deepcopy(net).eval(), (inputs,)
    ).module()(inputs),
}

CHECKS: dict[str, Callable[[Mode, str, str], None]] = {
    "bits": bits,
    "numbers": numbers,
    "endings": endings,
    "growth": growth,
    "copies": copies,
    "exports": exports,
}
