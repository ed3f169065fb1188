"""The rows of several processes: every check of `tests.modes` that can be made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
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
from tests.modes.test_modes import PRESETS, is_slow, wanted
from tests.ranks.launch import Results, launch
from tests.ranks.table import MODES

MANY = 200


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, root: Path) -> dict[str, Results]:
    """One start of two processes, for all that is to be tested."""
    asked: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for item in request.session.items:
        if item.path == Path(__file__) and getattr(item, "originalname", "") == "test_mode":
            given = item.callspec.params  # type: ignore[attr-defined]
            asked[row_of(given["mode"])].append((given["body"], given["preset"], given["check"]))
    calls = {
        row_of(mode): ("rows:check", {"mode": mode.name, "wanted": asked[row_of(mode)]})
        for mode in MODES
        if row_of(mode) in asked
    }
    return launch(root, calls)


def row_of(mode: Mode) -> str:
    """A row's name as that of a folder."""
    return f"row {MODES.index(mode)}"


def rows() -> Iterator[pytest.param]:
    for at, mode in enumerate(MODES):
        for body in mode.bodies:
            for preset in PRESETS:
                for check in mode.checks:
                    if wanted(mode, body, preset, check):
                        slow = [pytest.mark.slow] if is_slow(at, mode, body, check) else []
                        name = f"{mode.name}-{body}-{preset}-{check}"
                        yield pytest.param(mode, body, preset, check, marks=slow, id=name)


@pytest.mark.parametrize(("mode", "body", "preset", "check"), rows())
def test_mode(
    results: dict[str, Results], root: Path, mode: Mode, body: str, preset: str, check: str
) -> None:
    row, name = row_of(mode), f"{body}-{preset}"
    for rank, result in enumerate(results[row]):
        assert "error" not in result, f"rank {rank}: {result['error']}"
        why = result["told"][f"{name}-{check}"]
        assert not why, f"rank {rank}: {why}"
    if check == "numbers":
        numbers(mode, body, root / row / name)


# ------------------------------------------------------------------ numbers of the union batch
@dataclass
class Recorded:
    history: History


def numbers(mode: Mode, body: str, place: Path) -> None:
    """Those that one process, which sees the batches of both, computes by hand."""
    ours, one = Recorded(History.load(place)), in_one_process(mode)
    theirs, walking = by_hand(one, body)
    steps = {step: local(apart) for step, apart in walking.apart.items()}
    off = differences(mode, body, ours, steps)
    assert not off, "\n".join(off)
    told = ours.history.fact("step").tolist()
    assert told == list(range(mode.steps))
    of_a_trainer = mode.trainer().get("accumulate_grad_batches", 1)  # it divides its loss
    for step, (loss, _, _) in theirs.of_steps.items():
        if step in mode.looked:
            expected = pytest.approx(loss * of_a_trainer, rel=1e-5)
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
    """With what the page says is local: the first rank's median, pairs within a rank."""
    for tap, found in zip(apart.taps.taps, apart.sites, strict=True):
        short, branch, y = (t.detach().double().chunk(2) for t in (tap.short, tap.branch, tap.y))
        here = (by_rows(t[0], tap.rows) for t in (short, branch))
        found["branch_ratio_median"] = median_ratio(*here)
        pairs = [alignment(half, tap.rows) for half in y]
        found["row_alignment"] = sum(filter(None, pairs)) / 2
    return apart


# ------------------------------------------------------------------ many steps
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_no_tensor_more_after_200_captured_steps(tmp_path: Path, mode: Mode) -> None:
    settings = {"mode": mode.name, "body": mode.bodies[MODES.index(mode) % 2], "steps": MANY}
    first, other = launch(tmp_path, {"many": ("rows:many_steps", settings)})["many"]
    assert (first.get("error"), other.get("error")) == (None, None)
    assert (first["growth"], other["growth"]) == (0, 0)
    assert (first["captures"], other["captures"]) == (MANY, 0)
