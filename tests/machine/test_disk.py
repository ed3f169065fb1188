"""A disk that fills up, a directory that goes away: the training goes on, once it is said."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skipscope.history import History, HistoryWriter
from skipscope.monitor import Monitor
from skipscope.options import Options
from tests.machine.runs import STEPS, Outcome, apart, fill_up, plain, read, train

FAULT = 7  #: the step before which it happens; reports are made after steps 4 and 9
REPORTS: dict[str, Any] = {"report": ["markdown", "json"]}


def check(outcome: Outcome, *, kept: int | None = None, said: str = "") -> None:
    """Bit-identical, measured to the end, one message; `kept` captures in memory."""
    assert outcome.trained == plain()
    assert outcome.captures == list(range(STEPS if kept is None else kept))
    (message,) = outcome.said
    assert message.startswith("WARNING skipscope cannot write to ")
    assert said in message


def check_file(directory: Path, whole: History) -> int:
    """Each capture on the disk is that of an unharmed run; how many there are."""
    history = read(directory)
    count = len(history.capture_steps)
    assert history.capture_steps.tolist() == list(range(count))
    np.testing.assert_array_equal(history.sums, whole.sums[:count])
    return count


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> History:
    directory = tmp_path_factory.mktemp("whole")
    train(directory)
    return History.load(directory)


def test_a_small_disk_fills_up(mounted: Path, whole: History) -> None:
    outcome = train(mounted, faults={FAULT: lambda _: fill_up(mounted)}, **REPORTS)
    check(outcome, said="No space left")
    assert FAULT - 1 <= check_file(mounted, whole) < STEPS
    assert "step 4" in (mounted / "report.md").read_text()  # the last one for which there was room


@pytest.mark.parametrize("room", [0, 1, 17, 300])
def test_a_file_that_may_not_grow(tmp_path: Path, whole: History, room: int) -> None:
    """The system takes `room` bytes of a block, then refuses (SIGXFSZ is ignored by Python)."""

    def run() -> Outcome:
        def limit(monitor: Monitor) -> None:
            (file,) = tmp_path.glob("history-*.skip")
            size = file.stat().st_size + room
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        return train(tmp_path, faults={FAULT: limit})

    check(apart(run), said=os.strerror(errno.EFBIG))
    assert check_file(tmp_path, whole) in (FAULT - 1, FAULT)


def test_room_comes_back(tmp_path: Path, whole: History) -> None:
    """What was refused is missing; from the next capture on the file has everything again."""

    def limit(size: int) -> Any:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        return lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    check(apart(lambda: train(tmp_path, faults={FAULT: limit(100), 10: limit(10**9)}, **REPORTS)))
    history = read(tmp_path)
    kept = [*range(FAULT), *range(10, STEPS)]
    assert history.capture_steps.tolist() == history.update_steps.tolist() == kept
    np.testing.assert_array_equal(history.sums, whole.sums[kept])
    # The row of step 6 waited for step 7; that of step 9 was handed on at the epoch's end.
    assert history.fact("step").tolist() == [*range(FAULT - 1), *range(10, STEPS)]


def test_no_room_at_the_start(tmp_path: Path) -> None:
    """The file cannot even begin; an older run in the directory stays the newest one."""
    train(tmp_path)

    def run() -> Outcome:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))
        return train(tmp_path)

    check(apart(run))
    (file,) = tmp_path.glob("history-*.skip")
    assert len(read(file).capture_steps) == STEPS


def test_the_report_is_too_large(tmp_path: Path) -> None:
    """The history has room, the reports have none: the old ones stay, measuring goes on."""

    def run() -> Outcome:
        limit = 6000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return train(tmp_path, preset="train", **REPORTS)

    (tmp_path / "report.json").write_text("old")
    outcome = apart(run)
    check_training(outcome)
    assert (tmp_path / "report.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def check_training(outcome: Outcome) -> None:
    assert outcome.trained == plain()
    assert len(outcome.said) == 1


@pytest.mark.parametrize("back", [False, True])
def test_the_directory_becomes_read_only(whole: History, back: bool) -> None:
    """Files that are open go on; new ones cannot be made. Root may write anywhere, so it leaves."""
    directory = Path(tempfile.mkdtemp(prefix="skipscope-"))
    try:
        directory.chmod(0o777)

        def run() -> Outcome:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            (directory / "run").mkdir()
            modes = {6: 0o555, **({10: 0o755} if back else {})}
            faults = {
                at: lambda _, mode=mode: (directory / "run").chmod(mode)
                for at, mode in modes.items()
            }
            return train(directory / "run", faults=faults, epoch=4, **REPORTS)

        check(apart(run), said=os.strerror(errno.EACCES))
        assert check_file(directory / "run", whole) == STEPS
        last = 11 if back else 3
        assert f"step {last}" in (directory / "run" / "report.json").read_text()
    finally:
        shutil.rmtree(directory)


def test_the_directory_is_removed(tmp_path: Path) -> None:
    outcome = train(
        tmp_path / "run", faults={FAULT: lambda _: shutil.rmtree(tmp_path / "run")}, **REPORTS
    )
    check(outcome, said="removed while the run went on")
    assert not (tmp_path / "run").exists()


def test_the_directory_is_moved(tmp_path: Path, whole: History) -> None:
    """The open file moves along, so nothing is lost but the reports."""

    def move(_: Monitor) -> None:
        (tmp_path / "run").rename(tmp_path / "moved")

    check(train(tmp_path / "run", faults={FAULT: move}, **REPORTS))
    assert check_file(tmp_path / "moved", whole) == STEPS


def _file_in_the_way(root: Path) -> Path:
    (root / "file").write_text("mine")
    return root / "file"


def _too_long(root: Path) -> Path:
    return root / ("x" * 300)


def _deep(root: Path) -> Path:
    return root / "/".join(["y" * 200] * 30)


@pytest.mark.parametrize(
    "make",
    [_file_in_the_way, lambda root: _file_in_the_way(root) / "below", _too_long, _deep],
    ids=["is a file", "below a file", "name too long", "path too long"],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_directory_that_cannot_be(tmp_path: Path, make: Any, resumed: bool) -> None:
    state = {"version": 1, "run_id": "old", "step": 0, "epoch": 0} if resumed else None
    check(train(make(tmp_path), state=state, **REPORTS))
    if (tmp_path / "file").exists():
        assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_that_no_system_can_name() -> None:
    with pytest.raises(ValueError, match="dirpath"):
        Options(dirpath="a\0b")


def test_a_directory_that_may_not_be_entered() -> None:
    directory = Path(tempfile.mkdtemp(prefix="skipscope-"))  # of root, for root
    state = {"version": 1, "run_id": "old", "step": 0, "epoch": 0}

    def run() -> Outcome:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        else:
            directory.chmod(0)
        return train(directory, state=state, **REPORTS)

    try:
        check(apart(run), said=os.strerror(errno.EACCES))
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("name", ["two words", "größe-μ-学習", "-rf", 'it\'s "so"', "100%s"])
def test_directories_with_odd_names(tmp_path: Path, name: str) -> None:
    outcome = train(tmp_path / name, report=["markdown", "json"])
    assert outcome.said == []
    assert len(read(tmp_path / name).capture_steps) == STEPS
    assert (tmp_path / name / "report.json").is_file()


def test_a_monitor_with_letters_beyond_ascii(tmp_path: Path) -> None:
    """`name=` takes every letter; it becomes a part of the file's name."""
    assert train(tmp_path, name="größe").said == []
    assert len(read(tmp_path).capture_steps) == STEPS


def test_out_of_file_handles(tmp_path: Path, whole: History) -> None:
    def run() -> Outcome:
        def take_all(_: Monitor) -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            try:
                while True:
                    os.dup(0)
            except OSError:
                pass

        return train(tmp_path, faults={FAULT: take_all}, **REPORTS)

    check(apart(run), said=os.strerror(errno.EMFILE))
    assert check_file(tmp_path, whole) == STEPS


def test_out_of_file_handles_at_the_start(tmp_path: Path) -> None:
    def run() -> Outcome:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        return train(tmp_path, **REPORTS)

    check(apart(run), said=os.strerror(errno.EMFILE))


def test_a_system_that_refuses_to_close(
    tmp_path: Path, whole: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network disk tells only then that a quota is spent."""
    close = HistoryWriter.close

    def refuse(self: HistoryWriter) -> None:
        close(self)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(HistoryWriter, "close", refuse)
    train(tmp_path)  # `Monitor.close` raises nothing
    assert check_file(tmp_path, whole) == STEPS
