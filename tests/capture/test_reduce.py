"""Sums of two operands against the same sums in float64 by hand."""

from __future__ import annotations

import math
import warnings
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from skipscope import reduce
from skipscope.capture import forward
from skipscope.capture.forward import forward_sums, row_sums
from skipscope.records import SUMS
from skipscope.reduce import FORWARD, difference_sums, gradient_sums, reducible
from tests.capture.reference import influence, median_ratio

NAMES = [field.name for field in SUMS]


def sums(*args: Tensor | None, **options: object) -> dict[str, float]:
    (vector,) = forward_sums([row_sums(*args, **{"rows": "token", **options})])
    return dict(zip(NAMES, vector.tolist(), strict=False))


def test_names_stand_in_the_order_of_the_record() -> None:
    assert NAMES[FORWARD] == "gy"
    (vector,) = forward_sums([row_sums(torch.ones(2, 3), torch.ones(2, 3), None, rows="token")])
    assert len(vector) == FORWARD
    assert len(gradient_sums(*[torch.ones(2, 3)] * 4)) == len(SUMS) - FORWARD


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
@pytest.mark.parametrize("rows", ["token", "sample"])
@pytest.mark.parametrize(
    "shapes", [((3, 4, 5), (3, 4, 5)), ((3, 4, 5), (3, 1, 5)), ((4, 5), (3, 4, 5))]
)
def test_every_sum(
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    rows: Literal["token", "sample"],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    monkeypatch.setattr(reduce, "CPU_CHUNK", chunk)
    monkeypatch.setattr(forward, "CPU_PIECE", chunk)
    s, f = (torch.randn(shape) for shape in shapes)
    got = sums(s, f, None, factors=(0.5, -2.0), rows=rows)
    s, f = torch.broadcast_tensors(0.5 * s.double(), -2 * f.double())
    y = s + f
    by_channel = y.flatten(0, -2).mean(0) if rows == "token" else y.mean((0, 2))
    expected = {
        "n": s.numel(),
        "s": s.sum(),
        "f": f.sum(),
        "ss": (s * s).sum(),
        "ff": (f * f).sum(),
        "sf": (s * f).sum(),
        "yy": (y * y).sum(),
        "max_s": s.abs().max(),
        "max_f": f.abs().max(),
        "max_y": y.abs().max(),
        "min_f": f.min(),
        "n_x": s.numel(),
        "x": s.sum(),
        "xx": (s * s).sum(),
        "max_x": s.abs().max(),
        "rows": 12 if rows == "token" else 3,
        "samples": 3,
        "zero_s": 0,
        "zero_f": 0,
        "channel": by_channel.square().mean(),
    }
    for name, value in expected.items():
        assert got[name] == pytest.approx(float(value), rel=1e-12, abs=1e-12), name
    flat = [t.reshape(12 if rows == "token" else 3, -1) for t in (s, f)]
    assert got["r_median"] == pytest.approx(median_ratio(*flat))
    assert got["influence"] / got["rows"] == pytest.approx(influence(s, y, rows))


def test_x_of_another_shape_has_no_influence() -> None:
    s, f, x = torch.randn(2, 5, 4), torch.randn(2, 5, 4), torch.randn(2, 9, 3)
    got = sums(s, f, x)
    assert math.isnan(got["influence"])
    assert (got["n_x"], got["max_x"]) == (x.numel(), pytest.approx(float(x.abs().max())))


def test_x_that_points_the_other_way() -> None:
    x = torch.randn(4, 3)
    got = sums(-x, 0.1 * x, x)
    assert got["influence"] / got["rows"] == pytest.approx(2)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
def test_influence_of_a_tiny_branch(size: float) -> None:
    s, f = torch.randn(64, 32), size * torch.randn(64, 32)
    got = sums(s, f, None)
    s, f = s.double(), f.double()
    assert got["influence"] / 64 == pytest.approx(influence(s, s + f, "token"), rel=1e-4)


@pytest.mark.parametrize(
    ("ratios", "median"),
    [([1, 2, 9], 2), ([1, 2, 4, 9], 3), ([0, 3, 0, 5], 4), ([7], 7), ([0, 0], 0)],
)
def test_median(ratios: list[float], median: float) -> None:
    f = torch.tensor(ratios, dtype=torch.float32)[:, None] * torch.ones(len(ratios), 3)
    assert sums(torch.ones(len(ratios), 3), f, None)["r_median"] == pytest.approx(median)


def test_rows_with_a_zero_shortcut_are_left_out_of_the_median() -> None:
    s = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    got = sums(s, torch.ones(3, 2), None)
    assert got["r_median"] == pytest.approx((math.sqrt(2) + math.sqrt(0.5)) / 2)
    assert got["zero_s"] == 1
    assert math.isnan(sums(torch.zeros(3, 2), torch.ones(3, 2), None)["r_median"])


def test_half_precision_neither_overflows_nor_rounds() -> None:
    big = torch.full((8, 4), 60_000.0).half()
    got = sums(big, big, None)
    assert got["max_y"] == 120_000
    assert got["yy"] == pytest.approx(32 * 120_000.0**2)
    small = torch.full((8, 4), 2.0**-10).bfloat16()
    one = torch.ones(8, 4).bfloat16()
    assert sums(one, small, None)["sf"] == pytest.approx(32 * 2.0**-10, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_comes_out(bad: float) -> None:
    s, f = torch.randn(5, 3), torch.randn(5, 3)
    f[2, 1] = bad
    got = sums(s, f, None)
    assert not math.isfinite(got["ff"])
    assert not math.isfinite(got["max_f"])
    assert math.isfinite(got["ss"])
    assert math.isfinite(got["r_median"]) is False or got["r_median"] > 0


def test_a_mean_far_above_the_deviation() -> None:
    s = 1000 + torch.randn(64, 64)
    got = sums(s, torch.zeros_like(s), None)
    variance = got["ss"] / got["n"] - (got["s"] / got["n"]) ** 2
    assert math.sqrt(variance) == pytest.approx(float(s.double().std(correction=0)), rel=1e-6)


def test_operands_in_any_memory_order() -> None:
    s = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    f = torch.randn(2, 4, 5, 3).permute(0, 3, 1, 2)
    got = sums(s, f, None, rows="sample")
    again = sums(s.contiguous(), f.contiguous(), None, rows="sample")
    assert got == pytest.approx(again, rel=1e-12)


def test_operands_are_not_touched() -> None:
    s, f, x = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)
    copies = [t.clone() for t in (s, f, x)]
    state = torch.get_rng_state()
    sums(s, f, x, factors=(2.0, 3.0))
    assert all(torch.equal(a, b) for a, b in zip(copies, (s, f, x), strict=True))
    assert torch.equal(state, torch.get_rng_state())


def test_gradient_sums() -> None:
    gx, gy, gi, gb = (torch.randn(3, 4).bfloat16() for _ in range(4))
    got = gradient_sums(gx, gy, gi, gb).tolist()
    pairs = [(gy, gy), (gx, gx), (gi, gi), (gb, gb), (gi, gb), (gx, gy)]
    assert got == pytest.approx([float((a.double() * b.double()).sum()) for a, b in pairs])
    other = gradient_sums(gx, torch.randn(2, 4), None, gb).tolist()
    assert other[2] == other[4] == 0
    assert math.isnan(other[5])


def test_inner_products_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(100), torch.randn(100)
    whole = float(reduce.dot(a, b))
    monkeypatch.setattr(reduce, "CPU_CHUNK", 7)
    assert float(reduce.dot(a, b)) == pytest.approx(whole, rel=1e-14)
    assert whole == pytest.approx(float(a.double() @ b.double()), rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_differences(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(reduce, "CPU_CHUNK", 5)
    before, after = torch.randn(6, 7).to(dtype), torch.randn(6, 7).to(dtype)
    after[0] = before[0]
    wanted = (after.double() - before.double()).square().sum()
    dd, changed = difference_sums(before.clone(), after)
    assert float(dd) == pytest.approx(float(wanted), rel=1e-6)
    assert int(changed) == 35


def test_differences_of_nothing() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        dd, changed = difference_sums(torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype))
        assert (float(dd), int(changed)) == (0, 0)


def test_squares_of_complex_numbers() -> None:
    z = torch.randn(5, dtype=torch.complex64)
    assert float(reduce.square_sum(z)) == pytest.approx(float(z.abs().double().square().sum()))


def test_what_cannot_be_reduced() -> None:
    x = torch.ones(2, 2)
    assert reducible(x, x.half())
    assert not reducible(x, x.to_sparse())
    assert not reducible(torch.empty(0, 3))
    assert not reducible(x.int())
    with warnings.catch_warnings():  # torch tells once in a process that they are a prototype
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([x, x])
    assert not reducible(nested)


def test_vector_of_mixed_numbers() -> None:
    vector = reduce.as_vector((1, torch.tensor(2.0), torch.tensor(3)), torch.device("cpu"))
    assert np.array_equal(vector.numpy(), [1, 2, 3])
