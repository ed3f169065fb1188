"""A small training, alone or watched, in this process or in one that may be hurt."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skipscope import cli
from skipscope.history import History
from skipscope.monitor import Monitor

WIDTH = 8
STEPS, EPOCH = 14, 5

Fault = Callable[[Monitor], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.linear(self.norm(x)))


def build(depth: int = 3) -> nn.Module:
    return nn.Sequential(*[Block() for _ in range(depth)], nn.Linear(WIDTH, 1))


@dataclass
class Outcome:
    """What a training came to: exact losses and weights, and what was said meanwhile."""

    losses: list[float] = field(default_factory=list)
    weights: str = ""
    said: list[str] = field(default_factory=list)
    captures: list[int] = field(default_factory=list)  #: those that memory holds
    file: str = ""  #: the history's path
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def trained(self) -> tuple[list[float], str]:
        return self.losses, self.weights


class Ear(logging.Handler):
    """Hears what the monitor says, but not what its rules find in this toy."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("skipscope.RES"):
            self.said.append(f"{record.levelname} {record.getMessage()}")


def train(
    directory: Path | str | None = None,
    *,
    watched: bool = True,
    steps: int = STEPS,
    epoch: int = EPOCH,
    faults: Mapping[int, Fault] | None = None,
    after: Callable[[int, Monitor], None] | None = None,
    state: dict[str, Any] | None = None,
    checkpoint: Path | None = None,
    save_at: Container[int] = range(STEPS),
    **options: Any,
) -> Outcome:
    """Trains; `faults` maps a step to what happens before it, `after` is called after each.

    A `checkpoint` is gone on from where it is there, and written after the steps `save_at`.
    """
    torch.manual_seed(3)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    outcome, monitor = Outcome(), None
    with heard() as outcome.said:
        if watched:
            settings = {"preset": "debug", "report": [], "dirpath": directory and str(directory)}
            monitor = Monitor(model, optimizer, **{**settings, **options})
        if monitor is not None and state is not None:
            monitor.load_state_dict(state)
        first = resume(checkpoint, model, optimizer, monitor)
        for step in range(first, steps):
            if monitor is not None:
                (faults or {}).get(step, _nothing)(monitor)
            torch.manual_seed(100 + step)
            outcome.losses.append(one_step(model, optimizer, monitor))
            if monitor is None:
                continue
            if (step + 1) % epoch == 0:
                monitor.epoch_end()
            if checkpoint is not None and step in save_at:
                save(checkpoint, model, optimizer, monitor)
            if after is not None:
                after(step, monitor)
        if monitor is not None:
            finish_run(monitor, outcome)
    outcome.weights = digest(model)
    return outcome


def _nothing(_: Monitor) -> None:
    """No fault before this step."""


@contextmanager
def heard() -> Iterator[list[str]]:
    ear = Ear()
    logging.getLogger("skipscope").addHandler(ear)
    try:
        yield ear.said
    finally:
        logging.getLogger("skipscope").removeHandler(ear)


def finish_run(monitor: Monitor, outcome: Outcome) -> None:
    writer = monitor._recorder._writer if monitor._recorder is not None else None
    outcome.file = str(writer.path) if writer is not None else ""
    outcome.state = monitor.state_dict()
    outcome.captures = monitor.history.capture_steps.tolist()
    monitor.close()


def digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, monitor: Monitor) -> None:
    states = [part.state_dict() for part in (model, optimizer, monitor)]
    torch.save(states, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def resume(path: Path | None, *parts: Any) -> int:
    """Loads what is given, from a file that may not be there; the step to go on from."""
    if path is None or not path.exists():
        return 0
    states = torch.load(path, weights_only=True)
    for part, state in zip(parts, states, strict=True):
        if part is not None:
            part.load_state_dict(state)
    return int(states[-1]["step"])


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, monitor: Monitor | None) -> float:
    x = torch.randn(4, 5, WIDTH)
    if monitor is not None:
        monitor.begin_step()
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    if monitor is not None:
        monitor.end_step(loss)
    return loss.item()


# ------------------------------------------------------------------ processes
def start(function: Callable[..., Any], *args: Any, **settings: Any) -> tuple[int, int]:
    """A process that runs a function: its id, and a pipe with what the function returns."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            result = (True, function(*args, **settings))
        except BaseException:
            result = (False, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    return pid, reading


def finish(pid: int, reading: int) -> Any:
    """What the function returned; None where its process was killed."""
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    if not data:
        return None
    good, result = pickle.loads(data)
    assert good, result
    return result


def apart(function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Runs a function in a process of its own."""
    return finish(*start(function, *args, **settings))


# ------------------------------------------------------------------ what is left
def fill_up(disk: Path) -> None:
    """Takes the last byte of a small disk."""
    with (disk / "other").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))


def read(path: Path | str) -> History:
    """The history, read both ways: as Python does, and as `skipscope report` does."""
    assert cli.main(["report", str(path), "--format", "json", "--output", os.devnull]) == 0
    return History.load(path)


@lru_cache
def plain(steps: int = STEPS) -> tuple[list[float], str]:
    """The same training without a monitor."""
    return train(watched=False, steps=steps).trained
