"""How alike the rows of a sum are: against every pair by itself, and on nets as they start."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from skipscope.capture import forward
from skipscope.capture.forward import forward_sums, row_sums
from skipscope.diagnose import diagnose
from skipscope.history import History
from skipscope.monitor import Monitor
from skipscope.records import SUMS
from tests.capture.nets import Stack
from tests.capture.reference import alignment

COSINE, PAIRS = (
    [field.name for field in SUMS].index(f"row_{part}") for part in ("cosine", "pairs")
)


def sums(
    s: Tensor, f: Tensor, rows: Literal["token", "sample"] = "token", **options: object
) -> tuple[float, float]:
    (vector,) = forward_sums([row_sums(s, f, None, rows=rows, **options)])
    return float(vector[COSINE]), float(vector[PAIRS])


def mean(s: Tensor, f: Tensor, rows: Literal["token", "sample"] = "token") -> float:
    cosine, pairs = sums(s, f, rows)
    return cosine / pairs


# Rows of 5: 3 samples of 4 hold 60 elements. So pieces are single rows, parts of a sample (two
# rows, and three that become two and two), one sample each, two and one, and everything.
@pytest.mark.parametrize("chunk", [1, 7, 11, 17, 20, 39, 40, 1 << 16])
@pytest.mark.parametrize(
    ("rows", "shape", "pairs"),
    [
        ("token", (3, 4, 5), 3 * 4 * 3),
        ("token", (3, 2, 2, 5), 3 * 4 * 3),
        ("sample", (3, 4, 5), 3 * 2),
        ("sample", (6, 2, 3, 3), 6 * 5),
        ("sample", (7, 5), 7 * 6),
    ],
)
def test_every_pair(
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    rows: Literal["token", "sample"],
    shape: tuple[int, ...],
    pairs: int,
) -> None:
    monkeypatch.setattr(forward, "CPU_PIECE", chunk)
    torch.manual_seed(chunk)
    s, f = torch.randn(shape) + 0.5, torch.randn(shape)
    expected = alignment(0.5 * s.double() - 2 * f.double(), rows)
    cosine, count = sums(s, f, rows, factors=(0.5, -2.0))
    assert count == pairs
    assert cosine / count == pytest.approx(expected, rel=1e-12)


def test_numbers_on_paper() -> None:
    """Unit rows of one sample at 0, 60 and 180 degrees; those of the other are one, twice as long.

    Cosines 1/2, -1, -1/2 and 1, 1, 1.
    """
    root = math.sqrt(3) / 2
    s = torch.tensor(
        [[[1, 0], [0.5, root], [-1, 0]], [[0, 2], [0, 2], [0, 4]]], dtype=torch.float64
    )
    assert sums(s, torch.zeros_like(s)) == (pytest.approx(4), 12)  # each pair counts twice
    # as samples: (1, 0, .5, root, -1, 0) and (0, 2, 0, 2, 0, 4), of lengths sqrt(3) and sqrt(24)
    expected = 2 * root / math.sqrt(72)
    assert mean(s, torch.zeros_like(s), "sample") == pytest.approx(expected)


@pytest.mark.parametrize("chunk", [1, 12, 1 << 16])
def test_rows_of_zero_are_left_out(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Three rows are left in the first sample, one in the second, none in the third."""
    monkeypatch.setattr(forward, "CPU_PIECE", chunk)
    torch.manual_seed(0)
    s = torch.randn(3, 5, 4)
    f = torch.randn(3, 5, 4)
    f[0, 1:3], f[1, 1:], f[2] = -s[0, 1:3], -s[1, 1:], -s[2]
    cosine, pairs = sums(s, f)
    assert pairs == 3 * 2
    assert cosine / pairs == pytest.approx(alignment(s.double() + f.double(), "token"), rel=1e-12)


@pytest.mark.parametrize(
    ("rows", "shape"), [("token", (6, 1, 5)), ("sample", (1, 6, 5)), ("token", (1, 1, 5))]
)
def test_one_row_has_no_pair(rows: Literal["token", "sample"], shape: tuple[int, ...]) -> None:
    assert sums(torch.randn(shape), torch.randn(shape), rows) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Rows nearly alike, whose squares overflow float16 and whose difference it would round off."""
    torch.manual_seed(0)
    s = (30_000 + 100 * torch.randn(2, 8, 64)).to(dtype)
    f = (30_000 + 100 * torch.randn(2, 8, 64)).to(dtype)
    expected = alignment(s.double() + f.double(), "token")
    assert expected is not None
    assert 1 - mean(s, f) == pytest.approx(1 - expected, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("chunk", [1, 1 << 16])
def test_what_is_not_finite_comes_out(
    monkeypatch: pytest.MonkeyPatch, bad: float, chunk: int
) -> None:
    monkeypatch.setattr(forward, "CPU_PIECE", chunk)
    s = torch.randn(2, 3, 4)
    s[1, 2, 0] = bad
    assert math.isnan(mean(s, torch.randn(2, 3, 4)))


def test_the_other_numbers_do_not_mix_with_it() -> None:
    """Sites of one size are worked on together only where their rows are grouped alike."""
    torch.manual_seed(0)
    s, f = torch.randn(3, 1, 8), torch.randn(3, 1, 8)
    both = forward_sums([row_sums(s, f, None, rows=rows) for rows in ("token", "sample")])
    assert [float(vector[PAIRS]) for vector in both] == [0, 6]


# ---------------------------------------------------------------------- nets as they start
class Branch(nn.Module):
    """`y = x + scale * mlp(x)`, or a branch beside which the shortcut hardly counts."""

    def __init__(self, width: int, shortcut: float, scale: float) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.inner, self.outer):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        self.shortcut, self.scale = shortcut, scale

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.outer(torch.relu(self.inner(x))))
        return self.shortcut * x + self.scale * hidden


def first_step(model: nn.Module, x: Tensor) -> History:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    monitor = Monitor(model, optimizer, updates="off", on_error="raise")
    with monitor.step():
        model(x).square().mean().backward()
        optimizer.step()
    return monitor.history


def start(depth: int, shortcut: float, scale: float, x: Tensor) -> tuple[list[float], bool]:
    """Alignment along depth, and whether RES205 speaks."""
    torch.manual_seed(0)
    history = first_step(Stack(partial(block, x.shape[-1], shortcut, scale), depth, x.shape[-1]), x)
    found = {finding.code for finding in diagnose(history).findings}
    return history.table("row_alignment").values[0].tolist(), "RES205" in found


def block(width: int, shortcut: float, scale: float, number: int) -> Branch:
    return Branch(width, shortcut, scale)


@pytest.mark.parametrize("shape", [(16, 32), (1, 16, 32), (4, 8, 32)], ids=str)
def test_nearly_plain_stack_collapses_and_a_scaled_one_does_not(shape: tuple[int, ...]) -> None:
    """ReLU nets without shortcuts draw all inputs together with depth; branches of 1/L do not."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    plain, found = start(40, 1e-3, 1.0, x)
    assert found
    assert plain[0] < 0.8
    assert plain[-1] > 0.995
    scaled, found = start(40, 1.0, 1 / 40, x)
    assert not found
    assert scaled[-1] < 0.9
