"""The documentation tells the truth: its code runs, its links lead somewhere, its commands exist.

Every ```python block of a page runs, in order, in one namespace (see `stand_ins`) and in an empty
directory. A block that is not to run is marked `<!-- not run -->` on the line before it.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from skipscope import find_residuals
from skipscope.cli import main
from skipscope.rules import RULES
from skipscope.rules.res101 import site_advice
from tests.docs.stand_ins import namespace

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EVERY_PAGE = [*PAGES, *sorted((ROOT / "docs" / "rules").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """Line number and text of a page's code blocks that are to run."""
    text = page.read_text(encoding="utf-8")
    for fence in FENCE.finditer(text):
        before = text[: fence.start()].rstrip().rsplit("\n", 1)[-1]
        if fence[2] == language and before != "<!-- not run -->":
            yield text[: fence.start()].count("\n") + 2, fence[3]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p, "python"))], ids=name)
def test_code_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = namespace()
    for line, text in blocks(page, "python"):
        # Blank lines put a traceback's line numbers right.
        exec(compile("\n" * (line - 1) + text, str(page), "exec"), names)


def test_the_examples_that_act_do_so_on_a_sick_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One branch is infinite: RES902, an error, at the first capture."""
    monkeypatch.chdir(tmp_path)
    texts = [text for _, text in blocks(ROOT / "docs" / "acting-on-findings.md", "python")]
    names = namespace()
    torch.nn.init.constant_(names["model"].blocks[2].contract.bias, float("inf"))
    exec(texts[0], names)
    assert names["trainer"].current_epoch == 1  # of two
    assert names["keep"].best_model_path
    exec(texts[1], names)
    assert names["trainer"].global_step == 1
    with pytest.raises(SystemExit, match=r"RES902 at blocks\.\d: not finite"):
        exec(texts[2], names)


def test_the_account_on_the_page_is_that_of_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "interventions.md"
    text = next(text for _, text in blocks(page, "python") if "zero_init_branches" in text)
    exec(text, {})
    assert f"```text\n{capsys.readouterr().out}```" in page.read_text(encoding="utf-8")


def test_the_site_map_on_the_page_is_that_of_the_model() -> None:
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    assert f"```text\n{find_residuals(namespace()['model'], torch.randn(2, 16))}\n```" in page


def test_a_history_is_read_in_a_fresh_interpreter() -> None:
    """As a reader does it: nothing but `History` imported, and torch never."""
    script = (
        "import sys; from skipscope import History; "
        "assert History().table('branch_ratio').columns == (); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [link for link in LINK.findall(text) if "://" not in link]
    broken = []
    for target in targets:
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in headings(file)):
            broken.append(target)
    assert broken == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    for line, text in blocks(page, "console"):
        for command in text.splitlines():
            where = f"{name(page)}:{line}: {command}"
            program, *words = shlex.split(command, comments=True)
            if program == "make":
                assert words[0] in targets, where
            elif program == "python":
                assert (ROOT / words[0]).is_file(), where
            elif program == "skipscope":
                check_command(words, where, capsys)
            else:
                assert program in {"pip", "tensorboard"}, where


def check_command(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([words[0], "--help"])
    assert ended.value.code == 0, where
    known = capsys.readouterr().out
    assert [word for word in words if word.startswith("--") and word not in known] == [], where
    if words[0] == "explain":
        assert main(words) == 0, where


def test_rules_that_are_named_exist() -> None:
    named = {
        (name(page), code)
        for page in PAGES
        for code in re.findall(r"\bRES\d{3}\b", page.read_text(encoding="utf-8"))
    }
    assert {(page, code) for page, code in named if code not in RULES} == set()


def test_table_of_measures_is_up_to_date() -> None:
    path = ROOT / "docs" / "generate_measures.py"
    spec = importlib.util.spec_from_file_location("generate_measures", path)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    written = (ROOT / "docs" / "measures.md").read_text(encoding="utf-8")
    assert written == generator.page(), "run python docs/generate_measures.py"


@pytest.mark.parametrize("page", ["README.md", "docs/reading-a-report.md"])
def test_the_report_that_a_page_shows_gives_the_advice_of_its_rule(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    (shown,) = re.findall(r"<!-- report: sick -->(.*?)<!-- /report -->", text, flags=re.DOTALL)
    (site,) = re.findall(r"^warning RES101 branch-dominance +(\S+)", shown, flags=re.MULTILINE)
    r, expected = (
        float(re.findall(rf"^  {text} (\S+)", shown, flags=re.MULTILINE)[0])
        for text in ("r", "expected r about")
    )
    (tried,) = re.findall(r"^  try (.*?)^  more ", shown, flags=re.MULTILINE | re.DOTALL)
    wanted = site_advice(site, expected / r)
    assert tried.split() == " ".join(wanted).split()


@pytest.mark.parametrize(
    "heading", ["Numbers along depth", "Updates and training", "The fine print"]
)
def test_what_the_page_quotes_of_the_report_stands_in_it(heading: str) -> None:
    """Every quotation with a number, as it is printed."""
    text = (ROOT / "docs" / "reading-a-report.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"<!-- report: sick -->(.*?)<!-- /report -->", text, flags=re.DOTALL)
    said = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    quoted = [one for one in re.findall(r"`([^`]*)`", said) if re.search(r"\s", one)]
    numbers = [one for one in quoted if re.search(r"\d", one) and not re.search(r"\w\(", one)]
    assert numbers
    for one in numbers:
        assert " ".join(one.split()) in " ".join(shown.split())
