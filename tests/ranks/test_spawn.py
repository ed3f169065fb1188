"""`Trainer(strategy="ddp_spawn")`: the Trainer starts the processes, and keeps none of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from skipscope import History, ResidualMonitor
from tests.lightning import parts
from tests.modes import checks
from tests.modes.mode import Mode
from tests.modes.nets import OtherNet, without_dropout
from tests.modes.runs import Attending, Notes, Result, monitor, run
from tests.ranks.table import SPAWN
from tests.ranks.union import numbers

pytestmark = pytest.mark.slow
RANKS = (0, 1)


def still(kind: str) -> Any:
    return without_dropout(OtherNet(kind))


MODE = replace(SPAWN, module=still)


class Away(Attending):
    """Writes down what a rank's process has at the end of its fit."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        (notes,) = (c for c in trainer.callbacks if isinstance(c, Notes))
        found = {
            "losses": notes.losses,
            "weights": [w.detach().clone() for w in parts.weights(pl_module)],
            "drawn": torch.get_rng_state(),
            "left": parts.attached(pl_module, trainer.optimizers),
            "growth": notes.alive[-1] - notes.alive[0],
        }
        torch.save(found, self.place / f"rank-{trainer.global_rank}.pt")


class Run:
    """One run, and what its ranks wrote down."""

    def __init__(self, place: Path, body: str, *callbacks: Any) -> None:
        place.mkdir()
        self.place = place
        self.result: Result = run(MODE, body, *callbacks, Away(place))
        self.ranks = [torch.load(place / f"rank-{rank}.pt", weights_only=False) for rank in RANKS]


@pytest.fixture(scope="module", params=[("cnn", "debug"), ("gpt", "train")], ids="-".join)
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, Run, Run]:
    body, preset = request.param
    root = tmp_path_factory.mktemp(f"{body}-{preset}")
    callback = monitor(MODE, preset, dirpath=str(root / "record"))
    return body, preset, Run(root / "watched", body, callback), Run(root / "plain", body)


@pytest.mark.parametrize(("mode", "check"), [(SPAWN, c) for c in SPAWN.checks if c != "endings"])
def test_mode(runs: tuple[str, str, Run, Run], mode: Mode, check: str) -> None:
    body, preset, ours, theirs = runs
    record = ours.place.parent / "record"
    if check == "numbers":
        numbers(mode, body, record)
    elif check == "copies":
        for way in checks.COPIES.values():
            taken = (checks.output(run.result, body, way) for run in (ours, theirs))
            assert torch.equal(*taken)
    elif check == "growth":
        grown = [[r["growth"] for r in run.ranks] for run in (ours, theirs)]
        assert grown[0] == grown[1]
    else:
        assert parts.equal(ours.result.weights, theirs.result.weights)
        for mine, other in zip(ours.ranks, theirs.ranks, strict=True):
            assert len(mine["losses"]) == SPAWN.steps
            assert mine["losses"] == other["losses"]
            assert parts.equal(mine["weights"], other["weights"])
            assert torch.equal(mine["drawn"], other["drawn"])
        captured = History.load(record).capture_steps.tolist()
        assert captured == (list(range(SPAWN.steps)) if preset == "debug" else [0, 1, 2, 4])


@pytest.mark.parametrize(("mode", "check"), [(SPAWN, "endings")])
def test_endings(runs: tuple[str, str, Run, Run], mode: Mode, check: str, tmp_path: Path) -> None:
    """After success, and after an exception on both ranks; here and there."""
    body, preset, ours, theirs = runs
    assert ours.result.after == theirs.result.after
    assert [r["left"] for r in ours.ranks] == [r["left"] for r in theirs.ranks]
    held: list[Any] = []
    failing = checks.Failing(LookupError("planned"), 2)
    with pytest.raises(Exception, match="LookupError: planned"):
        run(
            MODE,
            body,
            monitor(MODE, preset, dirpath=str(tmp_path)),
            failing,
            ending=lambda _, module: held.extend((module, parts.attached(module))),
        )
    module, before = held
    assert parts.attached(module) == before
    assert History.load(tmp_path).capture_steps.tolist() == [0, 1]


def test_where_the_record_is(runs: tuple[str, str, Run, Run]) -> None:
    """The callback in this process has seen nothing; it says where to look."""
    callback = runs[2].result.callback
    assert isinstance(callback, ResidualMonitor)
    with pytest.raises(RuntimeError, match=r"History\.load"):
        _ = callback.history
