"""Which models run with other sums than their own, and with which.

An intervention enters itself here; a monitor writes down what it finds. Neither knows the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

from torch import nn

#: model -> what its sums are, in words
ACTING: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def sharing(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The models that run with other sums and have a module in common with this one; their sums."""
    own = {id(module) for module in model.modules()}
    for other, words in list(ACTING.items()):
        if not own.isdisjoint(map(id, other.modules())):
            yield other, words
