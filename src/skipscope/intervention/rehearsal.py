"""A rehearsal: one forward that changes nothing and tells of each addition what it is to a site.

Whether a site is nested is known only when the addition around it has run, and under `no_grad`
nothing can be told at all. So an intervention has a forward rehearsed first; later ones are
recognised by place: module, line of source, and how often the line was passed.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_map

from skipscope.additions import Addition, Additions, Operations
from skipscope.find import Discovery, Found
from skipscope.find.places import source_line
from skipscope.records import Key
from skipscope.reduce import in_transform
from skipscope.restore import gpus_of, unchanged

Place = tuple[str | None, str]


@dataclass(frozen=True, slots=True)
class Part:
    """What one addition is to a site."""

    key: Key
    branch_left: bool  #: which operand is the branch
    further: bool  #: a further branch on the same x: the other operand is the sum so far


class RandomState:
    """The state of the global random generators, as `unchanged` knows them."""

    def __init__(self, model: nn.Module) -> None:
        self._cuda = [(gpu, torch.cuda.get_rng_state(gpu)) for gpu in gpus_of(model)]
        self._torch = torch.random.get_rng_state()
        self._python = random.getstate()
        # What models and data code still draw from is the global generator.
        self._numpy = np.random.get_state()  # noqa: NPY002

    def set(self) -> None:
        """Puts it back."""
        for device, state in self._cuda:
            torch.cuda.set_rng_state(state, device)
        torch.random.set_rng_state(self._torch)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002


@dataclass(frozen=True)
class Call:
    """A call of a module from outside of the model, as it began."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    random_state: RandomState


def rehearse(model: nn.Module, call: Call, current: Callable[[], str | None]) -> Rehearsal:
    """Runs a call once more to learn what its additions are; nothing else comes of it.

    It runs with gradients enabled, on copies of the inputs and buffers, unseen by other
    interceptors (a monitor's), and from the random state that the call began with.

    Args:
        model: the model.
        call: a call of it, or of a part of it.
        current: tells the module that runs as it will when the sums are changed; None outside.

    Raises:
        ValueError: a transform of `torch.func` runs.
    """
    if in_transform():
        raise ValueError(
            "intervene: the first forward in this mode ran inside a transform of torch.func, where "
            "sites cannot be told: run the model once without it, inside of the context"
        )
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_alone())
        stack.enter_context(_spare_buffers(model))
        stack.enter_context(unchanged(model))
        rehearsal = Rehearsal(model, current)
        stack.enter_context(rehearsal.places)
        args, kwargs = _copies((call.args, dict(call.kwargs)))
        call.random_state.set()
        with Operations(rehearsal):
            call.module(*args, **kwargs)
    return rehearsal


class Rehearsal(Discovery):
    """A discovery that keeps what each addition is to a site, by place and in order.

    `current` tells in which module an addition is; without it the discovery does.
    """

    def __init__(self, model: nn.Module, current: Callable[[], str | None] | None = None) -> None:
        super().__init__(model, self._on_part)
        self._current = current or (lambda: self.places.current)
        self.parts: dict[Place, list[Part | None]] = defaultdict(list)
        self.in_functions: set[Key] = set()  #: sites that a checkpoint of a function recomputes
        self.checkpointed: set[Key] = set()  #: sites that any checkpoint recomputes
        self.small_passed: Counter[Place] = Counter()  #: additions that are too small for data
        self.outside: set[Key] = set()  #: sites that no followed module runs at
        self._addition: Addition | None = None
        self._part: Part | None = None

    def addition(self, addition: Addition, run: Callable[[], Tensor]) -> Tensor:
        """Notes what it turned out to be."""
        place = self._current(), source_line()
        self._addition, self._part = addition, None
        try:
            return super().addition(addition, run)
        finally:
            self.parts[place].append(self._part)
            self._addition = None

    def small(self) -> None:
        """Counts it."""
        self.small_passed[self._current(), source_line()] += 1

    def _on_part(self, found: Found, s: Tensor, f: Tensor, run: Callable[[], Tensor]) -> Tensor:
        addition = self._addition
        if addition is None:  # a module that is taken whole has none; no rehearsal asks for one
            return run()
        if found.parallel:  # its own sum until now is the other operand
            left = self.graph.edge(addition.right) == found.sum_edge
        else:
            left = f is addition.left
        self._part = Part(found.key, left, found.parallel)
        if self._current() is None:
            self.outside.add(found.key)
        callers = [*_callers()]
        if "checkpoint" in callers:
            self.checkpointed.add(found.key)
        # A checkpoint around a module calls it again; one around a function of a module does not,
        # and then nothing tells where the addition is.
        if callers[:1] == ["checkpoint"]:
            self.in_functions.add(found.key)
        return run()


def in_checkpoint() -> bool:
    """Whether a checkpoint runs what asks."""
    return "checkpoint" in _callers()


def _callers() -> Iterator[str]:
    """The modules and checkpoints that run at present, from the innermost on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_call_impl" and code.co_filename == torch_module.__file__:
            yield "module"
        if code.co_filename == torch.utils.checkpoint.__file__:
            yield "checkpoint"
        frame = frame.f_back


def _copies(values: Any) -> Any:
    """Copies of all tensors, one for each, that a forward may write to or save."""
    copies: dict[int, Tensor] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in copies:
            copies[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
        return copies[id(value)]

    return tree_map(copy, values)


@contextmanager
def _alone() -> Iterator[None]:
    """Takes other interceptors off for a while; a default device is a function mode and stays."""
    modes: list[Any] = []
    while torch._C._len_torch_function_stack():
        modes.insert(0, torch._C._pop_torch_function_stack())
    kept = [mode for mode in modes if not isinstance(mode, Additions)]
    try:
        for mode in kept:
            torch._C._push_on_torch_function_stack(mode)
        yield
    finally:
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()
        for mode in modes:
            torch._C._push_on_torch_function_stack(mode)


@contextmanager
def _spare_buffers(model: nn.Module) -> Iterator[None]:
    """Lets copies stand in for all buffers: a graph that has saved one must find it unwritten."""
    owned = [
        (module._buffers, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    copies = {id(buffer): buffer.clone() for _, _, buffer in owned}
    for buffers, name, buffer in owned:
        buffers[name] = copies[id(buffer)]
    try:
        yield
    finally:
        for buffers, name, buffer in owned:
            buffers[name] = buffer
