"""A process that is killed: what it wrote can be read, and the run goes on, no gap, no double."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skipscope.history import History
from skipscope.history import file as history_file
from skipscope.monitor import Monitor
from tests.machine.runs import STEPS, Outcome, apart, build, finish, plain, read, start, train

SPARSE: dict[str, Any] = {"preset": "train", "every_n_steps": 5, "epoch": 100}


def kill_myself(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def check_whole(directory: Path, outcome: Outcome, whole: History) -> None:
    """The history of a run with interruptions is that of a run without any."""
    assert outcome.weights == plain()[1]
    (file,) = directory.glob("history-*.skip")
    history = read(file)
    assert history.fact("step").tolist() == list(range(STEPS))
    np.testing.assert_array_equal(history.fact("loss"), whole.fact("loss"))
    np.testing.assert_array_equal(history.capture_steps, sorted(set(history.capture_steps)))
    assert set(whole.capture_steps) <= set(history.capture_steps)
    shared = np.isin(history.capture_steps, whole.capture_steps)
    np.testing.assert_array_equal(history.sums[shared], whole.sums)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Every step captured, no interruption."""
    train(directory := tmp_path_factory.mktemp("dense"))
    return History.load(directory)


@pytest.mark.parametrize(("saved_at", "killed_at"), [(3, 4), (6, 7), (7, 13), (12, 13)])
def test_killed_between_captures(tmp_path: Path, saved_at: int, killed_at: int) -> None:
    """Step facts wait for a capture (0, 1, 2, 4, 5, 8, 10); a checkpoint leaves none waiting."""
    train(tmp_path / "whole", **SPARSE)
    killed = apart(
        train,
        tmp_path,
        checkpoint=tmp_path / "saved.pt",
        save_at=[saved_at],
        faults={killed_at: kill_myself},
        **SPARSE,
    )
    assert killed is None
    captures = [step for step in (0, 1, 2, 4, 5, 8, 10) if step < killed_at]
    assert read(tmp_path).capture_steps.tolist() == captures
    again = train(tmp_path, checkpoint=tmp_path / "saved.pt", **SPARSE)
    assert again.said == []
    check_whole(tmp_path, again, History.load(tmp_path / "whole"))


def test_a_checkpoint_inside_a_step(tmp_path: Path) -> None:
    """The row of the step that goes on waits for its end, and is written once."""
    monitor = Monitor(build(), dirpath=str(tmp_path), report=[])
    for _ in range(4):
        with monitor.step():
            assert monitor.state_dict()["step"] == monitor.step_count
    monitor.close()
    history = read(tmp_path)
    assert history.fact("step").tolist() == [0, 1, 2, 3]
    assert not np.isnan(history.fact("seconds")[:3]).any()


class Deadly:
    """A file whose n-th write takes half of the bytes, and then the process dies."""

    def __init__(self, file: Any, writes: int) -> None:
        self.file, self.writes = file, writes

    def write(self, data: memoryview) -> int:
        self.writes -= 1
        if self.writes < 0:
            self.file.write(data[: len(data) // 2])
            os.fsync(self.file.fileno())
            kill_myself()
        return int(self.file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


#: Header, column names, run, site map, then a capture, updates and facts each step.
@pytest.mark.parametrize("writes", [*range(8), 20, 21, 22, 40])
def test_killed_in_the_middle_of_a_write(tmp_path: Path, dense: History, writes: int) -> None:
    def run() -> Outcome:
        class Dying(history_file.Appending):
            def __init__(self, path: Path) -> None:
                super().__init__(path)
                self._raw: Any = Deadly(self._raw, writes)

        history_file.Appending = Dying  # type: ignore[misc]  # in this process only
        return train(tmp_path, checkpoint=tmp_path / "every.pt")

    assert apart(run) is None
    kept = read(tmp_path)
    held = len(kept.capture_steps)
    np.testing.assert_array_equal(kept.sums, dense.sums[:held, : len(kept.sites.sites)])
    if not (tmp_path / "every.pt").exists():  # died in the first step: nothing to go on from
        assert held <= 1
        return
    again = train(tmp_path, checkpoint=tmp_path / "every.pt")
    assert again.said == []
    check_whole(tmp_path, again, dense)


def test_killed_twenty_times(tmp_path: Path, dense: History) -> None:
    """At random moments; each time the run goes on from its last checkpoint, to its end."""
    moments, kills, runs = random.Random(5), 0, 0
    while kills < 20:
        runs += 1
        directory = tmp_path / str(runs)
        train_on = partial(train, directory, checkpoint=tmp_path / f"{runs}.pt")
        train_on(steps=1)
        outcome = None
        while outcome is None:
            pid, pipe = start(train_on)
            time.sleep(moments.uniform(0.0, 0.06))
            os.kill(pid, signal.SIGKILL)
            outcome = finish(pid, pipe)
            kills += outcome is None
            kept = read(directory)
            held = len(kept.capture_steps)
            assert kept.capture_steps.tolist() == list(range(held))
            np.testing.assert_array_equal(kept.sums, dense.sums[:held])
            if kills == 20:
                outcome = train_on()
        assert outcome.said == []
        check_whole(directory, outcome, dense)


def test_a_worker_that_outlives_its_run_keeps_nobody_out(tmp_path: Path, dense: History) -> None:
    """A loader's worker has the run's files open, and goes on when the run is killed."""
    ready, wait = os.pipe()

    def fork_and_die(_: Monitor) -> None:
        if os.fork() == 0:
            os.write(wait, str(os.getpid()).encode())
            time.sleep(60)
            os._exit(0)
        kill_myself()

    pid, pipe = start(train, tmp_path, checkpoint=tmp_path / "every.pt", faults={7: fork_and_die})
    os.waitpid(pid, 0)
    worker = int(os.read(ready, 20))
    os.close(pipe)
    try:
        again = train(tmp_path, checkpoint=tmp_path / "every.pt")
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(ready)
        os.close(wait)
    assert again.said == []
    check_whole(tmp_path, again, dense)
