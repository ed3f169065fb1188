"""What a long run with every step captured keeps in memory is bounded."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from skipscope.history import History
from skipscope.history.rows import Rows
from skipscope.monitor import Monitor
from skipscope.recorder import MAX_PENDING, WINDOW
from skipscope.records import PARAMETER_SUMS, SUMS
from tests.machine.runs import build, one_step


def live_tensors() -> int:
    gc.collect()
    return sum(isinstance(thing, Tensor) for thing in gc.get_objects())


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def steps(count: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, Monitor]:
    model = build(2)
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = Monitor(model, optimizer, preset="debug", report=[], select=["RES901"])
    for _ in range(count):
        one_step(model, optimizer, monitor)
    return model, optimizer, monitor


@pytest.mark.slow
def test_captured_steps_keep_no_tensor() -> None:
    model, optimizer, monitor = steps(20)
    tensors, before = live_tensors(), resident()
    for _ in range(200):
        one_step(model, optimizer, monitor)
    assert len(monitor.history.capture_steps) == 220
    assert live_tensors() <= tensors
    # two sites with 28 sums, nine parameters with five: 1 KB a step, and its tables
    assert resident() - before < 8e6


def test_steps_without_capture_keep_their_loss_only() -> None:
    """The loss of a step waits on its device for the next capture, a bounded time."""
    model = build(2)
    monitor = Monitor(model, report=[], every_n_steps=10**6, select=["RES901"])
    losses: list[weakref.ref[Tensor]] = []
    for _ in range(MAX_PENDING + 100):
        loss = torch.zeros(())
        losses.append(weakref.ref(loss))
        monitor.begin_step()
        monitor.end_step(loss)
        del loss
    assert sum(loss() is not None for loss in losses) <= MAX_PENDING + 1


def held(history: History) -> int:
    """Bytes of a history's arrays."""
    rows = [value for value in vars(history).values() if isinstance(value, Rows)]
    assert len(rows) == 3
    return sum(a.nbytes for row in rows for a in [row._steps, *row._arrays])


@pytest.mark.slow
def test_ten_thousand_captured_steps_are_a_window() -> None:
    *_, monitor = steps(2)
    history, sizes = monitor.history, []
    sites, parameters = len(history.sites.sites), len(history.parameters)
    capture = np.zeros((sites, len(SUMS))), np.ones(sites), np.zeros(sites)
    updates = np.zeros((parameters, len(PARAMETER_SUMS))), np.ones(parameters)
    for step in range(2, 10_000):
        history.append_capture(step, *capture)
        history.append_updates(step, *updates)
        history.append_facts(np.full((1, history.facts.shape[1]), step))
        sizes.append(held(history))
    assert len(history.capture_steps) == sum(WINDOW)
    assert max(sizes[5000:]) == max(sizes)
    # Windows are cut when twice as full, room is made by halves.
    captures = 3 * sum(WINDOW) * sites * (8 * len(SUMS) + 2)
    of_updates = 3 * (sum(WINDOW) + 50) * parameters * (8 * len(PARAMETER_SUMS) + 1)
    facts = 3 * (512 + 4096) * 8 * history.facts.shape[1]
    assert max(sizes) < captures + of_updates + facts + 3 * 8 * 6000
