"""What a study trains on: all of it in memory, and in the same order for every arm."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from skipscope.names import a_kind, counted

#: How many samples go through a net at once where nothing is trained.
CHUNK = 1024


@dataclass(frozen=True)
class Data:
    """Inputs and targets for training and validation, first axis the samples."""

    x_train: Tensor
    y_train: Tensor
    x_validation: Tensor
    y_validation: Tensor

    @classmethod
    def of(cls, data: Any) -> Data:
        """From four tensors, or from a training and a validation dataset.

        Raises:
            TypeError: it is neither.
            ValueError: inputs and targets are not equally many, there are none, or an input is not
                finite.
        """
        if isinstance(data, cls):
            return data
        if not isinstance(data, Sequence) or len(data) not in (2, 4):
            raise TypeError(
                "data: give (x_train, y_train, x_validation, y_validation), or two datasets of "
                f"(input, target), got {a_kind(data)}"
            )
        parts = list(data) if len(data) == 4 else [*_stacked(data[0]), *_stacked(data[1])]
        names = [field.name for field in fields(cls)]
        tensors = [_tensor(name, part) for name, part in zip(names, parts, strict=True)]
        for what, x, y in (("training", *tensors[:2]), ("validation", *tensors[2:])):
            if len(x) != len(y) or not len(x):
                inputs, targets = counted(len(x), "input"), counted(len(y), "target")
                raise ValueError(f"data: {what} has {inputs} and {targets}")
        for name, tensor in zip(names, tensors, strict=True):
            lost = int((~torch.isfinite(tensor)).sum())
            if lost:
                found = counted(lost, "number that is not finite", "numbers that are not finite")
                raise ValueError(f"data: {name} holds {found}")
        return cls(*tensors)

    @property
    def fingerprint(self) -> str:
        """Equal for equal values; 12 hexadecimal digits."""
        digest = hashlib.sha256()
        for field in fields(self):
            tensor = getattr(self, field.name).detach().cpu().contiguous()
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:12]

    def to(self, device: str) -> Data:
        """The same on a device."""
        return Data(*(getattr(self, field.name).to(device) for field in fields(self)))


def _tensor(name: str, part: Any) -> Tensor:
    """One of the four, first axis the samples, apart from any graph."""
    try:
        tensor = torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"data: {name} is no tensor, and none can be made of it: {error}"
        ) from error
    if not tensor.dim():
        raise TypeError(f"data: {name} is one number; its first axis must be the samples")
    return tensor.detach()


def _stacked(dataset: Any) -> tuple[Tensor, Tensor]:
    """All samples of a dataset, as two tensors."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(f"data: {a_kind(dataset)} is no dataset with a length and samples by index")
    batch = default_collate([dataset[index] for index in range(len(dataset))])
    if not isinstance(batch, (list, tuple)) or len(batch) != 2:
        raise TypeError("data: a dataset's samples are to be pairs (input, target)")
    if not all(isinstance(part, Tensor) for part in batch):
        raise TypeError("data: inputs and targets of a dataset are to be tensors or numbers")
    return batch[0], batch[1]


class Batches:
    """The batches of a training: shuffled epochs of full batches, a function of the seed alone.

    Shape: `order` (steps, batch size), indices of samples.

    >>> Batches(10, 5, 3, seed=0).order.shape
    torch.Size([3, 5])
    """

    def __init__(self, samples: int, size: int, steps: int, seed: int) -> None:
        size = min(size, samples)
        generator = torch.Generator().manual_seed(seed)
        epochs = -(-steps // (samples // size))
        whole = samples // size * size  # a last batch that is not full is left out
        shuffled = [torch.randperm(samples, generator=generator)[:whole] for _ in range(epochs)]
        self.order = torch.cat(shuffled).view(-1, size)[:steps]

    @property
    def fingerprint(self) -> str:
        """Of the order of the samples, 12 hexadecimal digits."""
        return hashlib.sha256(self.order.numpy().tobytes()).hexdigest()[:12]
