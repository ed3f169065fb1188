"""The forward part of `records.SUMS`, in two goes.

`row_sums` reads the operands of an addition while they are there, and keeps a few numbers per row.
`forward_sums` makes the sums of many sites from those, all sites in each operation: what is small
costs as much for one site as for a hundred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from skipscope.reduce import DEVICE_CHUNK, local, square_sum, wide

#: So many rows of all sites together are worked on at once; more would take memory, not save time.
MAX_ROWS = 1 << 20
#: Elements of an addition worked on at once on a CPU: three wide tensors of so many stay near a
#: core while a dozen operations read them. Elsewhere it is `DEVICE_CHUNK`.
CPU_PIECE = 1 << 16


@dataclass(frozen=True)
class RowSums:
    """What is kept of one addition `y = s + f`, its factors applied.

    Shape:
        squares: (3, rows), of s, f and y; sums: (2,), of s and f; low, high: (3,); channel: one
        sum of y for each channel; along: (groups,), squared length of the sum of the rows of y,
        each made a unit vector, where a group is what rows are compared within: a sample's tokens,
        or all samples; x_sums: (3,), sum, sum of squares and largest magnitude of x;
        x_rows: (2, rows), x^2 and x*y, where x has the shape of y.
    """

    elements: int
    samples: int
    squares: Tensor
    sums: Tensor
    low: Tensor
    high: Tensor
    channel: Tensor
    along: Tensor
    x_elements: int = 0
    x_sums: Tensor | None = None
    x_rows: Tensor | None = None

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.squares.shape[1]

    @property
    def form(self) -> tuple[object, ...]:
        """What sites have in common that can be worked on together."""
        has_x = self.x_sums is None, self.x_rows is None
        sizes = self.elements, self.samples, self.rows, len(self.channel), len(self.along)
        return (self.squares.device, *sizes, self.x_elements, *has_x)


def row_sums(
    s: Tensor,
    f: Tensor,
    x: Tensor | None,
    *,
    factors: tuple[float, float] = (1.0, 1.0),
    rows: Literal["token", "sample"],
) -> RowSums:
    """Reads the operands of one addition `y = factors[0]*s + factors[1]*f`.

    Args:
        s: shortcut operand.
        f: branch operand, of a shape that broadcasts with it.
        x: block input where it differs from s, else None (its sums are then those of s).
        factors: coefficients of the operands in the sum.
        rows: whether r's median and the Block Influence are taken over tokens (the last axis is
            reduced) or samples (all axes but the first).
    """
    s, f = torch.broadcast_tensors(local(s), local(f))
    x = None if x is None else local(x)
    groups = s.shape[0] if rows == "token" else 1
    length = s.shape[-1] if rows == "token" else s[0].numel()
    channels = s.shape[1] if rows == "sample" and s.dim() > 2 else length
    operands = [s, f] if x is None or x.shape != s.shape else [s, f, x]
    pieces = []
    along: list[Tensor] = []
    channel, unit = s.new_zeros(channels, dtype=wide(s.device)), None
    for piece, whole in _pieces([t.reshape(groups, -1, length) for t in operands]):
        kept, units, totals = _piece(piece, factors)
        pieces.append(kept)
        channel += totals.reshape(channels, -1).sum(1)
        unit = units if unit is None else unit + units
        if whole:
            along.append(unit.square().sum(1))
            unit = None
    squares, sums, low, high, *x_rows = zip(*pieces, strict=True)
    return RowSums(
        s.numel(),
        s.shape[0],
        torch.cat(squares, dim=1),
        torch.stack(sums).sum(0),
        torch.stack(low).amin(0),
        torch.stack(high).amax(0),
        channel,
        torch.cat(along),
        0 if x is None else x.numel(),
        None if x is None else _plain_sums(x),
        torch.cat(x_rows[0], dim=1) if x_rows else None,
    )


def _pieces(grouped: list[Tensor]) -> Iterator[tuple[list[Tensor], bool]]:
    """The operands a piece at a time, (groups, rows, length): whole groups, or a part of one.

    With each, whether its groups are complete.
    """
    groups, rows, length = grouped[0].shape
    size = CPU_PIECE if grouped[0].device.type == "cpu" else DEVICE_CHUNK
    most = max(1, size // length)
    if rows <= most:
        step = most // rows
        for start in range(0, groups, step):
            yield [tensor[start : start + step] for tensor in grouped], True
        return
    step = -(-rows // -(-rows // most))  # parts of about one size
    for group in range(groups):
        for start in range(0, rows, step):
            piece = [tensor[group : group + 1, start : start + step] for tensor in grouped]
            yield piece, start + step >= rows


def _piece(
    operands: list[Tensor], factors: tuple[float, float]
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """The tensors of `RowSums` of some rows, and y summed over them as `_summed_rows` does."""
    groups, count, _ = operands[0].shape
    s, f, *x = (operand.to(wide(operand.device)).flatten(0, 1) for operand in operands)
    s = s if factors[0] == 1.0 else s * factors[0]
    f = f if factors[1] == 1.0 else f * factors[1]
    y = s + f
    three = (s, f, y)
    norms = torch.stack([torch.linalg.vector_norm(t, dim=1) for t in three])
    squares = norms.square()
    kept: tuple[Tensor, ...] = (
        squares,
        torch.stack([s.sum(), f.sum()]),
        torch.stack([t.amin() for t in three]),  # with amax faster than aminmax
        torch.stack([t.amax() for t in three]),
    )
    if x:
        xx = torch.linalg.vector_norm(x[0], dim=1).square()
        kept = *kept, torch.stack([xx, (x[0] * y).sum(1)])
    weights = torch.where(squares[2] == 0, 0.0, norms[2] / squares[2])  # NaN: a row is not finite
    return kept, *_summed_rows(y.unflatten(0, (groups, count)), weights.view(groups, count))


def _summed_rows(y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted sum of the rows of each group, and the plain sum of all rows.

    Shape:
        y: (groups, rows, length); weights: (groups, rows); result: (groups, length), (length,).
    """
    if y.device.type != "cpu":  # a product of matrices has ideas of its own on determinism there
        return (y * weights[:, :, None]).sum(1), y.sum((0, 1))
    both = torch.bmm(torch.stack([weights, torch.ones_like(weights)], dim=1), y)  # y is read once
    return both[:, 0], both[:, 1].sum(0)


def _plain_sums(x: Tensor) -> Tensor:
    """Sum, sum of squares and largest magnitude of one tensor."""
    flat = x.reshape(-1)
    dtype = wide(flat.device)
    return torch.stack([flat.sum(dtype=dtype), square_sum(flat), flat.abs().amax().to(dtype)])


def forward_sums(sites: Sequence[RowSums]) -> list[Tensor]:
    """The sums of each site.

    Shape:
        A vector of 24 numbers for each, on its device.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for at, site in enumerate(sites):
        alike.setdefault(site.form, []).append(at)
    found: dict[int, Tensor] = {}
    for members in alike.values():
        step = max(1, MAX_ROWS // sites[members[0]].rows)
        for start in range(0, len(members), step):
            some = members[start : start + step]
            found.update(zip(some, _sums_of([sites[at] for at in some]).unbind(), strict=True))
    return [found[at] for at in range(len(sites))]


def _sums_of(sites: list[RowSums]) -> Tensor:
    """The sums of sites of one form; (sites, 24)."""
    one = sites[0]
    squares, low, high, channel = (
        _stacked(sites, name) for name in ("squares", "low", "high", "channel")
    )
    sum_s, sum_f = _stacked(sites, "sums").unbind(1)
    ss, ff, yy = squares.unbind(1)
    total_ss, total_ff, total_yy = squares.sum(2).unbind(1)
    by_sample = squares[:, :2].reshape(len(sites), 2, one.samples, -1).sum(3)
    zero_s, zero_f = (by_sample == 0).sum(2).unbind(1)
    max_s, max_f, max_y = torch.maximum(-low, high).unbind(1)
    of_x: tuple[Tensor | float, ...] = (one.elements, sum_s, total_ss, max_s)
    if one.x_sums is not None:
        of_x = (one.x_elements, *_stacked(sites, "x_sums").unbind(1))
    columns: tuple[Tensor | float, ...] = (
        one.elements,
        sum_s,
        sum_f,
        total_ss,
        total_ff,
        (total_yy - total_ss - total_ff) / 2,
        total_yy,
        max_s,
        max_f,
        max_y,
        low[:, 1],
        *of_x,
        one.rows,
        one.samples,
        zero_s,
        zero_f,
        _influence(ss, ff, yy) if one.x_sums is None else _influence_of(sites, yy),
        *_cosines(yy, _stacked(sites, "along")),
        (channel / (one.elements // channel.shape[1])).square().mean(1),
        _median_ratio(ss, ff),
    )
    return torch.stack(
        [
            column.to(ss.dtype) if isinstance(column, Tensor) else torch.full_like(sum_s, column)
            for column in columns
        ],
        dim=1,
    )


def _stacked(sites: list[RowSums], name: str) -> Tensor:
    return torch.stack([getattr(site, name) for site in sites])


def _influence(ss: Tensor, ff: Tensor, yy: Tensor) -> Tensor:
    """Sum over rows of 1 - cos(s, y); 0 in rows without a direction.

    From the sine, `1 - cos = sin^2 / (1 + cos)`: at a branch of 1e-6 times the shortcut the cosine
    is 1 to all digits but four.
    """
    size = ss * yy
    cosine = (ss + yy - ff) / 2 / size.sqrt()
    sine_squared = (ss * ff - ((yy - ss - ff) / 2).square()) / size
    apart = torch.where(cosine > 0, sine_squared / (1 + cosine), 1 - cosine)
    return torch.where(size > 0, apart, 0.0).sum(1)


def _influence_of(sites: list[RowSums], yy: Tensor) -> Tensor | float:
    """Sum over rows of 1 - cos(x, y) where x is not s; NaN where its shape is not that of y."""
    if sites[0].x_rows is None:
        return float("nan")
    xx, xy = _stacked(sites, "x_rows").unbind(1)
    size = (xx * yy).sqrt()
    return torch.where(size > 0, 1 - xy / size, 0.0).sum(1)


def _cosines(yy: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over the pairs of rows of one group of their cosine, and how many pairs there are.

    `|sum of n unit rows|^2` is that sum and n, each row with itself. Rows of 0 have no direction.
    """
    count = (yy.unflatten(1, (along.shape[1], -1)) != 0).sum(2)  # NaN counts, and comes out
    pairs = count * (count - 1)
    return torch.where(pairs == 0, 0.0, along - count).sum(1), pairs.sum(1)


def _median_ratio(ss: Tensor, ff: Tensor) -> Tensor:
    """Median over rows of |f|/|s|; rows that stochastic depth dropped say nothing."""
    ratio = torch.where((ss > 0) & (ff > 0), (ff / ss).sqrt(), torch.nan)
    ordered = ratio.sort(dim=1).values  # NaN comes last
    last = (~ratio.isnan()).sum(1) - 1
    middle = torch.stack([last // 2, (last + 1) // 2], dim=1).clamp(min=0)
    return torch.where(ff.sum(1) == 0, 0.0, ordered.gather(1, middle).mean(1))
