"""Where in the model the forward is: the module that runs, the line of source, the inventory."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from skipscope.find.node import Edge, tensors_in, version_of
from skipscope.find.paths import canonical, class_name
from skipscope.guard import Guard

_TORCH = Path(torch.__file__).parent
_SKIPSCOPE = Path(__file__).parents[1]
#: Files whose frames stand between an addition and the line that wrote it.
_PLUMBING = (
    *(str(_TORCH / name) for name in ("overrides.py", "_tensor.py", "_jit_internal.py")),
    str(_SKIPSCOPE) + os.sep,
)
#: A study's nets are models like those of users.
_MODELS = str(_SKIPSCOPE / "study") + os.sep


def source_line() -> str:
    """`file.py:line` of the code whose operation is being intercepted."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_plumbing(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else _line(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=4096)
def _is_plumbing(file: str) -> bool:
    return file.startswith(_PLUMBING) and not file.startswith(_MODELS)


@functools.lru_cache(maxsize=4096)
def _line(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}"


class Places:
    """Follows module calls while its context is open, by two global forward hooks.

    Global hooks fire for every module of the process; of those outside the model nothing is kept.
    They return None, so outputs stay what they are.
    """

    def __init__(
        self,
        model: nn.Module,
        on_input: Callable[[Tensor], Edge | None],
        on_output: Callable[[str, Any, Any], None],
        guard: Guard,
        on_module: Callable[[str], None] = lambda path: None,
    ) -> None:
        self._names: dict[int, str] = {}
        for name, module in model.named_modules():
            self._names.setdefault(id(module), canonical(name))
        self._on_input = on_input
        self._on_output = on_output
        self._guard = guard
        self._on_module = on_module
        #: the running modules, each with the tensors it received and their edges then; of one that
        #: is no part of the model neither
        self._stack: list[tuple[str | None, list[tuple[weakref.ref[Tensor], Edge | None]]]] = []
        self._handles = ExitStack()
        #: how many forwards began: calls of a module of the model from outside of all of them
        self.forwards = 0
        #: class name of each module that ran, by path
        self.called: dict[str, str] = {}
        #: edge -> (tensor, its version then): inputs of modules, for the x behind a shortcut
        self._tensors: dict[Edge, tuple[weakref.ref[Tensor], int]] = {}

    def __enter__(self) -> Places:
        self._handles.callback(torch_module.register_module_forward_pre_hook(self._before).remove)
        handle = torch_module.register_module_forward_hook(
            self._after, with_kwargs=True, always_call=True
        )
        self._handles.callback(handle.remove)
        # PyTorch's handle forgets this entry, with which every later call of a module looks for
        # hooks, and a compiled module warns of them.
        kwargs = torch_module._global_forward_hooks_with_kwargs
        self._handles.callback(kwargs.pop, handle.id, None)
        return self

    def __exit__(self, *_: object) -> None:
        self._handles.close()
        self._stack.clear()

    @property
    def current(self) -> str:
        """Path of the innermost module of the model that is running."""
        return next((name for name, _ in reversed(self._stack) if name is not None), "")

    @property
    def running(self) -> bool:
        """Whether a module of the model runs."""
        return any(name is not None for name, _ in self._stack)

    @property
    def elsewhere(self) -> bool:
        """Whether another model runs: a discriminator, a teacher, a wrapper."""
        return bool(self._stack) and not self.running

    def forget(self) -> None:
        """Drops what is known of tensors."""
        self._tensors.clear()

    def tensor_at(self, edge: Edge) -> Tensor | None:
        """The tensor of an edge, if it is alive and unchanged."""
        known = self._tensors.get(edge)
        tensor = known[0]() if known is not None else None
        return tensor if known and tensor is not None and version_of(tensor) == known[1] else None

    def was_rewritten(self, tensor: Tensor, edge: Edge | None) -> bool:
        """Whether the innermost running module that received this tensor got another version."""
        for _, received in reversed(self._stack):
            for known, before in received:
                if known() is tensor:
                    return before != edge
        return False

    # Hooks return None: what a forward hook returns would replace the output.
    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._guard.call("following module calls", self._enter, module, args)

    def _after(self, module: nn.Module, *call: Any) -> None:
        """Gets (args, kwargs, output); (args, None) where the forward raised."""
        self._guard.call("following module calls", self._leave, module, call)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        name = self._names.get(id(module))
        if name is None:
            self._stack.append((None, []))
            return
        self.called.setdefault(name, class_name(module))
        self.forwards += not self.running
        # The first hook of a sharded module comes before it has gathered its parameters.
        for path in {self.current, name}:
            self._on_module(path)
        self._stack.append((name, [self._note(tensor) for tensor in tensors_in(args)]))

    def _leave(self, module: nn.Module, call: tuple[Any, ...]) -> None:
        if self._stack:
            name = self._stack[-1][0]
            if name is not None and len(call) == 3:
                self._on_output(name, call[:2], call[2])
            self._stack.pop()

    def _note(self, tensor: Tensor) -> tuple[weakref.ref[Tensor], Edge | None]:
        edge = self._on_input(tensor)
        reference = weakref.ref(tensor)
        if edge is not None:
            self._tensors[edge] = (reference, version_of(tensor))
        return reference, edge
