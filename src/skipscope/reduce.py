"""Tensors to numbers: the one place that knows dtypes, layouts and shards.

Everything is accumulated in float64 (float32 where the device has none, or its range was seen to be
enough), in chunks, so that half precision neither overflows nor rounds and no large copy is made.
Results stay on the device as 0-dimensional tensors; one transfer moves them all at the end of a
step. No random numbers, no autograd, no autocast (which leaves float64 alone).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from skipscope.records import SUMS

#: Elements converted to the wide dtype at once. On a CPU so few that they stay near its cores, in
#: so few pieces that threads seldom wait for each other (with every operation, which is slow where
#: other processes compute too); on an accelerator what keeps the number of kernels small.
CPU_CHUNK, DEVICE_CHUNK = 1 << 18, 1 << 22
#: Names of two tensors.
Pair = tuple[str, str]
#: The first fields of `records.SUMS` come from the forward, the others from the backward.
FORWARD = [field.name for field in SUMS].index("gy")


def local(tensor: Tensor) -> Tensor:
    """The plain detached tensor of this process."""
    tensor = tensor.detach()
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def shard_size(tensor: Tensor) -> int:
    """Elements that a process holds of a tensor, rounded up, so that all processes say the same."""
    shares: list[int] = [
        tensor.device_mesh.size(dim)  # type: ignore[attr-defined]
        for dim, place in enumerate(getattr(tensor, "placements", ()))
        if not place.is_replicate()
    ]
    return int(-(-tensor.numel() // math.prod(shares)))


def wide(device: torch.device) -> torch.dtype:
    """The dtype to accumulate in."""
    return torch.float32 if device.type == "mps" else torch.float64


def chunk_size(device: torch.device) -> int:
    """How many elements to convert at once."""
    return CPU_CHUNK if device.type == "cpu" else DEVICE_CHUNK


def dense(*tensors: Tensor) -> bool:
    """Whether these are plain blocks of numbers: not sparse, nested, or many under one name."""
    return all(
        tensor.layout == torch.strided and not tensor.is_nested and not is_wrapped(tensor)
        for tensor in tensors
    )


def reducible(*tensors: Tensor) -> bool:
    """Whether sums can be made of these: dense, real, not empty."""
    return dense(*tensors) and all(
        tensor.is_floating_point() and tensor.numel() > 0 for tensor in tensors
    )


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor stands for others inside a transform: a batch in `vmap`, say."""
    known = torch._C._functorch
    return known.is_functorch_wrapped_tensor(tensor) or known.is_legacy_batchedtensor(tensor)


def in_transform() -> bool:
    """Whether a transform of `torch.func` runs, where numbers of one tensor cannot be had."""
    return torch._C._functorch.peek_interpreter_stack() is not None


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
    given = {"x": gx, "i": gi, "b": gb}
    held = {name: _flat(tensor) for name, tensor in given.items() if tensor is not None}
    pairs = {"gx": ("x", "x"), "gi": ("i", "i"), "gb": ("b", "b"), "gib": ("i", "b")}
    known: dict[str, Tensor | float] = {"gxy": float("nan")}
    if gx.shape == gy.shape:
        held["y"] = _flat(gy)
        pairs |= {"gy": ("y", "y"), "gxy": ("x", "y")}
        if "i" in held and held["i"].data_ptr() == held["y"].data_ptr():
            del held["i"]  # an identity hands g_y on as it is
            pairs |= {"gi": ("y", "y"), "gib": ("y", "b")}
    else:
        known["gy"] = square_sum(gy)
    pairs = {name: pair for name, pair in pairs.items() if held.keys() >= set(pair)}
    known |= zip(pairs, _inner_products(held, list(pairs.values())), strict=True)
    return as_vector([known.get(field.name, 0.0) for field in SUMS[FORWARD:]], gx.device)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of two tensors of one shape, accumulated widely."""
    if a is b:
        return square_sum(a)
    return _products({"a": _flat(a), "b": _flat(b)}, [("a", "b")], wide(a.device))[0]


def square_sum(tensor: Tensor) -> Tensor:
    """Sum of squares, accumulated widely and without a wide copy of the whole."""
    if tensor.device.type != "cpu":  # on a CPU the norm would make that copy
        plain = _real(local(tensor))
        norm: Tensor = torch.linalg.vector_norm(plain, dtype=wide(plain.device))
        return norm.square()
    flat = _flat(tensor)
    if flat.element_size() <= 4:
        narrow = _square_sum(flat, torch.float32)
        if _in_range(narrow.item(), flat.numel()):
            return narrow
    return _square_sum(flat, torch.float64)


def _square_sum(flat: Tensor, dtype: torch.dtype) -> Tensor:
    """The same on a CPU: pieces accumulated in `dtype`, and widely over the pieces."""
    if flat.numel() <= CPU_CHUNK:
        wider = flat.to(dtype)
        return torch.dot(wider, wider).double()
    return torch.stack([_square_sum(piece, dtype) for piece in flat.split(CPU_CHUNK)]).sum()


def _inner_products(held: Mapping[str, Tensor], pairs: Sequence[Pair]) -> tuple[Tensor, ...]:
    """Inner products of named flat tensors of one size, the square of each among them.

    On a CPU, where a look at the result costs nothing, float32 is tried first: it takes half the
    time, and the squares tell whether its range was enough.
    """
    one = next(iter(held.values()))
    if one.device.type == "cpu" and all(tensor.element_size() <= 4 for tensor in held.values()):
        sums = _products(held, pairs, torch.float32)
        squares = [s for s, (a, b) in zip(sums.tolist(), pairs, strict=True) if a == b]
        if all(_in_range(square, one.numel()) for square in squares):
            return sums.unbind()
    return _products(held, pairs, wide(one.device)).unbind()


def _in_range(square: float, elements: int) -> bool:
    """Whether a sum of squares neither over- nor underflowed in float32."""
    return 1e-30 * elements < square < 1e30


def _products(held: Mapping[str, Tensor], pairs: Sequence[Pair], dtype: torch.dtype) -> Tensor:
    """Inner products of pieces accumulated in `dtype`, and widely over the pieces."""
    one = next(iter(held.values()))
    step = chunk_size(one.device)
    pieces = [tensor.split(step) if one.numel() > step else (tensor,) for tensor in held.values()]
    sums = []
    for members in zip(*pieces, strict=True):
        piece = dict(zip(held, (member.to(dtype) for member in members), strict=True))
        sums.append(torch.stack([torch.dot(piece[a], piece[b]) for a, b in pairs]))
    if len(sums) == 1:
        return sums[0].to(wide(one.device))
    return torch.stack(sums).sum(0, dtype=wide(one.device))


def _flat(tensor: Tensor) -> Tensor:
    return _real(local(tensor)).reshape(-1)


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
