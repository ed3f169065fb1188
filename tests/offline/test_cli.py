"""The command line: what it reads, what it writes, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skipscope.cli import main
from skipscope.history import History, HistoryWriter
from skipscope.rules import RULES
from tests.offline.report_values import GATE, run_of


def write(directory: Path, history: History, run_id: str = "r1") -> Path:
    """A history on disk."""
    writer = HistoryWriter(directory, run_id)
    writer.set_run(history.run)
    writer.set_sites(history.sites)
    writer.set_parameters(history.parameters, history.groups)
    for at, step in enumerate(history.capture_steps):
        writer.append_capture(int(step), history.sums[at], history.have[at], history.why[at])
    for at, step in enumerate(history.update_steps):
        writer.append_updates(int(step), history.updates[at], history.update_have[at])
    writer.append_facts(history.facts)
    writer.close()
    return writer.path


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """A Lightning version directory with a run in it."""
    directory = tmp_path / "lightning_logs" / "version_0"
    write(directory / "skipscope", run_of(12, {2: 34.0}, unseen=(GATE,)))
    return directory


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


# ------------------------------------------------------------------------------ report


def test_a_run_is_a_file_its_directory_or_a_version_directory(
    version: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = version / "skipscope"
    texts = set()
    for path in (version, folder, folder / "history-r1.skip"):
        code, out, err = run(capsys, "report", path)
        assert (code, err) == (0, "")
        texts.add(out)
    (text,) = texts
    assert text.startswith("skipscope  epoch ")
    assert "  12 sites  " in text.splitlines()[0]


def test_formats(version: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, "report", version, "--format", "json")[1])
    assert report["schema"] == "skipscope-report/1"
    assert "| depth | site |" in run(capsys, "report", version, "--format", "markdown")[1]
    assert "log r" in run(capsys, "report", version, "--format", "console")[1]


def test_width_ascii_and_colour(version: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "report", version, "--width", "120", "--ascii")
    assert out.isascii()
    assert 100 < max(map(len, out.splitlines())) <= 120
    assert "\x1b[" not in run(capsys, "report", version)[1]
    assert "\x1b[" in run(capsys, "report", version, "--color", "always")[1]
    markdown = run(capsys, "report", version, "--format", "markdown", "--ascii")[1]
    assert markdown.isascii()


def test_output_goes_to_a_file_in_utf8(
    version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.txt"
    assert run(capsys, "report", version, "--output", target) == (0, "", "")
    assert "\u2588" in target.read_text(encoding="utf-8")


def test_the_newest_of_several_runs_is_read_and_the_others_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, run_of(4), "old")
    newest = write(tmp_path, run_of(12), "new")
    later = newest.stat().st_mtime + 10
    os.utime(newest, (later, later))
    code, out, err = run(capsys, "report", tmp_path)
    assert code == 0
    assert "  12 sites  " in out.splitlines()[0]
    assert "reads history-new.skip, the newest of 2; others: history-old.skip" in err


# ------------------------------------------------------------------------------ failures


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "no such file or directory"),
        (lambda path: path.mkdir(), "holds no history-*.skip"),
        (lambda path: path.write_bytes(b"not a history at all"), ""),
    ],
)
def test_a_bad_path_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, problem: str
) -> None:
    path = tmp_path / "run"
    make(path)
    code, out, err = run(capsys, "report", path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("skipscope: ")
    assert str(path) in err
    assert problem in err
    assert "Traceback" not in err


def test_an_output_that_cannot_be_written_is_one_line_and_code_2(
    version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "absent" / "report.txt"
    code, _, err = run(capsys, "report", version, "--output", target)
    assert code == 2
    assert err.count("\n") == 1
    assert str(target) in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["report"],
        ["report", "x", "--format", "html"],
        ["report", "x", "--width", "10"],
        ["report", "x", "--width", "wide"],
        ["nonsense"],
    ],
)
def test_wrong_arguments_exit_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: skipscope" in capsys.readouterr().err


# ------------------------------------------------------------------------------ rules


def test_explain_by_code_and_name(capsys: pytest.CaptureFixture[str]) -> None:
    rule = RULES["RES101"]
    by_code = run(capsys, "explain", "RES101")
    assert by_code == run(capsys, "explain", "res101") == run(capsys, "explain", rule.name)
    assert by_code[0] == 0
    for heading in ("What it sees", "Why it matters", "What to try", "When it is wrong", "Source"):
        assert heading in by_code[1]


def test_an_unknown_rule_names_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "explain", "RES1001")
    assert code == 2
    assert "did you mean RES101" in err
    assert err.count("\n") == 1
    assert "`skipscope rules` lists them" in run(capsys, "explain", "zzz")[2]


def test_rules_are_listed_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "rules")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(RULES)


# ------------------------------------------------------------------------------ as a process


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    code = "import sys; from skipscope.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_stream_without_unicode_gets_ascii(version: Path) -> None:
    done = process("report", str(version), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"####" in done.stdout


def test_neither_torch_nor_lightning_is_loaded(version: Path) -> None:
    code = (
        "import sys; from skipscope.cli import main\n"
        f"assert main(['report', {str(version)!r}]) == 0 and main(['rules']) == 0\n"
        "heavy = {'torch', 'pytorch_lightning', 'lightning', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_reader_that_stops_early_is_no_error(version: Path) -> None:
    code = "import sys; from skipscope.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "report", str(version), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == 0
