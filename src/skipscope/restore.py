"""A look at a model that leaves no trace: what a forward and a backward change is put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from skipscope.eager import EagerStance


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Puts random state, buffers, modes and `.grad` back, and keeps a compiled model eager.

    Every `.grad` is None inside. Random state is that of the global generators of PyTorch (CPU and
    the model's GPUs), NumPy and Python; a generator of the user's own goes on.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
        >>> before = torch.random.get_rng_state()
        >>> with unchanged(net):
        ...     net.eval()(torch.rand(1, 2)).sum().backward()
        >>> net.training, net[0].weight.grad, before.equal(torch.random.get_rng_state())
        (True, None, True)
    """
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=list(gpus_of(model))))
        stack.callback(random.setstate, random.getstate())
        # What models and data code still draw from is the global generator.
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
        stack.enter_context(EagerStance())
        stack.enter_context(_same_buffers(model))
        stack.enter_context(_same_modes(model))
        stack.enter_context(_same_gradients(model))
        yield


def gpus_of(model: nn.Module) -> set[torch.device]:
    """Where its parameters lie, whose random generators its forward may draw from."""
    if not torch.cuda.is_initialized():  # then none can; no walk over all parameters
        return set()
    return {p.device for p in model.parameters() if p.device.type == "cuda"}


@contextmanager
def _same_modes(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            if module.training != training:
                module.training = training


@contextmanager
def _same_gradients(model: nn.Module) -> Iterator[None]:
    """Takes gradients away for a while, so that none is added to or set to 0: no copy is needed."""
    gradients = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter in model.parameters():
            parameter.grad = None
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    buffers = [
        (owner._buffers, name, buffer, buffer.clone())
        for owner in model.modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for owned, name, buffer, before in buffers:
                _put_back(buffer, before)
                owned[name] = buffer  # the forward may have put another tensor there


def _put_back(buffer: Tensor, before: Tensor) -> None:
    """Undoes changes, and only these: a write would spoil a graph that has saved the buffer."""
    if buffer.shape != before.shape:
        buffer.data = before
    elif not buffer.is_meta and not torch.equal(buffer, before):
        buffer.copy_(before)
