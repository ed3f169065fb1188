"""The benchmarks run, in their smallest size; what they measure is asserted nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from benchmarks.__main__ import PIECES, main
from benchmarks.settings import QUICK
from benchmarks.timing import Seconds, Spread, ratios

SMALLEST = replace(
    QUICK, repetitions=1, run_repetitions=1, run_steps=52, run_idle=1, mlp_repetitions=1
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SLOW = {"memory": pytest.mark.slow}  # three processes, each of which imports torch


@pytest.mark.parametrize("piece", [pytest.param(p, marks=SLOW.get(p, ())) for p in PIECES])
def test_a_piece_runs(piece: str) -> None:
    lines = list(PIECES[piece](SMALLEST))
    assert lines
    assert all(isinstance(line, str) for line in lines)


def test_transfers_per_capture() -> None:
    """A count, not a time: an accelerator is waited for once."""
    assert all("aim 1: met" in line for line in PIECES["transfers"](SMALLEST) if "aim" in line)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "load-history"])
    shown = capsys.readouterr().out
    assert "torch" in shown
    assert "load-history" in shown
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no piece nothing" in capsys.readouterr().err


def test_ratios_are_paired() -> None:
    above = [Seconds(2.0, 4.0), Seconds(6.0, 12.0), Seconds(3.0, 3.0)]
    below = [Seconds(1.0, 2.0), Seconds(2.0, 3.0), Seconds(1.0, 1.0)]
    assert ratios(above, below, "cpu") == Spread(3.0, 2.0, 3.0)
    assert ratios(above, below, "wall") == Spread(3.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        (Spread(1.05, 1.04, 1.06), "met"),
        (Spread(1.2, 1.15, 1.3), "missed"),
        (Spread(1.05, 0.9, 1.3), "not resolved"),
    ],
)
def test_verdict(spread: Spread, expected: str) -> None:
    assert spread.verdict(aim=1.1, margin=0.1).startswith(expected)
