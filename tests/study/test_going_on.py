"""A study that was stopped goes on, over several processes too; another one is refused."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skipscope import History
from skipscope.evidence import judge, write_reports
from skipscope.evidence.store import StoreError, cell_folder, load
from skipscope.study import StudyError, scaled
from skipscope.study.made_of import words
from skipscope.study.plan import sgd
from skipscope.study.pool import Failure, _answered, run_cells
from tests.study.nets import ReZero, net, slow_net, study


# ------------------------------------------------------------------------ taking up
def test_a_finished_study_trains_nothing(tmp_path: Path) -> None:
    first = study().run(tmp_path, progress=False)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert study().run(tmp_path, progress=False) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == stamps


PLAIN, RESIDUAL, IDLE = study()._plan.arms


def _elsewhere(depth: int) -> nn.Module:
    torch.rand(1)  # what is drawn next is another
    return net(depth)


def _shifted(model: nn.Module, x: Tensor) -> None:
    model[0].bias.data += 1


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"steps": 5}, "steps 4 there, 5 here"),
        ({"batch_size": 9}, "batch size 8 there, 9 here"),
        ({"lr": 0.02}, "learning rates 0.01 there, 0.02 here"),
        (
            {"depths": (1,)},
            "depths 1, 2 there, 1 here; it leaves out 3 trainings of it, as plain-d002",
        ),
        ({"depths": (2, 3)}, "depths 1, 2 there, 2, 3 here; it leaves out 3 trainings of it"),
        ({"seeds": [1]}, "seeds 0 there, 1 here; it leaves out 6 trainings"),
        ({"depths": (1, 2, 3), "steps": 5}, "depths 1, 2 there, 1, 2, 3 here; steps 4 there"),
        ({"seeds": 2, "rates": (0.1,)}, "seeds 0 there, 0, 1 here; learning rates 0.01 there"),
        ({"arms": ("plain", "residual", "idle", scaled(0.5))}, "(arm scaled-0.5: only here)"),
        (
            {"arms": ("plain", "residual"), "seeds": 2},
            "seeds 0 there, 0, 1 here; arm idle: only there; it leaves",
        ),
        (
            {"factory": functools.partial(net, block=ReZero), "plain_start": "keep"},
            "(all arms: another model)",
        ),
        ({"factory": functools.partial(_elsewhere)}, "(all arms: other initial weights)"),
        (
            {"arms": ("plain", "residual", replace(IDLE, warmup=3))},
            "(arm idle: warm-up 0 there, 3 here)",
        ),
        (
            {"arms": ("plain", *(replace(a, start=_shifted) for a in (RESIDUAL, IDLE)))},
            "(arms residual, idle: start as made there, tests.study.test_going_on._shifted",
        ),
        (
            {"arms": (PLAIN, replace(RESIDUAL, factory=_elsewhere, branch_scale=0.5), IDLE)},
            "(arm residual: branch x 1 there, 0.5 here, other initial weights)",
        ),
        ({"loss_fn": lambda out, y: out.square().mean()}, "loss skipscope.study.plan.cross"),
        ({"optimizer": lambda ps, lr: sgd(ps, 2 * lr)}, "optimizer made by skipscope.study.plan"),
    ],
)
def test_another_configuration_is_refused(tmp_path: Path, changed, told: str) -> None:  # type: ignore[no-untyped-def]
    study(seeds=1).run(tmp_path, progress=False)
    factory = changed.pop("factory", net)
    with pytest.raises(StoreError, match="another study") as refusal:
        study(factory, **{"seeds": 1, **changed}).run(tmp_path, progress=False)
    assert told in str(refusal.value)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"seeds": 1}, {"seeds": 2}),
        ({"seeds": [1]}, {"seeds": [0, 1]}),  # the first one is another
        ({"depths": (2,)}, {"depths": (1, 2)}),  # the smallest one is another
        ({"seeds": 1, "depths": (1,)}, {"seeds": 3, "depths": (1, 2)}),
        (
            {"seeds": 1, "rates": (0.1,), "grid_depth": 2},
            {"seeds": 2, "rates": (0.1,), "grid_depth": 2, "depths": (1, 2, 3)},
        ),
    ],
)
def test_more_seeds_and_depths_are_taken_up(tmp_path: Path, less, more) -> None:  # type: ignore[no-untyped-def]
    """What is there stays, byte for byte; the whole is what it would be when trained at once."""
    study(**less).run(tmp_path / "grown", progress=False)
    kept = {p: p.read_bytes() for p in (tmp_path / "grown").rglob("outcome.json")}
    grown = study(**more).run(tmp_path / "grown", progress=False)
    assert {path: path.read_bytes() for path in kept} == kept
    at_once = study(**more).run(tmp_path / "once", progress=False)
    assert grown.protocol == at_once.protocol
    assert len(grown.outcomes) == len(study(**more).cells) > len(kept)
    for one, two in zip(grown.outcomes, at_once.outcomes, strict=True):
        assert (one.cell, one.train_loss, one.readings) == (two.cell, two.train_loss, two.readings)
    assert load(tmp_path / "grown") == grown  # what is written says so too
    with pytest.raises(StoreError, match="it leaves out"):
        study(**less).run(tmp_path / "grown", progress=False)


def test_a_grid_that_moves_with_more_depths_is_refused(tmp_path: Path) -> None:
    """It is tried at the depth in the middle, where no other is asked for."""
    study(seeds=1, depths=(1, 2), rates=(0.1,)).run(tmp_path, progress=False)
    with pytest.raises(StoreError, match=r"plain-d002-s0-lr0\.1.* grid_depth"):
        study(seeds=1, depths=(1, 2, 3, 4), rates=(0.1,)).run(tmp_path, progress=False)


def times(factor: float, weight: Tensor | None = None) -> Callable[..., Tensor]:
    """A loss that holds numbers of its own."""
    return lambda out, y: factor * F.cross_entropy(out, y, weight)


class Power:
    """A loss with a setting."""

    def __init__(self, power: int) -> None:
        self.power = power

    def __call__(self, out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) ** self.power

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return self(out, y)


def written(*lines: str) -> Callable[..., Tensor]:
    """The last function of a module of these lines."""
    module = {"__name__": "losses"}
    exec("\n".join(lines), module)
    return module["loss"]  # type: ignore[return-value]


CALLS = "def size(out): return BY * out.mean()", "def loss(out, y): return size(out)"

PAIRS = {
    "code": (lambda out, y: (out - 1).mean(), lambda out, y: (out * 1).mean()),
    "a constant": (lambda out, y: (out * 1).mean(), lambda out, y: (out * 2).mean()),
    "a default": (lambda out, y, by=1: out.mean() * by, lambda out, y, by=2: out.mean() * by),
    "what it calls": (lambda out, y: out.mean(), lambda out, y: out.sum()),
    "a number of its module": (
        written("BY = 1", "def loss(out, y): return max([out], key=lambda one: BY * one)"),
        written("BY = 2", "def loss(out, y): return max([out], key=lambda one: BY * one)"),
    ),
    "a function of its module": (
        written("BY = 1", *CALLS),
        written("BY = 1", CALLS[0].replace("mean", "sum"), CALLS[1]),
    ),
    "a number that this reads": (written("BY = 1", *CALLS), written("BY = 2", *CALLS)),
    "a function inside": (
        lambda out, y: max(out, key=lambda one: one.mean()),
        lambda out, y: max(out, key=lambda one: one.sum()),
    ),
    "a number it holds": (times(1.0), times(2.0)),
    "a tensor it holds": (times(1.0, torch.ones(3)), times(1.0, torch.arange(3.0))),
    "a setting": (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)),
    "an object": (Power(1), Power(2)),
    "a method": (Power(1).loss, Power(2).loss),
    "a partial": (functools.partial(times, 1.0), functools.partial(times, 2.0)),
    "a partial's tensor": (
        functools.partial(F.cross_entropy, weight=torch.ones(3)),
        functools.partial(F.cross_entropy, weight=torch.ones(3) + 1e-6),
    ),
}


@pytest.mark.parametrize("differ", PAIRS)
def test_functions_of_one_name_are_told_apart(differ: str) -> None:
    """And each is what it was: made again, or read by another process."""
    one, other = PAIRS[differ]
    assert words(one) != words(other)
    assert words(one).partition(" ")[0] == words(other).partition(" ")[0]
    assert words(one) == words(copy.deepcopy(one))


def test_a_function_is_the_same_in_another_process() -> None:
    code = (
        "from skipscope.study.made_of import words\n"
        "from tests.study.test_going_on import PAIRS, TOLD\n"
        "print([words(one) for pair in [*PAIRS.values(), TOLD] for one in pair])\n"
    )
    for seed in "12":  # of the order of sets
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        expected = [words(one) for pair in [*PAIRS.values(), TOLD] for one in pair]
        assert done.stdout == f"{expected}\n"


def _itself(out: Tensor, y: Tensor) -> Tensor:
    return TOLD[0](out, y)


#: What is told without an end, or an address: a function that holds itself, sets, an odd object.
TOLD = (
    functools.partial(_itself, of=object()),
    lambda out, y: out.sum() if str(y.dtype) in {"a", "b", "c", "d"} else out.mean(),
)


def test_a_lambda_in_place_of_another_is_another_study(tmp_path: Path) -> None:
    first, second = PAIRS["a constant"]
    study(seeds=1, loss_fn=first).run(tmp_path, progress=False)
    with pytest.raises(StoreError, match=r"another study \(loss .*<lambda> \w{6} there, .* here\)"):
        study(seeds=1, loss_fn=second).run(tmp_path, progress=False)


def test_a_cell_that_was_half_written_is_begun_anew(tmp_path: Path) -> None:
    first = study(seeds=1).run(tmp_path / "whole", progress=False)
    made = study(seeds=1)
    cell = made.cells[0]
    made.run(tmp_path / "half", progress=False)
    own = cell_folder(tmp_path / "half", cell)
    (own / "outcome.json").rename(own / ".outcome.json.123")  # as a kill leaves it
    history = next(own.glob("history-*.skip"))
    history.write_bytes(history.read_bytes()[:100])
    again = made.run(tmp_path / "half", progress=False)
    for one, two in zip(first.outcomes, again.outcomes, strict=True):
        assert (one.cell, one.train_loss, one.readings) == (two.cell, two.train_loss, two.readings)
    assert History.load(own).capture_steps.tolist() == [0, 1, 3]


def test_an_outcome_that_cannot_be_read_stops_it(tmp_path: Path) -> None:
    made = study(seeds=1)
    made.run(tmp_path, progress=False)
    path = cell_folder(tmp_path, made.cells[3]) / "outcome.json"
    path.write_text(path.read_text(encoding="utf-8")[:50], encoding="utf-8")
    with pytest.raises(StoreError, match=r"outcome.json: damaged.*remove the file"):
        made.run(tmp_path, progress=False)
    path.unlink()
    assert len(made.run(tmp_path, progress=False).outcomes) == len(made.cells)


def test_a_verdict_on_fewer_trainings_does_not_stay(tmp_path: Path) -> None:
    """Judged before it was finished; a finished one keeps its verdict."""
    made = study(seeds=1)
    found = made.run(tmp_path, progress=False)
    (cell_folder(tmp_path, made.cells[0]) / "outcome.json").unlink()
    partly = load(tmp_path)
    written = write_reports(partly, judge(partly), tmp_path)
    assert "unfinished" in written[0].read_text(encoding="utf-8")
    made.run(tmp_path, progress=False)
    assert not [path for path in written if path.exists()]
    write_reports(found, judge(found), tmp_path)
    made.run(tmp_path, progress=False)
    assert all(path.exists() for path in written)


def test_a_verdict_that_was_written_meanwhile_does_not_stay(tmp_path: Path) -> None:
    def judged(*given: Tensor) -> Tensor:
        """A loss during which another process judges."""
        if any(tmp_path.rglob("outcome.json")):
            partly = load(tmp_path)
            write_reports(partly, judge(partly), tmp_path)
        return F.cross_entropy(*given)

    study(seeds=1, loss_fn=judged).run(tmp_path, progress=False)
    assert not [*tmp_path.glob("verdict.*"), *tmp_path.glob("runs.csv")]


def test_trainings_of_an_unknown_study_are_not_taken_up(tmp_path: Path) -> None:
    study(seeds=1).run(tmp_path, progress=False)
    (tmp_path / "study.json").unlink()
    with pytest.raises(StoreError, match=r"holds trainings but no study\.json"):
        study(seeds=1, steps=5).run(tmp_path, progress=False)


@pytest.mark.slow
def test_what_was_killed_goes_on(tmp_path: Path) -> None:
    script = (
        "from tests.study.nets import slow_net, study\n"
        "if __name__ == '__main__':\n"
        f"    study(slow_net, steps=50).run({str(tmp_path)!r}, progress=False)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], env=os.environ)
    deadline = time.monotonic() + 600
    while not (done := sorted(tmp_path.rglob("outcome.json"))) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = sorted(tmp_path.rglob("outcome.json"))
    made = study(slow_net, steps=50)
    assert 1 <= len(done) < len(made.cells)
    assert load(tmp_path).protocol["unfinished"].endswith(f"of {len(made.cells)} trainings")
    kept = {path: path.read_bytes() for path in done}
    evidence = made.run(tmp_path, progress=False)
    assert len(evidence.outcomes) == len(made.cells)
    assert "unfinished" not in evidence.protocol
    assert {path: path.read_bytes() for path in done} == kept


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_ends_a_script_shortly_and_says_that_it_goes_on(tmp_path: Path, jobs: int) -> None:
    """As a terminal sends it: to all processes of the script at once."""
    script, folder = tmp_path / "script.py", tmp_path / "study"
    script.write_text(
        "import signal\n"
        "from tests.study.nets import slow_net, study\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's & ignores it
        f"    study(slow_net, steps=50).run({str(folder)!r}, jobs={jobs}, progress=False)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not any(folder.rglob("outcome.json")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == -signal.SIGINT  # it went through, and ended the script
    assert said[-1] == (
        f"KeyboardInterrupt: stopped; what is finished is kept in {folder}, and the same call goes "
        "on"
    )
    assert sum(line.startswith("Traceback") for line in said) == 1
    assert sum(line.startswith("  File") for line in said) == 2  # the script's line, and ours
    assert any(folder.rglob("outcome.json"))
    assert "unfinished" in load(folder).protocol


def test_one_process_at_a_time(tmp_path: Path) -> None:
    study(seeds=1).run(tmp_path, progress=False)
    code = (
        "import sys\nfrom skipscope.history.appending import Appending\n"
        f"held = Appending(__import__('pathlib').Path({str(tmp_path)!r}, '.running'))\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(StoreError, match="another process runs this study"):
        study(seeds=1).run(tmp_path, progress=False)
    other.communicate()
    study(seeds=1).run(tmp_path, progress=False)


# ------------------------------------------------------------------------ several processes
@pytest.mark.slow
def test_two_processes_come_to_the_same(tmp_path: Path) -> None:
    alone = study().run(tmp_path / "one", progress=False)
    together = study().run(tmp_path / "two", jobs=2, progress=False)
    for one, two in zip(alone.outcomes, together.outcomes, strict=True):
        assert (one.cell, one.train_loss, one.readings) == (two.cell, two.train_loss, two.readings)


def test_what_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="top level of a module, or run with jobs=1"):
        study(lambda depth: net(depth)).run(tmp_path, jobs=2, progress=False)


def test_what_an_error_is_told_as(tmp_path: Path) -> None:
    made = study(loss_fn=broken_loss)
    cell = made.cells[0]
    told = f"the training of {cell.key} failed: RuntimeError: no loss today"
    with pytest.raises(StudyError) as alone:
        list(run_cells(made._plan, [cell], tmp_path, 1))
    assert str(alone.value) == told
    answer = _answered(pickle.dumps(made._plan), cell, tmp_path)
    assert isinstance(answer, Failure)
    assert answer.error == told
    assert "broken_loss" in answer.trace
    unknown = _answered(b"cno_such_module\nnet\n.", cell, tmp_path)
    assert isinstance(unknown, Failure)
    assert "No module named 'no_such_module'" in unknown.error
    assert "run with jobs=1" in unknown.error


@pytest.mark.slow
def test_an_error_in_another_process_is_told(tmp_path: Path) -> None:
    made = study(loss_fn=broken_loss)
    with pytest.raises(StudyError, match=r"(?s)training of .* failed.*no loss today"):
        list(run_cells(made._plan, made.cells, tmp_path, 2))


@pytest.mark.slow
def test_a_process_that_is_killed_is_told_of(tmp_path: Path) -> None:
    made = study(loss_fn=deadly_loss)
    with pytest.raises(StudyError, match=r"the process that trained .* ended \(exit code -9\)"):
        list(run_cells(made._plan, made.cells, tmp_path, 2))
    assert not list(tmp_path.rglob("outcome.json"))


def deadly_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return outputs.sum()


def broken_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    raise RuntimeError("no loss today")
