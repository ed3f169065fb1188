"""The tasks: handwritten digits and the characters of Python's own help texts."""

from __future__ import annotations

from collections import Counter
from functools import cache

import torch
from torch import Tensor

CLASSES = 10
VOCABULARY = 48
TOKENS = 12


@cache
def digits() -> tuple[Tensor, Tensor]:
    """1797 images of 8x8 with mean 0 and standard deviation 1, and their labels."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)
    return (images - images.mean()) / images.std(), torch.tensor(found.target, dtype=torch.long)


@cache
def text() -> Tensor:
    """The help texts as numbers of their most frequent characters; the rest is one more."""
    from pydoc_data.topics import topics

    joined = "\n".join(topics[name] for name in sorted(topics))[:200_000]
    known = [char for char, _ in Counter(joined).most_common(VOCABULARY - 1)]
    number = {char: at for at, char in enumerate(known)}
    return torch.tensor([number.get(char, VOCABULARY - 1) for char in joined])


def batch(task: str, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One batch of a task: "image", "rows", "flat" (digits), "text" or "pairs" of texts."""
    if task in ("image", "rows", "flat"):
        images, labels = digits()
        chosen = torch.randint(len(images), (size,), generator=generator)
        shape = {"image": (size, 1, 8, 8), "rows": (size, 8, 8), "flat": (size, 64)}[task]
        return images[chosen].reshape(shape), labels[chosen]
    letters = text()
    starts = torch.randint(len(letters) - 2 * TOKENS - 1, (size, 1), generator=generator)
    cut = letters[starts + torch.arange(2 * TOKENS + 1)]
    if task == "text":
        return cut[:, :TOKENS], cut[:, 1 : TOKENS + 1]
    source, target = cut[:, :TOKENS], cut[:, TOKENS : 2 * TOKENS]
    return torch.stack([source, target], dim=1), cut[:, TOKENS + 1 :]
