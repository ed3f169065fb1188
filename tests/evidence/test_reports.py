"""Reports of a study: what stands where, what reads back, and what a name cannot break."""

from __future__ import annotations

import csv as stdlib_csv
import io
import json as stdlib_json
import math
import re
import subprocess
import sys
from dataclasses import fields, replace
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from skipscope.cli import main
from skipscope.evidence import console, judge, write_reports
from skipscope.evidence.landmarks import LANDMARKS
from skipscope.evidence.outcome import ArmFacts, Evidence, Outcome, Reading
from skipscope.evidence.plots import plots
from skipscope.evidence.reports import FILES, csv, html, json, markdown
from tests.evidence import smoke
from tests.evidence.test_judge import variants
from tests.evidence.values import changed, digits, pair_of, run

NASTY = "<b onclick='x'>&\"|`$a_b$</script>"
VOID = {"meta", "br", "hr", "img", "link", "input"}


def nasty() -> Evidence:
    """Names that HTML, Markdown, mathtext and CSV each take for their own."""
    return named(NASTY)


def odd() -> list[Evidence]:
    """Studies at the edge of what there is to print."""
    every = pair_of({10: [0.1, 0.0], 50: [2.0, 0.5]}, {10: [0.1, 0.0], 50: [0.1, 0.0]})
    return [
        nasty(),
        replace(every, outcomes=()),
        replace(every, outcomes=every.outcomes[:1]),
        changed(every, lambda cell: True, finite=False, train_loss=math.nan, readings=()),
        changed(every, lambda cell: True, readings=(Reading(0, r_median=math.nan, loss=math.inf),)),
        changed(every, lambda cell: True, train_loss=0.0, readings=(Reading(5, loss=0.5),)),
    ]


def named(text: str) -> Evidence:
    """The same words wherever a study takes words."""
    study = pair_of({10: [0.1, 0.0], 50: [math.inf, 1.0]}, {10: [0.1, 0.0], 50: [0.1, 0.0]})
    arms = tuple(
        replace(arm, name=text + arm.name, title=text, pair=text, differs=text)
        for arm in study.arms
    )
    outcomes = tuple(
        replace(o, cell=replace(o.cell, arm=text + o.cell.arm)) for o in study.outcomes
    )
    return replace(
        study, name=text, title=text, arms=arms, outcomes=outcomes, protocol={text: text}
    )


class Page(HTMLParser):
    """Checks that what is opened is closed, and keeps the words and what could load or run."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.text = ""
        self.loads: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        for name, value in attrs:
            local = (value or "").startswith("#")
            if name in ("src", "href", "xlink:href") and not local:
                self.loads.append((name, value))
            if name.startswith("on"):
                self.loads.append((name, value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


@pytest.mark.parametrize("name", FILES)
def test_every_format_prints_every_study(name: str) -> None:
    for study in odd():
        text = FILES[name](study, judge(study))
        assert text.endswith("\n")
        assert len(text) > 100


@pytest.mark.parametrize("name", FILES)
@pytest.mark.filterwarnings("error")
def test_no_name_steers_a_terminal_or_turns_the_writing(name: str) -> None:
    study = named("\x1b[31mred\x07\x00\u202e\u2028")
    text = FILES[name](study, judge(study))
    assert "red" in text
    assert [c for c in text if not c.isprintable() and c != "\n"] == []


@pytest.mark.parametrize("name", FILES)
def test_numbers_at_the_ends_of_what_a_float_holds(name: str) -> None:
    every = pair_of({10: [0.1, 0.0], 50: [2.0, 0.5]}, {10: [0.1, 0.0], 50: [0.1, 0.0]})
    ends = Reading(0, 1e308, 5e-324, 1e308, 1e308, 5e-324, 1e308, 1e308, 5e-324, 1e308)
    study = changed(every, lambda cell: cell.seed == 0, train_loss=1e308, readings=(ends,))
    study = changed(study, lambda cell: cell.seed == 1, train_loss=5e-324)
    assert len(FILES[name](study, judge(study))) > 100


def test_one_of_a_thing_is_not_many() -> None:
    """One seed at one, two and two deep depths, with starts to compare and a grid of one rate."""
    starts = [
        ArmFacts("r", "idle", "idle", "pair", "shortcut and alpha"),
        ArmFacts("s", "start", "start", "pair", "shortcut and start", near_identity=True),
        ArmFacts("t", "too small", "too-small", "pair", "shortcut and alpha"),
    ]
    shallow = pair_of({10: [0.1, 0.0]}, {10: [0.1, 0.0]})
    deep = pair_of({10: [0.1, 0.0], 50: [2.0, 0.5]}, {10: [0.1, 0.0], 50: [0.1, 0.0]})
    lost = pair_of({10: [0.1, 0.0], 50: [math.inf, 1.0]}, {10: [0.1, 0.0], 50: [0.1, 0.0]})
    whole = pair_of(
        {10: [0.1, 0.0], 50: [2.0, 0.5]},
        {10: [0.1, 0.0], 50: [0.1, 0.0]},
        *(run(arm.name, depth, 0, 0.05) for arm in starts for depth in (10, 50)),
        arms=starts,
    )
    for study in (shallow, deep, lost, whole):
        for name, form in FILES.items():
            text = form(study, judge(study))
            assert not re.findall(r"\b1 (?:pairs|runs|seeds|depths?|trainings)\b", text), name
    text = " ".join(console(shallow, judge(shallow)).split())
    assert "p ran at depth 10 only, two are needed" in text
    assert "ran 2 runs, 1 seed, depth 10, lr 0.01" in text


# --------------------------------------------------------------------------------- console


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("width", [70, 80, 120])
def test_console_keeps_to_its_width(width: int, unicode: bool) -> None:
    for study in (digits(), variants(), *odd()):
        text = console(study, judge(study), width=width, unicode=unicode)
        assert max(map(len, text.splitlines())) <= width
        assert unicode or text.isascii()


def test_a_narrow_console_says_the_same() -> None:
    study = digits()
    wide, narrow = (console(study, judge(study), width=width) for width in (300, 70))
    assert sorted(narrow.split()) == sorted(wide.split())


def test_console_says_every_link_and_its_state() -> None:
    study = digits()
    verdict = judge(study)
    text = " ".join(console(study, verdict).split())
    for chain in verdict.chains:
        for link in chain.links:
            assert f"{link.number} {link.answer.state} {link.name}: " in text
            assert " ".join(link.answer.reason.split()[:6]) in text
    assert "caution the arms differ in shortcut and last-layer scale" in text


def test_training_stands_first_and_validation_last() -> None:
    study = digits()
    text = console(study, judge(study))
    places = [
        text.index(words)
        for words in (
            "plain degrades", "\ntraining\n", "\nthe first steps\n", "\nlearning rates\n",
            "\nvalidation, last\n", "\npublished, not measured here\n",
        )
    ]  # fmt: skip
    assert places == sorted(places)


def test_what_only_validation_shows_is_no_evidence_of_degradation() -> None:
    study = changed(variants(), lambda cell: cell.arm == "plain", validation_error=0.5)
    for report in (console, markdown, html):
        told, untold = (report(one, judge(one)) for one in (study, variants()))
        assert "not evidence of degradation" in " ".join(told.split())
        assert "not evidence of degradation" not in " ".join(untold.split())


def test_colour_says_nothing_alone() -> None:
    study = digits()
    coloured = console(study, judge(study), color=True)
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == console(
        study, judge(study)
    ).splitlines()


# -------------------------------------------------------------------------------- markdown


def test_markdown_tables_are_whole() -> None:
    for study in (digits(), variants(), *odd()):
        rows = [line for line in markdown(study, judge(study)).splitlines() if line[:1] == "|"]
        blocks: list[int] = []
        for line in rows:
            columns = len(re.findall(r"(?<!\\)\|", line))
            if set(line) <= set("|-: "):
                assert columns == blocks[-1]
            blocks.append(columns)
    assert "<b" not in markdown(nasty(), judge(nasty()))


# ------------------------------------------------------------------------------------ html


@lru_cache
def page_of_digits() -> str:
    return html(digits(), judge(digits()))


def test_html_is_one_page_that_loads_and_runs_nothing() -> None:
    study = digits()
    page = parsed(page_of_digits())
    assert page.loads == []
    assert not page.tags & {"script", "img", "link", "iframe", "object"}
    assert "svg" in page.tags
    assert len(page.ids) == len(set(page.ids)), "two elements of one name"
    for chain in judge(study).chains:
        for link in chain.links:
            assert link.answer.reason in page.text
            assert all(check.what in page.text for check in link.answer.checks)
            assert link.criterion in page.text


def test_html_follows_light_and_dark() -> None:
    text = page_of_digits()
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert "#010203" not in text
    # no paper of their own under the plots
    assert not re.search(r"fill: #(fff|ffffff)\b", text)


def test_names_cannot_break_the_page() -> None:
    page = parsed(html(nasty(), judge(nasty())))
    assert not page.tags & {"b", "script"}
    assert page.loads == []
    assert NASTY in page.text


def test_the_same_study_makes_the_same_page() -> None:
    study = pair_of({10: [0.1, 0.0]}, {10: [0.1, 0.0]})
    assert html(study, judge(study)) == html(study, judge(study))


def test_plots_show_what_there_is() -> None:
    drawn = plots(digits(), "no norm")
    assert [one.title for one in drawn] == [
        "Training loss by depth",
        "Loss over steps, depth 100",
        "Gradient of the first block over the last, depth 100",
        "Effective rank of the last features, depth 100",
        "Branch ratio r = |F| / |s|, depth 100",
    ]
    for plot in drawn:
        named = {name for name in ("plain", "he", "sqrt", "zero-last") if f"> {name}<" in plot.svg}
        # A plain net has no r, and he diverges: it has its mark at each depth and no curve.
        more = {"Training loss by depth": {"plain", "he"}}.get(plot.title, {"plain"})
        assert named == {"sqrt", "zero-last"} | (set() if "r =" in plot.title else more)
    unread = changed(digits(), lambda cell: True, readings=())
    assert [one.title for one in plots(unread, "no norm")] == ["Training loss by depth"]
    assert plots(replace(digits(), outcomes=()), "no norm") == []


# -------------------------------------------------------------------------------- json, csv


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def test_json_is_strict_and_complete() -> None:
    study = digits()
    text = json(study, judge(study))
    assert text.isascii()
    found = stdlib_json.loads(text, parse_constant=no_constant)
    assert found["schema"] == "skipscope-study/1"
    assert found["headline"] == judge(study).headline
    outcomes = found["evidence"]["outcomes"]
    assert len(outcomes) == len(study.outcomes)
    by_cell = {tuple(one["cell"].values()): one for one in outcomes}
    assert by_cell["he", 50, 0, 0.01]["train_loss"] == "Infinity"
    assert by_cell["he", 100, 0, 0.01]["train_loss"] == "NaN"
    assert by_cell["plain", 50, 0, 0.01]["steps_to_90"] == "Infinity"
    assert by_cell["plain", 50, 1, 0.01]["train_loss"] == 1.42
    assert set(outcomes[0]) == {one.name for one in fields(Outcome)}
    link = found["verdict"]["chains"][0]["links"][1]
    assert (link["name"], link["answer"]["state"]) == ("plain degrades", "shown")
    assert link["answer"]["checks"][0]["value"] == pytest.approx(89.5)
    assert [one["source"] for one in found["landmarks"]] == [one.source for one in LANDMARKS]


def test_csv_reads_back() -> None:
    study = changed(nasty(), lambda cell: True, findings=(("RES101", "error"), ("RES301", "info")))
    rows = list(stdlib_csv.DictReader(io.StringIO(csv(study, judge(study)))))
    assert len(rows) == len(study.outcomes) == 4
    for row, one in zip(rows, study.outcomes, strict=True):
        assert None not in row
        assert (row["arm"], int(row["depth"]), int(row["seed"])) == (
            one.cell.arm, one.cell.depth, one.cell.seed,
        )  # fmt: skip
        assert float(row["train_loss"]) == one.train_loss
        assert row["finite"] == str(one.finite)
        assert row["steps_to_90"] == ("" if one.steps_to_90 is None else str(one.steps_to_90))
        assert row["train_loss_batch"] == ""
        assert row["findings"] == "RES101:error RES301:info"
        assert row["pair"] == NASTY


# ------------------------------------------------------------------------- landmarks, files


def test_landmarks_stand_apart_and_have_sources() -> None:
    study = digits()
    bare = console(study, judge(study)).split("published, not measured here")[0]
    for landmark in LANDMARKS:
        assert landmark.source
        assert landmark.reading
    for number in ("27.94", "28.54", "27.88", "25.03", "3.57", "4.49", "6.61", "12.35", "12.22"):
        assert number in " ".join(one.text for one in LANDMARKS)
        assert number not in bare


def test_write_reports(tmp_path: Path) -> None:
    study = pair_of({10: [0.1, 0.0]}, {10: [0.1, 0.0]})
    written = write_reports(study, judge(study), tmp_path / "new" / "folder")
    assert [path.name for path in written] == [
        "verdict.txt", "verdict.md", "verdict.html", "verdict.json", "runs.csv",
    ]  # fmt: skip
    assert sorted((tmp_path / "new" / "folder").iterdir()) == sorted(written)
    assert written[0].read_text(encoding="utf-8") == console(study, judge(study))


def test_evidence_needs_no_torch_and_draws_nothing_unasked() -> None:
    code = (
        "import sys; from skipscope.evidence import judge, console; "
        "from skipscope.evidence.outcome import Evidence; e = Evidence('a', 'b', (), (), 0.1); "
        "console(e, judge(e)); print([m for m in ('torch', 'matplotlib', 'jinja2', "
        "'pytorch_lightning') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_verdict_on_the_page_is_what_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the study as it was trained, up to its tables."""
    assert main(["study", "--report", str(smoke.unpacked(tmp_path))]) == 0
    printed = capsys.readouterr().out
    (shown,) = smoke.SHOWN.findall(smoke.PAGE.read_text(encoding="utf-8"))
    assert printed.startswith(f"{shown}\ntraining\n")
    assert "--smoke --seeds 3`" in smoke.PAGE.read_text(encoding="utf-8")


def test_the_page_has_a_section_for_each_link() -> None:
    page = smoke.PAGE.read_text(encoding="utf-8")
    sections = re.findall(r"^### (\d) (.+)$", page, re.MULTILINE)
    links = judge(digits()).chains[0].links
    assert [(int(number), name.lower()) for number, name in sections] == [
        (link.number, link.name) for link in links
    ]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", " ="])
def test_no_text_of_a_table_is_computed(start: str) -> None:
    study = named(f"{start}cmd|' /C calc'!A0")
    rows = list(stdlib_csv.reader(io.StringIO(csv(study, judge(study)))))
    assert any("calc" in cell for cell in rows[1])
    for cell in (cell for row in rows for cell in row):
        assert cell.lstrip()[:1] not in tuple("=+-@") or float(cell) < 0
