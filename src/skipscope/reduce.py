"""Tensors to numbers: the one place that knows dtypes, layouts and shards.

Everything is accumulated in float64 (float32 where the device has none), in chunks, so that half
precision neither overflows nor rounds and no large copy is made. Results stay on the device as
0-dimensional tensors; one transfer moves them all at the end of a step. No random numbers, no
autograd, no autocast (which leaves float64 alone).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from skipscope.records import SUMS

#: Elements converted to the wide dtype at once. On a CPU so few that they stay near its cores, in
#: so few pieces that threads seldom wait for each other (with every operation, which is slow where
#: other processes compute too); on an accelerator what keeps the number of kernels small.
CPU_CHUNK, DEVICE_CHUNK = 1 << 18, 1 << 22
#: The first fields of `records.SUMS` come from the forward, the others from the backward.
FORWARD = [field.name for field in SUMS].index("gy")


def local(tensor: Tensor) -> Tensor:
    """The plain detached tensor of this process."""
    tensor = tensor.detach()
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def wide(device: torch.device) -> torch.dtype:
    """The dtype to accumulate in."""
    return torch.float32 if device.type == "mps" else torch.float64


def chunk_size(device: torch.device) -> int:
    """How many elements to convert at once."""
    return CPU_CHUNK if device.type == "cpu" else DEVICE_CHUNK


def reducible(*tensors: Tensor) -> bool:
    """Whether `forward_sums` can take these: dense, real, not empty."""
    return all(
        tensor.layout == torch.strided
        and tensor.is_floating_point()
        and tensor.numel() > 0
        and not tensor.is_nested
        for tensor in tensors
    )


def forward_sums(
    s: Tensor,
    f: Tensor,
    x: Tensor | None,
    *,
    factors: tuple[float, float] = (1.0, 1.0),
    rows: Literal["token", "sample"],
) -> Tensor:
    """The forward part of `records.SUMS` for one addition `y = factors[0]*s + factors[1]*f`.

    Args:
        s: shortcut operand.
        f: branch operand, of a shape that broadcasts with it.
        x: block input where it differs from s, else None (its fields are then those of s).
        factors: coefficients of the operands in the sum.
        rows: whether r's median and the Block Influence are taken over tokens (the last axis is
            reduced) or samples (all axes but the first).

    Shape:
        A vector of 22 numbers on the operands' device.
    """
    s, f = torch.broadcast_tensors(local(s), local(f))
    x = None if x is None else local(x)
    length = s.shape[-1] if rows == "token" else s[0].numel()
    operands = [s, f] if x is None or x.shape != s.shape else [s, f, x]
    by_row = [_RowSums(parts, factors, s, rows) for parts in _chunks(operands, length)]
    squares = torch.cat([part.squares for part in by_row], dim=1)
    low = torch.stack([part.low for part in by_row]).amin(0)
    high = torch.stack([part.high for part in by_row]).amax(0)
    sum_s, sum_f = torch.stack([part.sums for part in by_row]).sum(0).unbind()
    channel = torch.stack([part.channel for part in by_row]).sum(0)
    ss, ff, yy = squares.unbind()
    total_ss, total_ff, total_yy = squares.sum(1).unbind()
    samples = s.shape[0]
    zero_s, zero_f = (squares[:2].reshape(2, samples, -1).sum(2) == 0).sum(1).unbind()
    max_s, max_f, max_y = torch.maximum(-low, high).unbind()
    numbers = (
        s.numel(),
        sum_s,
        sum_f,
        total_ss,
        total_ff,
        (total_yy - total_ss - total_ff) / 2,
        total_yy,
        max_s,
        max_f,
        max_y,
        low[1],
        *((s.numel(), sum_s, total_ss, max_s) if x is None else _plain_sums(x)),
        ss.numel(),
        samples,
        zero_s,
        zero_f,
        _influence(ss, ff, yy) if x is None else _influence_of(by_row, yy),
        (channel / (s.numel() // channel.numel())).square().mean(),
        _median_ratio(ss, ff),
    )
    return as_vector(numbers, s.device)


def gradient_sums(gx: Tensor, gy: Tensor, gi: Tensor | None, gb: Tensor | None) -> Tensor:
    """The backward part of `records.SUMS`: squares of g_y, g_x, both parts, and their products.

    Args:
        gx: gradient at the input.
        gy: gradient at the sum.
        gi: what came through the shortcut, None where nothing does.
        gb: what came through the branch, None likewise.

    Shape:
        A vector of 6 numbers: gy, gx, gi, gb, gib, gxy; gxy is NaN where shapes differ.
    """
    products: dict[str, tuple[Tensor | None, Tensor | None]] = {
        "gx": (gx, gx),
        "gi": (gi, gi),
        "gb": (gb, gb),
        "gib": (gi, gb),
    }
    known: dict[str, Tensor | float] = {"gxy": float("nan")}
    if gx.shape == gy.shape:
        products |= {"gy": (gy, gy), "gxy": (gx, gy)}
    else:
        known["gy"] = square_sum(gy)
    pairs = {name: (a, b) for name, (a, b) in products.items() if a is not None and b is not None}
    known |= zip(pairs, inner_products(list(pairs.values())).unbind(), strict=True)
    numbers = tuple(known.get(field.name, 0.0) for field in SUMS[FORWARD:])
    return as_vector(numbers, gx.device)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of two tensors of one shape, accumulated widely."""
    return inner_products([(a, b)])[0]


def inner_products(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Inner products of tensors that are all of one shape; each piece of memory is read once.

    Shape:
        (pairs,)
    """
    tensors: dict[tuple[int, tuple[int, ...]], Tensor] = {}
    at = []
    for pair in pairs:
        plain = [_real(local(tensor)) for tensor in pair]
        keys = [(tensor.data_ptr(), tensor.stride()) for tensor in plain]
        tensors.update(zip(keys, plain, strict=True))
        at.append(keys)
    dtype, step = wide(plain[0].device), chunk_size(plain[0].device)
    pieces = [tensor.reshape(-1).split(step) for tensor in tensors.values()]
    sums = []
    for members in zip(*pieces, strict=True):
        held = dict(zip(tensors, (member.to(dtype) for member in members), strict=True))
        sums.append(torch.stack([torch.dot(held[a], held[b]) for a, b in at]))
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


def square_sum(tensor: Tensor) -> Tensor:
    """Sum of squares, accumulated widely and without a wide copy of the whole."""
    plain = _real(local(tensor))
    dtype = wide(plain.device)
    if plain.device.type != "cpu":  # on a CPU the norm would make that copy
        norm: Tensor = torch.linalg.vector_norm(plain, dtype=dtype)
        return norm.square()
    pieces = (piece.to(dtype) for piece in plain.reshape(-1).split(CPU_CHUNK))
    sums = [torch.dot(piece, piece) for piece in pieces]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum()


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def difference_sums(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of squares of `after - before`, and how many elements differ. `before` is overwritten.

    Half precision would round the difference of two of its numbers: there it is formed wider, a
    piece at a time.
    """
    if before.element_size() > 2:
        difference = before.sub_(after)
        return square_sum(difference), torch.count_nonzero(difference)
    before, after = before.reshape(-1), after.reshape(-1)
    step = chunk_size(before.device)
    pieces = [
        before[start : start + step].float() - after[start : start + step].float()
        for start in range(0, max(before.numel(), 1), step)
    ]
    return torch.stack([square_sum(piece) for piece in pieces]).sum(), before.ne(after).sum()


def as_vector(numbers: Sequence[Tensor | float], device: torch.device) -> Tensor:
    """Plain numbers and 0-dimensional tensors as one vector, without a transfer to the host."""
    dtype = wide(device)
    return torch.stack(
        [
            number.to(dtype)
            if isinstance(number, Tensor)
            else torch.full((), number, dtype=dtype, device=device)
            for number in numbers
        ]
    )


class _RowSums:
    """Sums of one chunk of rows."""

    def __init__(
        self,
        operands: list[Tensor],
        factors: tuple[float, float],
        whole: Tensor,
        rows: str,
    ) -> None:
        s, f, *x = (operand.to(wide(operand.device)) for operand in operands)
        s = s if factors[0] == 1.0 else s * factors[0]
        f = f if factors[1] == 1.0 else f * factors[1]
        y = s + f
        three = (s, f, y)
        self.squares = torch.stack([torch.linalg.vector_norm(t, dim=1) for t in three]).square()
        self.sums = torch.stack([s.sum(), f.sum()])
        self.low = torch.stack([t.amin() for t in three])  # with amax faster than aminmax
        self.high = torch.stack([t.amax() for t in three])
        if rows == "token" or whole.dim() == 2:
            self.channel = y.sum(0)
        else:
            self.channel = y.reshape(y.shape[0], whole.shape[1], -1).sum((0, 2))
        if x:
            self.xx = torch.linalg.vector_norm(x[0], dim=1).square()
            self.xy = (x[0] * y).sum(1)


def _chunks(tensors: list[Tensor], length: int) -> Iterator[list[Tensor]]:
    """The operands as matrices of rows, some rows at a time."""
    matrices = [tensor.reshape(-1, length) for tensor in tensors]
    step = max(1, chunk_size(matrices[0].device) // length)
    for start in range(0, matrices[0].shape[0], step):
        yield [matrix[start : start + step] for matrix in matrices]


def _joined(by_row: list[_RowSums], name: str) -> Tensor:
    return torch.cat([getattr(part, name) for part in by_row])


def _plain_sums(x: Tensor) -> tuple[int, Tensor, Tensor, Tensor]:
    """Elements, sum, sum of squares and largest magnitude of one tensor."""
    flat = local(x).reshape(-1)
    dtype = wide(flat.device)
    return (
        flat.numel(),
        flat.sum(dtype=dtype),
        square_sum(flat),
        flat.abs().amax(),
    )


def _influence(ss: Tensor, ff: Tensor, yy: Tensor) -> Tensor:
    """Sum over rows of 1 - cos(s, y); 0 in rows without a direction.

    From the sine, `1 - cos = sin^2 / (1 + cos)`: at a branch of 1e-6 times the shortcut the cosine
    is 1 to all digits but four.
    """
    size = ss * yy
    cosine = (ss + yy - ff) / 2 / size.sqrt()
    sine_squared = (ss * ff - ((yy - ss - ff) / 2).square()) / size
    apart = torch.where(cosine > 0, sine_squared / (1 + cosine), 1 - cosine)
    return torch.where(size > 0, apart, 0.0).sum()


def _influence_of(by_row: list[_RowSums], yy: Tensor) -> Tensor | float:
    """Sum over rows of 1 - cos(x, y) where x is not s; NaN where its shape is not that of y."""
    if not hasattr(by_row[0], "xx"):
        return float("nan")
    size = (_joined(by_row, "xx") * yy).sqrt()
    return torch.where(size > 0, 1 - _joined(by_row, "xy") / size, 0.0).sum()


def _median_ratio(ss: Tensor, ff: Tensor) -> Tensor:
    """Median over rows of |f|/|s|; rows that stochastic depth dropped say nothing."""
    ratio = torch.where((ss > 0) & (ff > 0), (ff / ss).sqrt(), torch.nan)
    ordered = ratio.sort().values  # NaN comes last
    last = (~ratio.isnan()).sum() - 1
    middle = torch.stack([last // 2, (last + 1) // 2]).clamp(min=0)
    return torch.where(ff.sum() == 0, 0.0, ordered[middle].mean())
