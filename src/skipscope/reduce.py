"""Tensors to numbers: the one place that knows dtypes, layouts and shards.

Everything is accumulated in float64 (float32 where the device has none), in chunks, so that half
precision neither overflows nor rounds and no large copy is made. Results stay on the device as
0-dimensional tensors; one transfer moves them all at the end of a step. No random numbers, no
autograd, no autocast (which leaves float64 alone).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from skipscope.records import SUMS

#: Elements converted to the wide dtype at once. On a CPU so few that they stay near its cores, in
#: so few pieces that threads seldom wait for each other (with every operation, which is slow where
#: other processes compute too); on an accelerator what keeps the number of kernels small.
CPU_CHUNK, DEVICE_CHUNK = 1 << 18, 1 << 22
#: The first fields of `records.SUMS` come from the forward, the others from the backward.
FORWARD = [field.name for field in SUMS].index("gy")


#: What tells tensors apart: where they lie.
Key = tuple[int, tuple[int, ...]]


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
    """Whether sums can be made of these: dense, real, not empty."""
    return all(
        tensor.layout == torch.strided
        and tensor.is_floating_point()
        and tensor.numel() > 0
        and not tensor.is_nested
        for tensor in tensors
    )


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
    tensors: dict[Key, Tensor] = {}
    at = []
    for pair in pairs:
        plain = [_real(local(tensor)) for tensor in pair]
        keys = [(tensor.data_ptr(), tensor.stride()) for tensor in plain]
        tensors.update(zip(keys, plain, strict=True))
        at.append(keys)
    squares = [place for place, (a, b) in enumerate(at) if a == b]
    flat = {key: tensor.reshape(-1) for key, tensor in tensors.items()}
    for dtype in _dtypes(list(flat.values()), len(squares)):
        sums = _products(flat, at, dtype)
        if dtype == wide(sums.device) or _in_range(sums[squares].tolist(), plain[0].numel()):
            break
    return sums


def _products(
    flat: Mapping[Key, Tensor], pairs: Sequence[Sequence[Key]], dtype: torch.dtype
) -> Tensor:
    """Inner products of pieces, accumulated in `dtype`, and widely over the pieces."""
    one = next(iter(flat.values()))
    step = chunk_size(one.device)
    pieces = [tensor.split(step) if len(one) > step else (tensor,) for tensor in flat.values()]
    sums = []
    for members in zip(*pieces, strict=True):
        held = dict(zip(flat, (member.to(dtype) for member in members), strict=True))
        sums.append(torch.stack([torch.dot(held[a], held[b]) for a, b in pairs]))
    joined = sums[0] if len(sums) == 1 else torch.stack(sums)
    joined = joined.to(wide(one.device))
    return joined if len(sums) == 1 else joined.sum(0)


def square_sum(tensor: Tensor) -> Tensor:
    """Sum of squares, accumulated widely and without a wide copy of the whole."""
    plain = _real(local(tensor))
    if plain.device.type != "cpu":  # on a CPU the norm would make that copy
        norm: Tensor = torch.linalg.vector_norm(plain, dtype=wide(plain.device))
        return norm.square()
    flat = plain.reshape(-1)
    for dtype in _dtypes([flat], 1):
        total = _square_sum(flat, dtype)
        if dtype == torch.float64 or _in_range([total.item()], len(flat)):
            break
    return total


def _square_sum(flat: Tensor, dtype: torch.dtype) -> Tensor:
    pieces = flat.split(CPU_CHUNK) if len(flat) > CPU_CHUNK else (flat,)
    wider = (piece.to(dtype) for piece in pieces)
    sums = [torch.dot(piece, piece) for piece in wider]
    return sums[0].double() if len(sums) == 1 else torch.stack(sums).double().sum()


def _dtypes(tensors: Sequence[Tensor], squares: int) -> tuple[torch.dtype, ...]:
    """What to accumulate pieces in: float32 first on a CPU, where it takes half the time."""
    small = all(tensor.element_size() <= 4 for tensor in tensors)
    if tensors[0].device.type == "cpu" and squares and small:
        return torch.float32, torch.float64
    return (wide(tensors[0].device),)


def _in_range(squares: Sequence[float], elements: int) -> bool:
    """Whether float32 neither over- nor underflowed in sums of squares."""
    return all(1e-30 * elements < square < 1e30 for square in squares)


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
