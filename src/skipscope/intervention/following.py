"""Follows a model's calls from outside, and lets an interceptor act inside of them only.

The interceptor is put on at the beginning of each call: above whatever a monitor has put on for its
step, so that the monitor sees what was really added; and again when a checkpoint calls its module
once more in the backward, which runs outside of all function modes.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from skipscope.additions import Additions, Summing
from skipscope.compiled import compiled_only
from skipscope.find.paths import canonical
from skipscope.intervention.rehearsal import Call, RandomState

#: Where the files of PyTorch's own layers lie.
_LAYERS = str(Path(torch_module.__file__).parent) + os.sep


class _Rehearsing(threading.local):
    """Whose call this thread rehearses; the others follow nothing in it."""

    following: Following | None = None


class Following:
    """The module calls of a model, while its context is open.

    Args:
        model: the model.
        visitor: sees the additions of each call.
        begin: told of each call from outside before it runs, with the module's path; without the
            call where a checkpoint recomputes it.
    """

    _rehearsing = _Rehearsing()

    def __init__(
        self, model: nn.Module, visitor: Summing, begin: Callable[[Call | None, str], None]
    ) -> None:
        self.names = {id(module): canonical(name) for name, module in model.named_modules()}
        #: the call that runs, as it began; None where a checkpoint recomputes one
        self.call: Call | None = None
        self._model = model
        self._visitor = visitor
        self._begin = begin
        self._outermost: nn.Module | None = None
        self._thread: int | None = None  # that of the call
        self._running: list[str | None] = []  # None for a step, which is not followed
        self._depth = 0  # how many of them are followed
        self._ends: dict[int, int] = {}  # which of a module's forward hooks is the one here
        self._attached = ExitStack()

    def __enter__(self) -> Following:
        with ExitStack() as stack:  # what fails on the way takes off what is attached already
            for module in self._model.modules():
                if isinstance(module, torch.jit.ScriptModule) or _is_layer_of_torch(module):
                    continue
                before = module.register_forward_pre_hook(
                    _Hook(self._before), with_kwargs=True, prepend=True
                )
                stack.callback(before.remove)
                after = module.register_forward_hook(_Hook(self._after), always_call=True)
                stack.callback(after.remove)
                self._ends[id(module)] = after.id
            self._attached = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave_all()
        self._attached.close()

    @property
    def current(self) -> str | None:
        """Path of the innermost followed module that runs; None outside of all of them."""
        return next((name for name in reversed(self._running) if name is not None), None)

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """For a while only this one follows, from outside of all modules on, and tells nobody."""
        running, self._running = self._running, []
        Following._rehearsing.following = self
        try:
            yield
        finally:
            Following._rehearsing.following, self._running = None, running

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rehearsing = Following._rehearsing.following
        if rehearsing is not None and rehearsing is not self:
            return
        name = None if _is_step(module) else self._name(module)
        if rehearsing is not None or name is None:
            self._running.append(name)
            return
        if self._thread not in (None, threading.get_ident()):
            raise ValueError(
                "intervene: the model runs in two threads at once, which cannot be told apart"
            )
        if module is self._outermost and not _runs_already(module):
            self._leave_all()
        outermost = not self._depth
        if outermost:
            # The user's hooks of this call belong to it, those made since the context began too.
            hooks, end = module._forward_hooks, self._ends[id(module)]
            hooks[end] = hooks.pop(end)
            self._begin_call(module, args, kwargs)
        self._running.append(name)
        self._depth += 1
        if outermost:
            self._outermost = module
            torch._C._push_on_torch_function_stack(Additions(self._visitor))

    def _name(self, module: nn.Module) -> str:
        name = self.names.get(id(module))
        if name is None:
            raise ValueError(
                f"intervene: this {type(module).__name__} is a replica that DataParallel made, and "
                "cannot be followed: train with DistributedDataParallel"
            )
        return name

    def _begin_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._thread = threading.get_ident()
        try:
            if torch._C._current_graph_task_id() == -1:  # else a checkpoint recomputes
                self.call = Call(module, args, kwargs, RandomState(self._model))
            self._begin(self.call, self.names[id(module)])
        except BaseException:
            self._thread = None
            raise

    def _after(self, module: nn.Module, *_: object) -> None:
        rehearsing = Following._rehearsing.following
        if not self._running or (rehearsing is not None and rehearsing is not self):
            return
        if rehearsing is not None:
            self._running.pop()
        elif self._thread in (None, threading.get_ident()):
            self._leave()

    def _leave_all(self) -> None:
        """After a forward that Ctrl-C ended."""
        while self._running:
            self._leave()

    def _leave(self) -> None:
        if self._running.pop() is None:
            return
        self._depth -= 1
        if not self._depth:
            self.call = self._outermost = self._thread = None
            torch._C._pop_torch_function_stack()


def _runs_already(module: nn.Module) -> bool:
    """Whether a call of a module that begins is inside another one of it.

    Else Ctrl-C has ended the other one, of which hooks are not told.
    """
    calls = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__:
            calls += frame.f_locals["self"] is module
        frame = frame.f_back
    return calls > 1


def _is_layer_of_torch(module: nn.Module) -> bool:
    """Whether its forward is PyTorch's own and calls no module: no shortcut is added in there.

    Most modules are such, and following them is most of what following costs. A forward of the
    user's may be put in place of the layer's own, and hooks of theirs may add one.
    """
    code = getattr(type(module).forward, "__code__", None)  # what wraps a forward takes its name
    own = (
        code is not None and code.co_filename.startswith(_LAYERS) and "forward" not in vars(module)
    )
    return own and not (module._modules or module._forward_pre_hooks or module._forward_hooks)


def check_eager(model: nn.Module) -> None:
    """Whether a model may run eagerly.

    Raises:
        ValueError: it must not.
    """
    only = compiled_only(model)
    if only:
        raise ValueError(
            f"intervene: {only} uses flex_attention compiled; an intervention needs the model to "
            "run eagerly, where that takes far more memory"
        )


class _Hook(functools.partial[None]):
    """A module hook that copies and pickles of the module do not take along."""

    def __reduce__(self) -> Any:
        return _copied_hook, ()


def _copied_hook() -> Callable[..., None]:
    return _do_nothing


def _do_nothing(*_: object) -> None:
    """What a copied hook does."""


def _is_step(module: nn.Module) -> bool:
    """Whether this call is a Lightning step that is led through its module's `forward`.

    Trainers do so under DDP: the step would be rehearsed, with all that it logs and, optimised by
    hand, trains. The modules that it calls are followed all the same.
    """
    return "forward" in vars(module) and hasattr(module, "training_step")
