"""Follows a model's calls from outside, and lets an interceptor act inside of them only.

The interceptor is put on at the beginning of each call: above whatever a monitor has put on for its
step, so that the monitor sees what was really added; and again when a checkpoint calls its module
once more in the backward, which runs outside of all function modes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from skipscope.additions import Additions, Summing
from skipscope.compiled import compiled_only
from skipscope.find.paths import canonical
from skipscope.intervention.rehearsal import Call, RandomState


class Following:
    """The module calls of a model, while its context is open.

    Args:
        model: the model.
        visitor: sees the additions of each call.
        begin: told of each call from outside before it runs, with the module's path; without the
            call where a checkpoint recomputes it.
    """

    _quiet = False  #: while any call is rehearsed

    def __init__(
        self, model: nn.Module, visitor: Summing, begin: Callable[[Call | None, str], None]
    ) -> None:
        self.names = {id(module): canonical(name) for name, module in model.named_modules()}
        #: the call that runs, as it began; None where a checkpoint recomputes one
        self.call: Call | None = None
        self._model = model
        self._visitor = visitor
        self._begin = begin
        self._running: list[str | None] = []  # None for a step, which is not followed
        self._depth = 0  # how many of them are followed
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
            self._attached = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        while self._running:  # a forward that Ctrl-C ended
            self._leave()
        self._attached.close()

    @property
    def current(self) -> str:
        """Path of the innermost module that runs."""
        return next((name for name in reversed(self._running) if name is not None), "")

    @classmethod
    @contextmanager
    def quiet(cls) -> Iterator[None]:
        """Nobody follows anything for a while."""
        Following._quiet = True
        try:
            yield
        finally:
            Following._quiet = False

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if Following._quiet:
            return
        if _is_step(module):
            self._running.append(None)
            return
        outermost = not self._depth
        if outermost:
            self._begin_call(module, args, kwargs)
        self._running.append(self.names[id(module)])
        self._depth += 1
        if outermost:
            torch._C._push_on_torch_function_stack(Additions(self._visitor))

    def _begin_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch._C._current_graph_task_id() == -1:  # else a checkpoint recomputes
            self.call = Call(module, args, kwargs, RandomState(self._model))
        self._begin(self.call, self.names[id(module)])

    def _after(self, module: nn.Module, *_: object) -> None:
        if not Following._quiet and self._running:
            self._leave()

    def _leave(self) -> None:
        if self._running.pop() is None:
            return
        self._depth -= 1
        if not self._depth:
            self.call = None
            torch._C._pop_torch_function_stack()


def _is_layer_of_torch(module: nn.Module) -> bool:
    """Whether its forward is PyTorch's own and calls no module: no shortcut is added in there.

    Most modules are such, and following them is most of what following costs. A forward of the
    user's may be put in place of the layer's own, and a pre-hook of theirs runs within the layer.
    """
    defined = getattr(type(module).forward, "__module__", "") or ""
    own = defined.startswith("torch.nn.modules.") and "forward" not in vars(module)
    return own and not module._modules and not module._forward_pre_hooks


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
