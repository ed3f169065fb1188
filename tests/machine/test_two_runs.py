"""Two runs in one directory, and one run that was started twice."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skipscope import cli
from skipscope.history import History
from skipscope.history.format import header
from skipscope.monitor import Monitor
from tests.machine.runs import STEPS, Outcome, apart, finish, plain, read, start, train

REPORTS: dict[str, Any] = {"report": ["markdown", "json"]}
STOP = 7  #: the step at which the first of two processes stops for a while


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> History:
    train(directory := tmp_path_factory.mktemp("whole"))
    return History.load(directory)


def check_file(path: Path, whole: History, first: int = 0, waiting: int = 0) -> None:
    """The file holds the run from a step on, without gap or double.

    `waiting`: so many rows of step facts before that waited for the next step.
    """
    history = read(path)
    assert history.capture_steps.tolist() == list(range(first, STEPS))
    assert history.update_steps.tolist() == list(range(first, STEPS))
    assert history.fact("step").tolist() == list(range(first - waiting, STEPS))
    np.testing.assert_array_equal(history.sums, whole.sums[first:])


@pytest.mark.parametrize("at_once", [True, False])
def test_two_runs(
    tmp_path: Path, whole: History, at_once: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if at_once:
        running = [start(train, tmp_path, **REPORTS) for _ in range(2)]
        outcomes = [finish(*one) for one in running]
    else:
        outcomes = [apart(train, tmp_path, **REPORTS) for _ in range(2)]
    assert [outcome.said for outcome in outcomes] == [[], []]
    assert [outcome.trained for outcome in outcomes] == [plain(), plain()]
    files = {Path(outcome.file) for outcome in outcomes}
    assert files == set(tmp_path.glob("history-*.skip"))
    assert len(files) == 2
    for file in files:
        check_file(file, whole)
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.md",
        "report.json",
        *(file.name for file in files),
    }
    capsys.readouterr()
    assert cli.main(["report", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert "the newest of 2; others: " in told
    assert all(file.name in told for file in files)


# ------------------------------------------------------------------ one run, started twice
def interrupted(directory: Path) -> Path:
    """A run of 5 steps, and its checkpoint."""
    train(directory, steps=5, checkpoint=directory / "every.pt")
    (directory / "every.pt").replace(directory / "saved.pt")
    return directory / "saved.pt"


def resumed(directory: Path, number: int, **settings: Any) -> Outcome:
    """Goes on from the checkpoint, as a job of its own."""
    mine = directory / f"{number}.pt"
    mine.write_bytes((directory / "saved.pt").read_bytes())
    return train(directory, checkpoint=mine, **settings)


def check_both(directory: Path, outcomes: list[Outcome], whole: History, second: int) -> None:
    """One goes on in the old file; the other says once that it goes on in one of its own."""
    assert [outcome.weights for outcome in outcomes] == [plain()[1]] * 2
    (message,) = [said for outcome in outcomes for said in outcome.said]
    parted = next(outcome for outcome in outcomes if outcome.said)
    stayed = next(outcome for outcome in outcomes if not outcome.said)
    assert parted.captures == stayed.captures == list(range(5, STEPS))
    assert Path(parted.file).name in message
    assert "another process writes to" in message
    assert {parted.file, stayed.file} == {str(path) for path in directory.glob("history-*.skip")}
    check_file(Path(stayed.file), whole)
    check_file(Path(parted.file), whole, first=second)
    run_id = Path(parted.file).stem.removeprefix("history-")
    assert parted.state["run_id"] == run_id, "a checkpoint of it goes on in its own file"
    assert read(parted.file).run.run_id == run_id


def test_at_the_same_time(tmp_path: Path, whole: History) -> None:
    """Both come to the file at once, and neither leaves it before the other has come."""
    interrupted(tmp_path)
    barrier = multiprocessing.get_context("fork").Barrier(2)

    def meet(_: Monitor) -> None:
        barrier.wait(60)

    faults = {5: meet, STOP: meet}
    running = [start(resumed, tmp_path, number, faults=faults) for number in range(2)]
    check_both(tmp_path, [finish(*one) for one in running], whole, 5)


def _as_usual(_: Path) -> None:
    """The second finds the lock."""


def _no_locks(_: Path) -> None:
    """A network file system without locks: in this process and in those that it starts."""


def _lock_lost(directory: Path) -> None:
    """Whoever reads his own file gives up his lock: so POSIX wants it."""
    History.load(directory)


@pytest.mark.parametrize(
    ("before", "leaves", "first"), [(_as_usual, 1, 5), (_no_locks, 0, STOP), (_lock_lost, 0, STOP)]
)
def test_the_second_comes_in_between(
    tmp_path: Path,
    whole: History,
    before: Any,
    leaves: int,
    first: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupted(tmp_path)
    if before is _no_locks:
        monkeypatch.setattr(fcntl, "lockf", refuse_locks)
    started, go_on = os.pipe(), os.pipe()

    def stop(_: Monitor) -> None:
        before(tmp_path)
        os.write(started[1], b"!")
        os.read(go_on[0], 1)

    running = start(resumed, tmp_path, 0, faults={STOP: stop})
    os.read(started[0], 1)
    second = apart(resumed, tmp_path, 1)
    os.write(go_on[1], b"!")
    outcomes = [finish(*running), second]
    for end in (*started, *go_on):
        os.close(end)
    assert [bool(outcome.said) for outcome in outcomes] == [leaves == 0, leaves == 1]
    check_both(tmp_path, outcomes, whole, first)


def refuse_locks(*_: Any) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_the_other_is_gone(tmp_path: Path, whole: History) -> None:
    """A lock ends with its process, also when that is killed."""
    interrupted(tmp_path)
    faults = {STOP: lambda _: os.kill(os.getpid(), signal.SIGKILL)}
    assert apart(resumed, tmp_path, 0, faults=faults) is None
    assert resumed(tmp_path, 1).said == []
    check_file(tmp_path, whole)


def test_an_older_monitor_of_the_same_process(tmp_path: Path, whole: History) -> None:
    """A notebook: the first loop was stopped, nothing was closed, a second monitor goes on."""
    kept: list[Monitor] = []
    saved = interrupted(tmp_path)
    again = resumed(tmp_path, 0, steps=STOP, after=lambda _, monitor: kept.append(monitor))
    kept[-1].load_state_dict(again.state)
    saved.write_bytes((tmp_path / "0.pt").read_bytes())
    assert resumed(tmp_path, 1).said == []
    check_file(tmp_path, whole)


# ------------------------------------------------------------------ a file that others changed
def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"a note of mine")


@pytest.mark.parametrize("change", [_emptied, _longer])
def test_somebody_else_changes_the_file(tmp_path: Path, whole: History, change: Any) -> None:
    def before(_: Monitor) -> None:
        change(next(tmp_path.glob("history-*.skip")))

    outcome = train(tmp_path, faults={STOP: before})
    assert outcome.trained == plain()
    assert len(outcome.said) == 1
    check_file(Path(outcome.file), whole, first=STOP, waiting=1)
    (old,) = {str(path) for path in tmp_path.glob("history-*.skip")} - {outcome.file}
    kept = read(old).capture_steps.tolist()
    assert kept == ([] if change is _emptied else list(range(STOP)))


def test_somebody_else_changes_the_file_while_the_disk_is_full(
    tmp_path: Path, whole: History
) -> None:
    """Two faults, two messages, and still it is measured, and written once there is room."""

    def fill(_: Monitor) -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))

    def change(_: Monitor) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        _longer(next(tmp_path.glob("history-*.skip")))

    outcome = apart(train, tmp_path, faults={4: fill, STOP: change})
    assert outcome.trained == plain()
    assert ["cannot write to" in said for said in outcome.said] == [True, False]
    history = read(outcome.file)
    assert history.capture_steps.tolist() == list(range(STOP, STEPS))
    np.testing.assert_array_equal(history.sums, whole.sums[STOP:])


@pytest.mark.parametrize(
    "start_of_file",
    [bytes(4096), b"PK\x03\x04", header("x").replace(b'"format": 1', b'"format": 99')],
    ids=["zeros after a power cut", "something else", "of a newer release"],
)
def test_a_resume_from_a_file_that_cannot_be_gone_on_with(
    tmp_path: Path, whole: History, start_of_file: bytes
) -> None:
    interrupted(tmp_path)
    (old,) = tmp_path.glob("history-*.skip")
    old.write_bytes(start_of_file)
    outcome = resumed(tmp_path, 0)
    assert outcome.weights == plain()[1]
    (message,) = outcome.said
    assert Path(outcome.file).name in message
    assert old.name in message
    assert old.read_bytes() == start_of_file, "left as it was"
    check_file(Path(outcome.file), whole, first=5)
