"""Reports: what a reader finds, on every width and stream."""

from __future__ import annotations

import itertools
import json as stdlib_json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skipscope.history import History
from skipscope.records import Diagnosis, Finding, Run, Skipped
from skipscope.reports import REPORTS, console, json, markdown
from skipscope.reports._text import bar, number, sparkline
from tests.offline.report_values import (
    DOMINANT,
    GATE,
    NOTE,
    SKIPPED,
    calm,
    run_of,
    sick,
)

GOLDEN = Path(__file__).parent / "golden_report.txt"


def lines_of(text: str) -> list[str]:
    assert text.endswith("\n")
    return text.splitlines()


def at_sites(count: int) -> tuple[Finding, ...]:
    return tuple(replace(DOMINANT, where=(f"blocks.{at}",)) for at in range(20, 20 + count))


# ------------------------------------------------------------------------------ first line


@pytest.mark.parametrize(
    ("diagnosis", "verdict"),
    [
        (calm(), "healthy"),
        (calm(SKIPPED), "no findings, 3 rules skipped"),
        (calm(SKIPPED[:1]), "healthy, 1 rule skipped"),
        (Diagnosis(step=50, epoch=3), "no findings, no rule looked"),
        (sick(), "1 warning, 1 note (1 new)"),
        (sick(*at_sites(1)), "2 warnings, 1 note (2 new)"),
        (
            sick(replace(DOMINANT, severity="error", status="continuing")),
            "1 error, 1 warning, 1 note (1 new)",
        ),
        (Diagnosis((replace(DOMINANT, status="continuing"),), step=50, epoch=3), "1 warning"),
        (Diagnosis((NOTE,), (), SKIPPED, 50, 3), "1 note, 3 rules skipped"),
        (Diagnosis((replace(NOTE, status="new"),), step=50, epoch=3), "1 note (1 new)"),
    ],
)
def test_the_first_line_has_one_form(diagnosis: Diagnosis, verdict: str) -> None:
    first = lines_of(console(run_of(4), diagnosis))[0]
    assert first == f"skipscope  epoch 3  step 50  4 sites  {verdict}"
    assert f"**{first}**" in markdown(run_of(4), diagnosis)


def test_nothing_measured_is_not_healthy() -> None:
    assert lines_of(console(History(), Diagnosis()))[0].endswith("0 sites  nothing measured")
    passed = calm()
    assert lines_of(console(History(), passed))[0].endswith("0 sites  nothing measured")


# ------------------------------------------------------------------------------ the page


@pytest.mark.parametrize("width", [70, 80, 120, 200])
@pytest.mark.parametrize("count", [1, 4, 12, 24, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_lines_fit_the_width(width: int, count: int, unicode: bool) -> None:
    history = run_of(count, {0: 34.0}, unseen=(GATE,))
    for diagnosis in (calm(SKIPPED), sick(*at_sites(3))):
        text = console(history, diagnosis, width=width, unicode=unicode)
        assert max(map(len, lines_of(text))) <= width
        assert "\x1b" not in text
        assert unicode or text.isascii()


def test_ascii_replaces_what_others_wrote() -> None:
    note = replace(
        DOMINANT, message="growth \u00d7 47 \u2026 \u65e5\u672c", where=("bl\u00f6cke.7",)
    )
    history = run_of(12, {2: 34.0}, prefix="gr\u00f6\u00dfe.")
    text = console(history, Diagnosis((note,), step=50), unicode=False)
    assert text.isascii()
    assert "growth x 47 ... ??" in text
    assert markdown(history, Diagnosis((note,), step=50), unicode=False).isascii()


def test_colour_says_nothing_alone() -> None:
    history, diagnosis = run_of(12, {2: 34.0}), sick()
    coloured = console(history, diagnosis, color=True)
    assert "\x1b[" in coloured
    without = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    stripped = "\n".join(line.rstrip() for line in without.splitlines())
    assert stripped + "\n" == console(history, diagnosis)


def test_square_brackets_are_no_markup() -> None:
    told = replace(DOMINANT, message="use [bold]x[/bold] and list[0] :smile:")
    assert "use [bold]x[/bold] and list[0] :smile:" in console(run_of(4), Diagnosis((told,)))


# ------------------------------------------------------------------------------ findings


def test_each_root_has_a_block_with_all_that_is_known() -> None:
    text = console(run_of(12, {2: 34.0}), sick(), width=120)
    assert re.search(
        r"^warning RES101 branch-dominance  blocks\.2 +since step 8, new$", text, re.MULTILINE
    )
    assert re.search(r"^note RES504 norm-on-main-path  blocks\.1 +at step 0$", text, re.MULTILINE)
    for line in (
        "r 34.0 at blocks.2: the branch drowns the shortcut; its siblings 0.35 to 0.40",
        "expected about 0.35 (law 1/sqrt(k+1))",
        "follows  RES201 activation-growth (model): total growth x47",
        "seen     weight norm of blocks.2.fc2 41, its siblings 1.2",
        "try      a longer warm-up or a lower lr for this block",
        '         skipscope.remedies.scale_branches(model, sites=["blocks.2"], alpha=0.01)',
        "more     skipscope explain RES101",
    ):
        assert f"  {line}\n" in text
    assert not re.search(r"^warning RES201", text, re.MULTILINE)


def test_a_finding_that_was_not_seen_of_late_says_when() -> None:
    ended = replace(DOMINANT, last_step=16, status="continuing", ongoing=False)
    text = console(run_of(12), Diagnosis((ended,), step=50))
    assert re.search(r"^warning RES101 .* steps 8 to 16$", text, re.MULTILINE)


def test_a_follower_without_its_root_is_not_lost() -> None:
    alone = replace(DOMINANT, follows=("RES999", "blocks.0"))
    assert "warning RES101 branch-dominance" in console(run_of(12), Diagnosis((alone,), step=50))


def test_the_gravest_comes_first() -> None:
    grave = replace(DOMINANT, code="RES902", severity="error")
    text = console(run_of(12), sick(grave))
    assert text.index("error RES902") < text.index("warning RES101") < text.index("note RES504")


def test_findings_mark_their_site_by_name_module_and_parameter() -> None:
    for where in ("blocks.2", "blocks.2.weight"):
        text = console(run_of(12), Diagnosis((replace(DOMINANT, where=(where,)),), step=50))
        assert re.search(r"^!   2 blocks\.2 ", text, re.MULTILINE)
        assert re.search(r"^    3 blocks\.3 ", text, re.MULTILINE)
    assert re.search(r"^i   1 blocks\.1 ", console(run_of(12), sick()), re.MULTILINE)


# ------------------------------------------------------------------------------ one screen


@pytest.mark.parametrize("found", [0, 1, 12, 60])
@pytest.mark.parametrize("streams", [1, 4])
def test_a_deep_network_fits_one_screen(found: int, streams: int) -> None:
    long = "it goes on and on, " * 12
    reasons = [Skipped(f"RES{at}", "x", f"reason {at}: {long}") for at in range(300, 309)]
    findings = [
        replace(one, message=long, cause=long, expectation=long) if at else one
        for at, one in enumerate(at_sites(found))
    ]
    history = run_of(120, {2: 34.0}, streams=streams, unseen=(GATE,) * 9)
    text = console(history, Diagnosis(tuple(findings), (), tuple(reasons), 50, 3))
    assert len(lines_of(text)) <= 50
    if found:
        assert "warning RES101 branch-dominance  blocks.20" in text
        assert "more     skipscope explain RES101" in text
    if found == 60:
        assert re.search(r"^and \d+ more: \d+ RES101; ", text, re.MULTILINE)


def test_a_deep_profile_shows_ends_findings_and_quantiles() -> None:
    text = console(run_of(120, {60: 34.0}), sick(*at_sites(1)))
    shown = [int(at) for at in re.findall(r"^[!i ] {0,3}(\d+) blocks\.\d+ ", text, re.MULTILINE)]
    assert shown == [0, 1, 2, 20, 117, 118, 119]
    for label in ("5 %", "median", "95 %"):
        assert re.search(rf"^ +{label} of all +0\.50 ", text, re.MULTILINE)
    assert "left out   113 sites" in text


def test_a_healthy_run_is_short() -> None:
    text = console(run_of(24), calm())
    assert len(lines_of(text)) <= 32
    assert "left out   18 sites" in text


# ------------------------------------------------------------------------------ numbers


def test_the_profile_states_every_number() -> None:
    text = console(run_of(4), sick(), unicode=False)
    row = next(line for line in lines_of(text) if " blocks.3 " in line)
    # r .5, cosine 0: growth and, with b = r, the gradient gain are sqrt(1.25) = 1.118
    assert row.split() == [
        "3", "blocks.3", "ident", "0.50", "####", "+0.00", "1.12", "1.12", "2.6e-3", "------",
    ]  # fmt: skip


def test_the_depth_numbers_stand_beside_their_expectation() -> None:
    text = console(run_of(4), sick(), width=120)
    # sqrt(1.25)^4 = 1.5625; H is sum 4 over sum 2, 1.25; H' leaves one growth out, 1.118
    for words, value, expected in (
        ("total growth", "x1.56", "law x2.2 at step 0: sqrt(1+L); later none"),
        ("  H, of the second half", "1.25", "law 1.41: sqrt(2), linear"),
        ("depth multiplier of gradients", "x1.56", "to compare: x0.41: 0.8 a site, plain"),
        ("  a site: d of d^4", "1.12", "0.75 to 1.3: healthy runs"),
        ("  of it links between sites", "x1.00", ""),
        ("median dW/W (4 of 4)", "2.6e-3", "2e-3 to 2e-2: Adam"),
    ):
        assert re.search(rf"^{re.escape(words)} +{re.escape(value)} ?{re.escape(expected)}$", text,
                         re.MULTILINE), words  # fmt: skip


def test_missing_nan_and_infinite_numbers_are_told_apart() -> None:
    have = np.full((8, 4), 31)
    have[:, 0] = 1 | 2 | 4  # no gradient at the input
    have[-1, 3] = 0
    why = np.zeros((8, 4), int)
    why[:, 0] = 3
    history = run_of(4, have=have, why=why)
    sums = history.sums
    row, bits = sums[-1].copy(), history.have[-1]
    row[1, 4] = math.nan  # ff
    row[2, 4] = math.inf
    history.append_capture(100, row, bits, why[-1])
    text = console(history, sick(), unicode=False)
    cells = {line[6:14]: line[1:] for line in lines_of(text) if re.match(r"^[!i ] +\d ", line)}
    assert cells["blocks.0"].split()[7] == "-"  # gradient gain
    assert cells["blocks.1"].split()[3] == "NaN"
    assert cells["blocks.2"].split()[3] == "inf"
    assert cells["blocks.3"].split()[3] == "-"
    assert "1 site: x has no gradient" in text
    report = stdlib_json.loads(json(history, sick()))
    assert [site["branch_ratio"] for site in report["sites"]] == [0.5, "NaN", "Infinity", None]
    assert report["sites"][0]["gradient_gain"] is None


def test_what_was_not_seen_and_not_judged_is_said() -> None:
    text = console(run_of(4, unseen=(GATE,)), sick(), width=120)
    assert "not seen   mixer gate x3 (net.py:40): a gate decides between the operands\n" in text
    assert "skipped    2: needs 8 sites in a stage, has 4 (RES105 301)\n" in text
    assert "passed     3: RES103 202 902\n" in text


def test_the_cost_is_stated() -> None:
    # 8 of 51 steps took 12 ms longer: 8*12 / (8*32 + 43*20) = 8.6 %
    expected = (
        "cost       8.6 % of step time (captured 32.0, others 20.0, host 0.80 ms), 8 captures\n"
    )
    assert expected in console(run_of(4), sick(), width=120)


@pytest.mark.parametrize(("captured", "told"), [(0.02, "20.0"), (0.019, "19.0")])
def test_a_cost_that_does_not_show_is_not_called_none(captured: float, told: str) -> None:
    """On a noisy machine captured steps can take less time than others."""
    history = run_of(4, captured_seconds=captured)
    expected = (
        f"cost       below what step times here resolve (captured {told}, others 20.0, host 0.80 "
        "ms), 8 captures"
    )
    assert expected in console(history, sick(), width=150)
    assert stdlib_json.loads(json(history, sick()))["cost"]["share"] is None


def test_a_stream_of_one_site_has_no_sites() -> None:
    history = run_of(2, streams=2)
    assert len(re.findall(r"^stream [01], 1 site$", console(history, sick()), re.MULTILINE)) == 2
    assert (
        len(re.findall(r"^### Stream [01], 1 site$", markdown(history, sick()), re.MULTILINE)) == 2
    )


@pytest.mark.parametrize(
    ("ranks", "measured", "said"),
    [
        (2, 2, "2 ranks (medians and channel means of rank 0)"),
        (4, 2, "2 of 4 ranks (medians and channel means of rank 0)"),
        (2, 1, "rank 0 of 2"),
        (1, 1, None),
    ],
)
def test_it_says_how_many_ranks_it_stands_for(ranks: int, measured: int, said: str | None) -> None:
    history = run_of(4)
    history.set_run(replace(history.run, ranks=ranks, ranks_measured=measured))
    watched = next(line for line in lines_of(markdown(history, sick())) if "TinyGPT" in line)
    assert watched.count("rank") == (2 if measured > 1 else 1 if said else 0)
    assert said is None or said in watched


def test_streams_stay_apart() -> None:
    text = console(run_of(12, streams=2), sick(), width=120)
    assert "12 sites on 2 streams (6 + 6)" in text
    assert len(re.findall(r"^ +stream [01]$", text, re.MULTILINE)) == 2
    assert len(re.findall(r"^stream [01], 6 sites$", text, re.MULTILINE)) == 2


def test_long_names_keep_both_ends() -> None:
    prefix = "model.backbone.encoder.a_rather_long_name_for_a_module.layers."
    text = console(run_of(12, prefix=prefix), sick())
    assert "sites      below model.backbone.encoder.a_rather_long_name_for_a_module\n" in text
    assert re.search(r"^   11 layers\.11 ", text, re.MULTILINE)


# ------------------------------------------------------------------------------ other formats


def test_markdown_has_tables_and_no_html() -> None:
    odd = replace(DOMINANT, message="a|b <script> *x* `y`", where=("blocks.2",))
    text = markdown(run_of(12, {2: 34.0}), Diagnosis((odd,), (), SKIPPED, 50, 3))
    assert "### warning RES101 branch-dominance: `blocks.2`" in text
    assert r"a\|b &lt;script&gt; \*x\* \`y\`" in text
    assert not re.search(r"<\w", text)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert re.match(r"\| 2 \| `blocks\.2` \| 34\.0 \| 34\.0 \| \+0\.00 \|", tables[4])
    for head, row in itertools.pairwise(tables):
        if row.startswith("| ---"):
            assert head.count(" | ") == row.count(" | ")


def test_json_is_strict_versioned_and_complete() -> None:
    history = run_of(120, {2: 34.0}, unseen=(GATE,))
    report = stdlib_json.loads(json(history, sick()), parse_constant=pytest.fail)
    assert report["schema"] == "skipscope-report/1"
    assert report["headline"].startswith("skipscope  epoch 3  step 50  120 sites  1 warning")
    assert len(report["sites"]) == 120
    assert report["sites"][2]["branch_ratio"] == 34.0
    assert report["roots"][0]["follows"][0]["code"] == "RES201"
    assert report["streams"][0]["expected"]["residual_budget"]["law"] == "ln(1+L), linear"
    assert report["unseen"][0]["reason"] == "a gate decides between the operands"
    assert report["skipped"] == [
        ["needs 8 sites in a stage, has 4", ["RES105", "RES301"]],
        ["updates are off", ["RES401"]],
    ]


def test_every_report_takes_a_history_and_a_diagnosis() -> None:
    assert list(REPORTS) == ["console", "markdown", "json"]
    for report in REPORTS.values():
        assert "RES101" in report(run_of(4), sick())
        assert report(History(), Diagnosis())


def test_an_intervention_is_said_where_it_left_no_site() -> None:
    """Without shortcuts there is no residual addition, which is what was asked for."""
    taken = History(Run(model="MLP", intervention="y = F"))
    for written in (console(taken, Diagnosis()), markdown(taken, Diagnosis())):
        assert "MLP, 0 sites, cpu, intervention y = F" in written.replace("\\", "")
    for written in (console(History(), Diagnosis()), markdown(History(), Diagnosis())):
        assert "atched" not in written


def test_what_of_a_rule_could_not_look_is_said_in_every_form() -> None:
    reason = "one site: needs 3 siblings within 6 places, has 2"
    parts = (
        Skipped("RES103", "dead-branch", "needs 500 steps after warm-up, has 19"),
        Skipped("RES202", "mean-shift", reason),
        Skipped("RES202", "mean-shift", "later: needs more than 20 captures"),
    )
    history = run_of(4)
    diagnosis = replace(calm(), in_part=parts)
    assert "in part    2: RES103 202 (not one site, later)\n" in console(history, diagnosis)
    assert f"- in part 1: {reason} (RES202)" in markdown(history, diagnosis)
    assert [reason, ["RES202"]] in stdlib_json.loads(json(history, diagnosis))["in_part"]
    for written in (console, markdown):
        assert "in part" not in written(history, calm())


def test_golden_console_report() -> None:
    text = console(run_of(4, {2: 34.0}, unseen=(GATE,)), sick())
    assert text == GOLDEN.read_text(encoding="utf-8")


# ------------------------------------------------------------------------------ text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (99.96, "100"), (9.996, "10.0"), (0.0996, "0.10"), (0.00996, "0.010"), (0.0094, "9.4e-3"),
        (-34.0, "-34.0"), (99999.4, "99999"), (123456.0, "1.2e5"), (math.nan, "NaN"),
        (-math.inf, "-inf"), (None, "-"), (0.0, "0"), (1e-300, "1.0e-300"),
    ],
)  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_bars_and_sparklines_take_every_value() -> None:
    odd = [None, math.nan, math.inf, -1.0, 0.0, 1e-300, 1e300]
    assert [bar(value, (0.01, 100.0), 4, unicode=False) for value in odd] == [
        "", "", "####", "", "", "", "####",
    ]  # fmt: skip
    assert sparkline(odd, unicode=False) == " ?#___#"
