"""What one process computes by hand that sees the batches of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from skipscope import History
from tests.capture.reference import alignment, by_rows, median_ratio
from tests.modes.checks import differences
from tests.modes.mode import Mode
from tests.modes.nets import without_dropout
from tests.modes.runs import Apart, by_hand


@dataclass
class Recorded:
    history: History


def numbers(mode: Mode, body: str, place: Path) -> None:
    """Those of the record are those of the union batches."""
    ours = Recorded(History.load(place))
    theirs, walking = by_hand(in_one_process(mode), body)
    steps = {step: local(apart) for step, apart in walking.apart.items()}
    off = differences(mode, body, ours, steps)
    assert not off, "\n".join(off)
    told = ours.history.fact("step").tolist()
    assert told == list(range(mode.steps))
    of_a_trainer = mode.trainer().get("accumulate_grad_batches", 1)  # it divides its loss
    for step in mode.looked:
        expected = pytest.approx(theirs.of_steps[step][0] * of_a_trainer, rel=1e-5)
        assert ours.history.fact("loss")[told.index(step)] == expected


class ByShard(nn.BatchNorm2d):
    """Normalises the half of each rank by itself, as ranks do."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super(ByShard, self).forward(half) for half in x.chunk(2)])


@cache
def in_one_process(mode: Mode) -> Mode:
    """The same training without wrapper, over the batches of both ranks."""

    def module(kind: str) -> nn.Module:
        net = without_dropout(mode.module(kind))
        for norm in net.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.__class__ = ByShard  # of the same parameters, by the same names
        return net

    every = len(mode.data("gpt")) // mode.steps
    settings = {"accumulate_grad_batches": every}
    return replace(mode, module=module, trainer=lambda: settings, fit=Mode.fit)


def local(apart: Apart) -> Apart:
    """With what the page says is local: the first rank's median, pairs of rows within a rank."""
    for tap, found in zip(apart.taps.taps, apart.sites, strict=True):
        short, branch, y = (t.detach().double().chunk(2) for t in (tap.short, tap.branch, tap.y))
        here = (by_rows(t[0], tap.rows) for t in (short, branch))
        found["branch_ratio_median"] = median_ratio(*here)
        pairs = [alignment(half, tap.rows) for half in y]
        found["row_alignment"] = sum(filter(None, pairs)) / 2
    return apart
