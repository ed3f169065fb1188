"""The command line: what it reads, what it writes, and how it fails."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skipscope.cli import main
from skipscope.history import History, HistoryWriter
from skipscope.records import SUMS, Run
from skipscope.rules import RULES
from tests.offline.builders import add_facts, add_updates, make_history
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


# ------------------------------------------------------------------------------ check


def changing(directory: Path, *sick: bool, **rules: str) -> Path:
    """A run of 12 blocks, a capture each 10 steps; blocks.5 is at r = 34 where it is sick."""
    r = np.full((len(sick), 12), 0.35)
    r[np.array(sick), 5] = 34.0
    steps = 10 * np.arange(len(sick))
    history = make_history(r, steps=steps, run=Run(run_id="r1", rules=rules))
    return write(directory, add_facts(add_updates(history), loss=np.linspace(2, 1, steps[-1])))


def test_check_exits_with_1_and_a_line_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changing(tmp_path, *[True] * 4)
    code, out, err = run(capsys, "check", path)
    assert (code, err) == (1, "")
    (line,) = out.splitlines()
    assert line.startswith("warning RES101 branch-dominance blocks.5: r 34.0 at blocks.5")
    assert line.endswith(" (steps 0 to 30)")
    assert run(capsys, "check", path, "--fail-on", "error") == (0, "", "")
    assert run(capsys, "check", path, "--fail-on", "info")[0] == 1
    assert run(capsys, "check", path, "--ignore", "RES1,RES2,RES3") == (0, "", "")
    assert run(capsys, "check", path, "--select", "dead-branch") == (0, "", "")


def test_check_is_silent_on_a_healthy_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changing(tmp_path, *[False] * 4)
    assert run(capsys, "check", path, "--fail-on", "info") == (0, "", "")


def test_check_lets_pass_what_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changing(tmp_path, *[True] * 3, *[False] * 3)
    assert run(capsys, "check", path) == (0, "", "")
    text = run(capsys, "report", path)[1]
    assert "resolved: RES101 at blocks.5, steps 0 to 20\n" in text
    assert "1 resolved" in text.splitlines()[0]


def test_a_run_is_judged_by_its_own_rules_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for at, rules in enumerate((
        {"ignore": '["RES1", "RES3"]'},
        {"select": '["RES103"]'},
        {"select": '["RES101"]', "thresholds": '{"RES101": {"above": 1000}}'},
    )):  # fmt: skip
        path = changing(tmp_path / str(at), *[True] * 4, **rules)
        assert run(capsys, "check", path) == (0, "", "")
        assert "warning RES101" not in run(capsys, "report", path)[1]
    path = tmp_path / "0"
    assert run(capsys, "check", path, "--ignore", "")[0] == 1
    assert "warning RES101" in run(capsys, "report", path, "--ignore", "RES2")[1]
    assert run(capsys, "check", tmp_path / "1", "--select", "RES101")[0] == 1


def test_check_can_write_the_report_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changing(tmp_path, *[True] * 4)
    code, out, _ = run(capsys, "check", path, "--format", "json")
    assert code == 1
    report = json.loads(out)
    assert report["schema"] == "skipscope-report/1"
    assert [root["finding"]["code"] for root in report["roots"]] == ["RES101"]


def test_a_run_that_nothing_was_judged_of_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, History())
    code, out, err = run(capsys, "check", path)
    assert (code, out) == (2, "")
    assert "no rule could look at this run, no step of it was captured" in err
    code, out, _ = run(capsys, "check", path, "--format", "json")
    assert (code, json.loads(out)["roots"]) == (2, [])
    captured = changing(tmp_path / "run", *[False] * 4)
    code, out, err = run(capsys, "check", captured, "--select", "RES203")  # needs 1000 steps
    assert (code, out) == (2, "")
    assert "no rule could look at this run, `skipscope report` says what each rule needs" in err


@pytest.mark.parametrize("kept", [0, 10, 200])
def test_a_file_that_was_cut_off_before_a_capture_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int
) -> None:
    file = changing(tmp_path / "run", *[True] * 4)
    file.write_bytes(file.read_bytes()[:kept])
    assert run(capsys, "check", file)[:2] == (2, "")


@pytest.mark.parametrize("command", ["check", "report"])
def test_what_cannot_be_judged_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, out, err = run(capsys, command, tmp_path / "absent")
    assert (code, out) == (2, "")
    assert "no such file or directory" in err
    path = changing(tmp_path / "run", *[True] * 4)
    code, out, err = run(capsys, command, path, "--select", "RES11")
    assert (code, out) == (2, "")
    told = "skipscope: --select: no rule 'RES11' (`skipscope rules` lists them); did you mean RES10"
    assert err.startswith(told)
    code, out, err = run(capsys, command, path, "--ignore", "XYZ9")  # nothing comes near
    assert (code, out) == (2, "")
    told = "skipscope: --ignore: no rule 'XYZ9' (`skipscope rules` lists them); known: RES001, RES1"
    assert err.startswith(told)
    assert len(err) < 200
    unknown = changing(tmp_path / "newer", *[True] * 4, ignore='["RES950"]')
    code, _, err = run(capsys, command, unknown)
    assert code == 2
    assert f"{unknown}: the run's own ignore: no rule 'RES950'" in err
    assert run(capsys, command, unknown, "--ignore", "RES2")[0] in (0, 1)


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


def test_what_is_no_run_says_what_to_give(
    version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script, the folder of a study, and a rule without a name."""
    script = tmp_path / "common.py"
    script.write_text("x = 1\n")
    code, out, err = run(capsys, "compare", version, script)
    assert (code, out) == (2, "")
    assert f"{script} is not a skipscope history; give a history-*.skip file" in err
    study = tmp_path / "digits"
    write(study / "cells" / "plain-d050-s0-lr0.01", run_of(4))
    (study / "study.json").write_text("{}")
    code, out, err = run(capsys, "report", study)
    assert (code, out) == (2, "")
    cell = study / "cells" / "plain-d050-s0-lr0.01"
    assert err.endswith(f"runs lie in cells/; give one of these, such as {cell}\n")
    assert run(capsys, "report", cell)[0] == 0
    assert "skipscope: CODE: no rule has the code or name ''" in run(capsys, "explain", "")[2]


def test_an_output_that_cannot_be_written_is_one_line_and_code_2(
    version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "absent" / "report.txt"
    code, _, err = run(capsys, "report", version, "--output", target)
    assert code == 2
    assert err.count("\n") == 1
    assert f"--output {target}: " in err
    assert "; give a file that can be written" in err
    assert f"--output {tmp_path}: " in run(capsys, "report", version, "--output", tmp_path)[2]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["report"],
        ["report", "x", "--format", "html"],
        ["report", "x", "--width", "10"],
        ["report", "x", "--width", "wide"],
        ["check"],
        ["check", "x", "--fail-on", "never"],
        ["check", "x", "--format", "console"],
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


@pytest.mark.parametrize("code", RULES)
def test_the_example_is_printed_as_it_is_drawn(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sick and healthy, each line of the docstring as it stands there, at most 78 columns wide."""
    source = inspect.getsource(inspect.getmodule(RULES[code].function) or RULES[code].function)
    _, _, rest = source.partition("\n    Example:\n")
    rest = rest.partition("\n    Why it matters:")[0].rstrip()
    written = [line[8:] for line in rest.splitlines()]
    drawn = [line for line in written if line.startswith("    ")]
    assert {"sick", "healthy"} <= {line.split()[0] for line in drawn}
    assert max(map(len, written)) <= 78
    printed = run(capsys, "explain", code)[1].splitlines()
    at = printed.index("Example")
    assert printed[at + 1 : at + 1 + len(written)] == written


def test_an_unknown_rule_names_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "explain", "RES1001")
    assert code == 2
    assert "did you mean RES101" in err
    assert err.count("\n") == 1
    told = run(capsys, "explain", "zzz")[2]
    assert "`skipscope rules` lists them" in told
    assert f"RES202 and {len(RULES) - 8} more" in told  # rules, each once


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """One a line where there is room, else with the title in lines below each other."""
    code, out, _ = run(capsys, "rules", "--width", "200")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == list(RULES)
    title_at = lines[0].index(RULES["RES001"].title)
    for line in run(capsys, "rules")[1].splitlines():
        assert line.startswith("RES") or not line[:title_at].strip()
    assert run(capsys, "rules")[1].split() == out.split()


@pytest.mark.parametrize("width", [80, 90, None])
def test_what_a_rule_says_fits_the_width(
    width: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """As wide as is asked for, 80 columns where nobody asks and no terminal tells."""
    asked = [] if width is None else ["--width", width]
    for code, rule in RULES.items():
        out = run(capsys, "explain", code, *asked)[1]
        assert max(map(len, out.splitlines())) <= (width or 80)
        assert out.split() == rule.explain().split()  # nothing is lost
    assert max(map(len, run(capsys, "rules", *asked)[1].splitlines())) <= (width or 80)


def test_text_is_wrapped_and_the_help_says_what_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    for code in RULES:
        lines = run(capsys, "explain", code, "--width", 70)[1].splitlines()
        assert max(len(line) for line in lines if not line.startswith("    ")) <= 70
        assert max(map(len, lines)) <= 78
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    assert "drawings stay as they are, at most 78 columns" in " ".join(
        capsys.readouterr().out.split()
    )


def test_thresholds_are_told_with_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "explain", "RES101")[1]
    assert "\n* above (6): one site: times the median of its siblings\n" in out
    assert "\n* slope (-0.25): stage" in out
    assert "\n* patience (3): captures" in out
    assert "\n* min_steps (0): steps" in out


def test_a_rule_in_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    for code in RULES:
        out = run(capsys, "explain", code, "--ascii")[1]
        assert out.isascii()
    assert run(capsys, "rules", "--ascii")[1].isascii()


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


def test_an_example_keeps_its_columns_in_ascii() -> None:
    done, shown = (process("explain", "RES101", PYTHONIOENCODING=e) for e in ("ascii", "utf-8"))
    assert done.returncode == 0, done.stderr
    plain, drawn = (out.decode().splitlines() for out in (done.stdout, shown.stdout))
    assert b"?" not in done.stdout
    assert [len(line) for line in plain] == [len(line) for line in drawn]
    [sick] = [line for line in plain if line.strip().startswith("sick")]
    assert set(sick.split()[1]) <= set("_.:-=+*#")


def test_neither_torch_nor_lightning_is_loaded(version: Path) -> None:
    code = (
        "import sys; from skipscope.cli import main\n"
        f"assert main(['report', {str(version)!r}]) == 0 and main(['rules']) == 0\n"
        f"assert main(['check', {str(version)!r}]) == 1\n"
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


# ----------------------------------------------------------------- compare, extrapolate


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """Another version directory, its run healthy."""
    directory = tmp_path / "lightning_logs" / "version_1"
    write(directory / "skipscope", run_of(12), "r2")
    return directory


def test_compare(version: Path, second: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "compare", version, second)
    assert (code, err) == (0, "")
    head = "skipscope compare  12 and 12 sites  findings: 0 gained, 2 lost, 0 kept"
    assert out.startswith(head)
    assert f"A          {version}"[:60] in out
    assert "error RES101 branch-dominance, blocks.2: r 34.0" in out
    read = json.loads(run(capsys, "compare", version, second, "--format", "json")[1])
    assert read["schema"] == "skipscope-comparison/1"
    markdown = run(capsys, "compare", version, second, "--format", "markdown", "--ascii")[1]
    assert markdown.isascii()
    assert "| depth | site |" in markdown


def test_compare_asks_the_rules_that_were_wanted(
    version: Path, second: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run(capsys, "compare", version, second, "--ignore", "RES101", "--format", "json")[1]
    assert "RES101" not in {one["code"] for one in json.loads(out)["findings"]}
    code, _, err = run(capsys, "compare", version, second, "--ignore", "RES9999")
    assert code == 2
    assert "no rule 'RES9999'" in err


def test_extrapolate(second: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """r is 1/2 everywhere: 1.25^(48/2) at four times twelve sites."""
    code, out, err = run(capsys, "extrapolate", second, "--depth", "4x, 24")
    assert (code, err) == (0, "")
    assert "1.118034^48 = 211.8" in out  # 1.11803^48 is 211.7
    target = tmp_path / "deep.json"
    assert run(capsys, "extrapolate", second, "--format", "json", "--output", target) == (0, "", "")
    read = json.loads(target.read_text(encoding="utf-8"))
    at = read["moments"][0]["streams"][0]["stages"][0]["otherwise"]
    assert [(one["law"], one["sites"]) for one in at[:2]] == [("constant", 24), ("constant", 48)]
    assert at[1]["growth"] == pytest.approx(1.25**24)


def test_extrapolate_says_what_is_wrong_with_a_depth(
    second: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "extrapolate", second, "--depth", "deep")
    assert (code, out) == (2, "")
    assert "depth 'deep': give 4x" in err
    for deep in ("1000000000", "1000000x"):
        err = run(capsys, "extrapolate", second, "--depth", deep)[2]
        assert f"depth {deep}" in err.replace("'", "")
        assert "1000000" in err.replace(deep, "")  # the most that there is


@pytest.mark.parametrize("why", ["", "a mesh of processes that it does not know"])
@pytest.mark.parametrize("command", ["compare", "extrapolate"])
def test_a_run_without_captures_is_no_answer(
    command: str, why: str, second: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with `check`: exit status 2, and on standard error which run it is, and why."""
    write(tmp_path / "bare", History(Run(run_id="bare", uncaptured=why)), "bare")
    runs = [second, tmp_path / "bare"] if command == "compare" else [tmp_path / "bare"]
    code, out, err = run(capsys, command, *runs)
    assert code == 2
    assert out.startswith(f"skipscope {command}")
    assert f"{tmp_path / 'bare'}: " in err
    assert f"no step of it was captured: {why or 'the file is empty'}" in err
    assert str(second) not in err


def test_a_run_without_sites_is_nothing_to_extrapolate_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = History(Run(run_id="plain"))
    plain.append_capture(0, np.zeros((0, len(SUMS))), np.zeros(0), np.zeros(0))
    write(tmp_path / "plain", plain, "plain")
    code, _, err = run(capsys, "extrapolate", tmp_path / "plain")
    assert code == 2
    assert "no residual addition was found" in err


@pytest.mark.parametrize("command", ["compare", "extrapolate"])
def test_a_truncated_file_is_read_as_far_as_it_goes(
    command: str, second: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (second / "skipscope").glob("*.skip")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    runs = [second, second] if command == "compare" else [second]
    code, out, _ = run(capsys, command, *runs)
    assert code == 0
    assert "12 sites" in out
    path.write_bytes(b"not a history")
    code, out, err = run(capsys, command, *runs)
    assert (code, out) == (2, "")
    assert err.startswith("skipscope: ")
    path.unlink()
    assert run(capsys, command, *runs)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("extrapolate", "--depth", ""), "--depth: '' names nothing"),
        (("extrapolate", "--depth", ","), "--depth: ',' names nothing"),
        (("report", "--select", ""), "--select: '' names nothing"),
        (("report", "--width", "\u00b2"), "--width: '\u00b2' is not a number of columns from 70"),
        (("report", "--width", "9" * 5000), "--width: '9999999999999999...' is not a number"),
    ],
)
def test_an_option_names_itself_and_its_value(
    version: Path, arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    with pytest.raises(SystemExit) as end:
        main([command, str(version), *rest])
    assert end.value.code == 2
    assert f"argument {told}" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "\u00b2", "9" * 20])
def test_numbers_of_a_study_are_numbers(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["study", "--seeds", value])
    assert "argument --seeds: '" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_named(version: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "report", version, "--output", "/dev/full")
    assert (code, out) == (2, "")
    assert err == (
        "skipscope: --output /dev/full: No space left on device; give a file that can be written\n"
    )


def test_a_closed_standard_error_leaves_the_output_alone(
    version: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(version / "skipscope", run_of(3, {}), "r2")  # two runs, of which the newest is read
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["report", str(version), "--format", "json"]) == 0
    json.loads(capsys.readouterr().out)
    assert main(["report", str(version / "none")]) == 2
    assert capsys.readouterr().out == ""
