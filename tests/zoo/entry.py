"""A row of the zoo's table: a model, an example input, and the residual additions it has.

`block_level` counts the additions that no other addition's branch contains, `identity`, `scaled`
and `projection` split them (over all sites where `block_level` is open), `nested` counts the rest.
None means: not settled by the definition, or not asked. `found_or_listed` is for fused forms: that
many sites, or that many entries among the unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo.sequence import Transformer

Example = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True)
class Entry:
    """A model and what is expected of it."""

    name: str
    factory: Callable[[], nn.Module]
    example: Example
    block_level: int | None
    identity: int | None = None
    scaled: int | None = None
    projection: int | None = None
    nested: int | None = None
    streams: int | None = None
    total: int | None = None
    found_or_listed: int | None = None
    notes: str = ""


def images(side: int = 64) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(2, 3, side, side),), {}


def tokens() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randint(0, 32, (2, 10)),), {}


def floats(*shape: int, grad: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(*shape, requires_grad=grad),), {}


vectors = partial(floats, 3, 8)
sequences = partial(floats, 2, 5, 8)


def pure(
    name: str, factory: Callable[[], nn.Module], example: Example, n: int, **more: Any
) -> Entry:
    """Identity shortcuts only."""
    return Entry(name, factory, example, n, n, 0, 0, **{"nested": 0, **more})


def split(
    name: str, factory: Callable[[], nn.Module], identity: int, projection: int, **more: Any
) -> Entry:
    """An image model with identity shortcuts within and projections between stages."""
    count = identity + projection
    return Entry(name, factory, images, count, identity, 0, projection, **{"nested": 0, **more})


def zero(
    name: str, factory: Callable[[], nn.Module], example: Example = images, **more: Any
) -> Entry:
    return Entry(name, factory, example, 0, nested=0, **more)


def blocks(name: str, block: Callable[[int], nn.Module], n: int, **more: Any) -> Entry:
    return pure(name, partial(Transformer, block), tokens, n, **{"streams": 1, **more})
