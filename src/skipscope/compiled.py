"""What of a model is compiled, and what of it exists in compiled form only."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import nn

#: How many calls of Python functions are followed from a module to what it uses.
_DEPTH = 3


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` was applied to a model or to a part of it.

    Trainers take the wrapper of a compiled model off and keep what compiles in `_compiler_ctx`.
    """
    marks = ("_orig_mod", "_compiled_call_impl", "_compiler_ctx")
    return any(
        getattr(module, mark, None) is not None for module in model.modules() for mark in marks
    )


def compiled_only(model: nn.Module) -> str:
    """The classes of modules that use flex_attention compiled, "" where there is none.

    Run eagerly it writes out all scores, which a long sequence has no memory for. A module is known
    by its code, the functions that this names, its attributes, and the setting of transformers.
    """
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    if flex is None:  # no model can have it
        return ""
    looking = _Looking(flex.flex_attention, is_compiled(model))
    names = {type(module).__name__ for module in model.modules() if looking.uses(module)}
    return ", ".join(sorted(names))


class _Looking:
    """Looks for one function in the code of modules; each class and function once."""

    def __init__(self, wanted: object, compiled: bool) -> None:
        self._wanted = wanted
        self._compiled = compiled
        self._known: dict[tuple[object, bool, int], bool] = {}

    def uses(self, module: nn.Module) -> bool:
        if _setting(module) == "flex_attention":
            return True  # transformers compiles it itself
        kind = type(module)
        return self._in_class(kind) or any(
            self._leads(value, self._compiled, _DEPTH) for value in vars(module).values()
        )

    def _in_class(self, kind: type) -> bool:
        key = (kind, self._compiled, _DEPTH)
        if key not in self._known:
            own = [k for k in kind.__mro__ if not k.__module__.startswith("torch.")]
            self._known[key] = any(
                self._leads(value, self._compiled, _DEPTH)
                for k in own
                for value in vars(k).values()
            )
        return self._known[key]

    def _leads(self, value: object, compiled: bool, depth: int) -> bool:
        """Whether calling a value calls the function, and something on the way is compiled."""
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        inner = getattr(value, "_torchdynamo_orig_callable", None) if callable(value) else None
        if inner is not None:
            return self._leads(inner, True, depth)
        if value is self._wanted:
            return compiled
        if not isinstance(value, FunctionType) or not depth:
            return False
        if (value.__module__ or "").startswith("torch."):
            return False
        key = (value, compiled, depth)
        if key not in self._known:
            named = _named(value)
            self._known[key] = any(self._leads(other, compiled, depth - 1) for other in named)
        return self._known[key]


def _named(function: FunctionType) -> Iterator[object]:
    """What a function's code names: globals, also of functions within, and what it encloses."""
    names: set[str] = set()
    todo = [function.__code__]
    while todo:
        code = todo.pop()
        names.update(code.co_names)
        todo += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    scope: Mapping[str, Any] = function.__globals__
    for name in names & scope.keys():
        yield scope[name]
    for name in names:  # `flex.flex_attention`, by the name of its module
        for other in names & scope.keys():
            if type(scope[other]) is type(sys):
                yield getattr(scope[other], name, None)
    yield from map(_content, function.__closure__ or ())


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _setting(module: nn.Module) -> object:
    return getattr(getattr(module, "config", None), "_attn_implementation", None)
