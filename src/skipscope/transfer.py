"""All numbers of a step to the host in one transfer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skipscope.reduce import wide


class Transfer:
    """Collects tensors, moves them together, hands them out.

    >>> transfer = Transfer()
    >>> numbers = transfer.add(torch.tensor([[1.0, 2.0]]))
    >>> transfer.move()
    >>> numbers()
    array([[1., 2.]])
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._arrays: list[npt.NDArray[np.float64]] = []

    def add(self, tensor: Tensor) -> Callable[[], npt.NDArray[np.float64]]:
        """Takes a tensor; what is returned gives its numbers after `move`."""
        self._tensors.append(tensor.detach())
        place = len(self._tensors) - 1
        return lambda: self._arrays[place]

    def move(self) -> None:
        """One copy to the host for each device that has anything (mostly one)."""
        arrays: dict[int, npt.NDArray[np.float64]] = {}
        for device in {tensor.device for tensor in self._tensors}:
            members = [i for i, tensor in enumerate(self._tensors) if tensor.device == device]
            flat = torch.cat([self._tensors[i].reshape(-1).to(wide(device)) for i in members])
            numbers = flat.cpu().numpy().astype(np.float64)
            start = 0
            for i in members:
                shape = tuple(self._tensors[i].shape)
                size = int(np.prod(shape))
                arrays[i] = numbers[start : start + size].reshape(shape)
                start += size
        self._arrays = [arrays[i] for i in range(len(self._tensors))]
        self._tensors.clear()
