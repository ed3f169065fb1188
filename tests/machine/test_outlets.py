"""Consoles, loggers and clocks that fail: the report is lost, and nothing else."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from skipscope import cli
from skipscope.history import History
from skipscope.monitor import Monitor
from skipscope.publish import say
from tests.machine.runs import STEPS, Outcome, apart, fill_up, plain, read, train

CONSOLE: dict[str, Any] = {"report": ["console"]}
ROOT = Path(__file__).parents[2]


def check(outcome: Outcome, said: str) -> None:
    assert outcome.trained == plain()
    assert outcome.captures == list(range(STEPS))
    (message,) = outcome.said
    assert message.startswith("WARNING ")
    assert said in message


# ------------------------------------------------------------------ the console
def closed() -> None:
    sys.stdout.close()


def absent() -> None:
    """A process without a console, as a service."""
    sys.stdout = None  # type: ignore[assignment]


def pipe_without_reader() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sys.stdout = os.fdopen(writing, "w", encoding="utf-8")


def full_disk() -> None:
    sys.stdout = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", encoding="utf-8")


def full_pipe_that_does_not_wait() -> None:
    _, writing = os.pipe()
    os.set_blocking(writing, False)
    sys.stdout = os.fdopen(writing, "w", encoding="utf-8")
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (closed, "closed file"),
        (pipe_without_reader, os.strerror(errno.EPIPE)),
        (full_disk, os.strerror(errno.ENOSPC)),
        (full_pipe_that_does_not_wait, "takes no more"),
    ],
)
def test_a_console_that_takes_nothing(spoil: Any, said: str) -> None:
    check(apart(lambda: (spoil(), train(**CONSOLE))[1]), said)


def test_nothing_waits_in_the_buffer_of_a_console_that_took_nothing(tmp_path: Path) -> None:
    """What is left there would fail again in the training's own `print`, which would raise."""

    def run() -> str:
        full_disk()
        with pytest.raises(OSError, match="No space"):
            say("x" * 100)
        with (tmp_path / "log").open("w") as file:
            os.dup2(file.fileno(), sys.stdout.fileno())
        print("mine", flush=True)
        return (tmp_path / "log").read_text()

    assert apart(run) == "mine\n"


def test_no_console_at_all() -> None:
    outcome = apart(lambda: (absent(), train(**CONSOLE))[1])
    assert outcome.trained == plain()
    assert outcome.said == []


def test_a_console_that_knows_ascii_only(tmp_path: Path) -> None:
    """Names that it cannot show become "?"; the report is there."""

    def run() -> Outcome:
        sys.stdout = (tmp_path / "log").open("w", encoding="ascii")
        outcome = train(**CONSOLE)
        say("größe")
        return outcome

    outcome = apart(run)
    assert outcome.trained == plain()
    assert outcome.said == []
    text = (tmp_path / "log").read_text(encoding="ascii")
    assert text.count("skipscope  epoch") == 2
    assert text.endswith("gr??e\n")


def test_say_keeps_the_order(tmp_path: Path) -> None:
    def run() -> None:
        sys.stdout = (tmp_path / "log").open("w", encoding="utf-8")
        print("before")
        say("größe")
        print("after")
        sys.stdout.close()

    apart(run)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "before\ngröße\nafter\n"


def test_somebody_elses_console_fails() -> None:
    def show(_: str) -> None:
        raise RuntimeError("no widget")

    check(train(faults={0: lambda monitor: setattr(monitor, "show", show)}, **CONSOLE), "no widget")


SCRIPT = """
import sys
from pathlib import Path
from tests.machine.runs import train
print("begins", flush=True)
outcome = train(report=["console"], epoch=2)
Path(sys.argv[1]).write_text(repr((outcome.trained, outcome.said)))
"""


def script(command: str, target: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a command in which $PYTHON has our source."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    own = {"PYTHON": sys.executable, "PYTHONPATH": paths, "TARGET": str(target)}
    own["OMP_NUM_THREADS"] = "1"  # as in these tests: two threads add in another order
    return subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, **own, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_head_in_a_shell(tmp_path: Path) -> None:
    """`python train.py | head -1`, in plain ASCII too; the process ends well."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = f'"$PYTHON" {tmp_path}/train.py "$TARGET" | head -1; exit ${{PIPESTATUS[0]}}'
    done = script(command, tmp_path / "result", PYTHONIOENCODING="ascii")
    assert done.stdout == "begins\n"
    assert done.returncode == 0, done.stderr
    trained, said = eval((tmp_path / "result").read_text())
    assert trained == plain()
    assert len(said) == 1
    assert os.strerror(errno.EPIPE) in said[0]


# ------------------------------------------------------------------ the command line
@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train(directory := tmp_path_factory.mktemp("recorded"))
    return directory


@pytest.mark.parametrize(("spoil", "code"), [(absent, 0), (pipe_without_reader, 0), (full_disk, 2)])
def test_the_command_line_without_a_console(recorded: Path, spoil: Any, code: int) -> None:
    def run() -> tuple[int, str]:
        spoil()
        sys.stderr = io.StringIO()
        return cli.main(["report", str(recorded)]), sys.stderr.getvalue()

    got, told = apart(run)
    assert got == code
    assert told.count("\n") == (code == 2)


@pytest.mark.parametrize(
    ("target", "code"), [("> /dev/full", 2), (">&-", 0), ("| head -1 > /dev/null", 0)]
)
def test_the_command_line_in_a_shell(recorded: Path, target: str, code: int) -> None:
    """Nothing is left in the buffer that fails once more when Python ends, with exit code 120."""
    main = "from skipscope.cli import main; raise SystemExit(main())"
    command = f'"$PYTHON" -c "{main}" report "$TARGET" {target}; exit ${{PIPESTATUS[0]}}'
    done = script(command, recorded)
    assert done.returncode == code
    assert done.stderr.count("\n") == (code == 2), done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------ loggers
class Failing:
    """A logger that takes `good` calls, then raises."""

    def __init__(self, good: int) -> None:
        self.good = good

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.good -= 1
        if self.good < 0:
            raise ConnectionError("no network")


class Counting:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.steps.append(step)


@pytest.mark.parametrize("good", [0, 5])
def test_a_logger_that_raises(good: int) -> None:
    other = Counting()
    outcome = train_with(Failing(good), other)
    check(outcome, "Failing failed and gets nothing more from skipscope: ConnectionError")
    assert other.steps == list(range(STEPS))


def train_with(*loggers: Any, directory: Path | None = None, **settings: Any) -> Outcome:
    from skipscope.loggers import Loggers

    def give(monitor: Monitor) -> None:
        monitor.loggers = Loggers(loggers)

    faults = {0: give, **settings.pop("faults", {})}
    return train(directory, faults=faults, **settings)


def test_a_writer_whose_disk_is_full(mounted: Path, tmp_path: Path) -> None:
    """TensorBoard writes in a thread of its own: the error comes one call later."""

    def run() -> Outcome:
        writer = SummaryWriter(str(mounted), max_queue=1, flush_secs=1)

        def fill(_: Monitor) -> None:
            fill_up(mounted)
            for _ in range(100):  # until its thread has met the full disk
                time.sleep(0.02)
                try:
                    writer.add_scalar("mine", 1.0)
                    writer.flush()
                except OSError:
                    break

        return train_with(writer, directory=tmp_path / "run", faults={7: fill}, report=["markdown"])

    check(apart(run), "SummaryWriter failed")
    assert len(read(tmp_path / "run").capture_steps) == STEPS
    assert f"step {9}" in (tmp_path / "run" / "report.md").read_text()


# ------------------------------------------------------------------ clocks
class Clock:
    """Goes back by an hour at each seventh reading."""

    def __init__(self) -> None:
        self.now, self.readings = 1e6, 0

    def __call__(self) -> float:
        self.readings += 1
        self.now += -3600 if self.readings % 7 == 0 else 0.25
        return self.now


def test_clocks_that_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, Clock())
    outcome = train(tmp_path, report=["markdown", "json"])
    monkeypatch.undo()
    assert outcome.trained == plain()
    assert outcome.said == []
    history = read(tmp_path)
    assert history.capture_steps.tolist() == history.fact("step").tolist() == list(range(STEPS))
    for name in ("seconds", "host_ms"):
        known = history.fact(name)[~np.isnan(history.fact(name))]
        assert known.size, name
        assert (known >= 0).all(), name
        assert (known <= 1000 * 0.25 * 20).all(), name
    assert np.isnan(history.fact("seconds")[:-1]).any(), "the clock did go back between two steps"


def test_a_later_run_with_an_earlier_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which run is the newest is what the disk says; the command names the others."""
    first, second = train(tmp_path), train(tmp_path)
    os.utime(second.file, (1, 1))
    assert History.load(tmp_path).run.run_id == first.state["run_id"]
    assert cli.main(["report", str(tmp_path)]) == 0
    assert Path(second.file).name in capsys.readouterr().err
