"""The matrix of `tests.modes` in one of several processes: the checks that need no other one.

A check is made on every rank at the same time, each with the batches of its own.
"""

from __future__ import annotations

import gc
import io
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

import skipscope
from tests.lightning import parts
from tests.modes import checks
from tests.modes.mode import Mode
from tests.modes.nets import without_dropout
from tests.modes.runs import Attending, Result, forget, monitor, plain, run, watched
from tests.ranks import nets
from tests.ranks.loops import Loop
from tests.ranks.table import TOGETHER

Check = Callable[[Mode, str, str, Path], None]


def check(rank: int, root: Path, *, mode: str, wanted: list[tuple[str, str, str]]) -> Any:
    """What each check of a row says: nothing where it passes."""
    gc.collect()
    gc.freeze()  # what was imported is not looked at when live tensors are counted
    (row,) = (known for known in TOGETHER if known.name == mode)
    with nets.world():
        told = {
            f"{body}-{preset}-{name}": said(CHECKS[name], row, body, preset, root)
            for body, preset, name in wanted
        }
        forget()
    return {"told": told}


def said(check: Check, mode: Mode, body: str, preset: str, root: Path) -> str:
    """Why it fails; nothing where it passes."""
    try:
        check(mode, body, preset, root / f"{body}-{preset}")
    except Exception:
        return traceback.format_exc()
    return ""


def many_steps(rank: int, root: Path, *, mode: str, body: str, steps: int) -> dict[str, Any]:
    """Live tensors over many captured steps."""
    gc.collect()
    gc.freeze()
    (row,) = (known for known in TOGETHER if known.name == mode)
    every = len(row.data(body)) // row.steps
    long = replace(row, steps=steps, data=lambda kind: nets.loader(kind, steps * every, every))
    with nets.world():
        ours = run(long, body, monitor(long, "debug", select=["RES901"]))
        return {"growth": ours.growth, "captures": len(ours.history.capture_steps)}


# ------------------------------------------------------------------ the checks
def bits(mode: Mode, body: str, preset: str, place: Path) -> None:
    ours = watched(mode, body, preset)
    assert len(ours.losses) == len(mode.data(body))
    checks.same(ours, plain(mode, body))
    if distributed.get_rank() == 0:
        checks.told(mode, body, preset, ours)
        assert (ours.history.run.ranks, ours.history.run.ranks_measured) == (2, 2)


def numbers(mode: Mode, body: str, preset: str, place: Path) -> None:
    """Records them; the test compares, with a run of one process over the batches of both."""
    still = replace(mode, module=lambda kind: without_dropout(mode.module(kind)))
    run(still, body, monitor(mode, preset, dirpath=str(place)))


def endings(mode: Mode, body: str, preset: str, place: Path) -> None:
    ours, theirs = watched(mode, body, preset), plain(mode, body)
    assert ours.after == theirs.after
    for mistake, arrives in checks.MISTAKES.items():
        broken_off(mode, body, preset, mistake, arrives)
    ours, theirs = (
        run(mode, body, *ours, ending=checks.skip_the_rest) for ours in watching(mode, preset)
    )
    assert ours.after == theirs.after
    checks.same(ours, theirs)
    assert len(ours.losses) < len(mode.data(body))
    assert not calls_of_ours(ours.trainer)


def watching(mode: Mode, preset: str) -> list[list[Any]]:
    """The callbacks of a watched and of an unwatched run."""
    return [[monitor(mode, preset, select=["RES901"])], []]


class Held(Attending):
    """What runs."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.trainer, self.module = trainer, pl_module


def broken_off(
    mode: Mode,
    body: str,
    preset: str,
    mistake: type[BaseException],
    arrives: tuple[type[BaseException], ...],
) -> None:
    """Nothing is attached, drawn or trained that would not be without the monitor."""
    left, drawn, weights = [], [], []
    for ours in watching(mode, preset):
        held = Held()
        try:
            run(mode, body, *ours, held, checks.Failing(mistake("planned"), 2))
        except arrives:
            left.append(parts.attached(held.module, held.trainer.optimizers))
        weights.append([w.detach().clone() for w in parts.weights(held.module)])
        drawn.append(torch.get_rng_state())
        if ours:
            assert not calls_of_ours(held.trainer), mistake
    assert len(left) == 2, "it has not arrived"
    assert left[0] == left[1], mistake
    assert parts.equal(*weights), mistake
    assert torch.equal(*drawn), mistake


def calls_of_ours(running: Any) -> set[str]:
    """Which functions of the package run in a step more of a plain loop, by hooks of any kind."""
    if not isinstance(running, Loop):
        return set()  # the Trainer's wrapper is gone
    running.callbacks = []
    home, seen = str(Path(skipscope.__file__).parent), set()

    def look(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(home):
            seen.add(frame.f_code.co_name)

    batch = next(iter(nets.loader(running.lightning_module.kind, 1)))
    sys.setprofile(look)
    try:
        running.step([batch])
    finally:
        sys.setprofile(None)
    return seen


def growth(mode: Mode, body: str, preset: str, place: Path) -> None:
    checks.growth(mode, body, preset)


def copies(mode: Mode, body: str, preset: str, place: Path) -> None:
    """The net, and what wraps it, as far as it goes without the monitor."""
    ours, theirs = watched(mode, body, preset), plain(mode, body)
    for take in (lambda result: result.module.body, wrapped):
        for name, way in WAYS.items():
            mine, other = (_taken(way, take(result), body) for result in (ours, theirs))
            assert type(mine) is type(other), f"{name}: {mine} {other}"
            assert torch.equal(mine, other) if isinstance(mine, Tensor) else mine == other, name


def wrapped(result: Result) -> Any:
    return result.trainer.net if isinstance(result.trainer, Loop) else result.module


def _taken(way: checks.Way, net: Any, body: str) -> Any:
    """What a copy gives, or how its making fails."""
    try:
        return way(net, parts.samples(body, 2)[0])
    except Exception as error:
        return type(error)


def _state(net: Any, inputs: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=False)
    local = (w.to_local() if hasattr(w, "to_local") else w for w in state.values())
    return torch.cat([w.flatten().double() for w in local])


WAYS: dict[str, checks.Way] = {**checks.COPIES, "its state": _state}
CHECKS: dict[str, Check] = {
    "bits": bits,
    "numbers": numbers,
    "endings": endings,
    "growth": growth,
    "copies": copies,
}
