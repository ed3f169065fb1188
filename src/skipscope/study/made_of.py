"""What a function is made of, so that another process can tell it from others of its name.

A name alone does not do: all lambdas have the same, and so has what one function returns at each
call, or a function before and after it was edited.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

LONG = 60
ADDRESS = " at 0x"  #: what says where a thing lies in memory
FIXED = (tuple, frozenset, types.CodeType)
ATOMS = (str, bytes, int, float, complex, type(None), type(Ellipsis))


def words(function: Callable[..., Any]) -> str:
    """A function's name, and a mark of what it is made of where there is more than the name.

    Equal words mean the same name, code, constants, defaults and values that it holds, under one
    version of Python; and the same of the functions of its own module that its code names, with
    the numbers, texts and tuples there. What else it calls or reads counts by name.

    >>> words(functools.partial(max, key=abs))
    'max(key=abs)'
    >>> words(lambda out, y: out - y) == words(lambda out, y: out - y)
    True
    >>> words(lambda out, y: out - y) == words(lambda out, y: y - out)
    False
    """
    if isinstance(function, functools.partial):
        given = [_shown(one) for one in function.args]
        given += [f"{key}={_shown(one)}" for key, one in function.keywords.items()]
        return f"{words(function.func)}({', '.join(given)})"
    if not (isinstance(function, (types.FunctionType, types.MethodType)) or _held(function)):
        return _name(function)
    return _marked(function)


def _shown(value: Any) -> str:
    """A value as it is written, where that is short and says all of it."""
    if callable(value):
        return words(value)
    said = repr(value)
    whole = len(said) < LONG and ADDRESS not in said and not isinstance(value, Tensor)
    return said if whole else _marked(value)


def _marked(value: Any) -> str:
    mark = hashlib.sha256("\n".join(_parts(value, {})).encode()).hexdigest()[:6]
    return f"{_name(value)} {mark}"


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    module = getattr(value, "__module__", None)
    name = name or type(value).__qualname__
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"


def _held(value: Any) -> Mapping[str, Any]:
    """The values that an object holds, by name; none of a class or module."""
    return {} if isinstance(value, (type, types.ModuleType)) else getattr(value, "__dict__", {})


def _parts(value: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[str]:
    """What something consists of, piece by piece: nothing that another process has otherwise.

    `seen` keeps what was passed, with its place: a thing may hold itself. What cannot is left out
    of it, because Python may or may not make one object of two equal ones.
    """
    if isinstance(value, ATOMS):
        yield repr(value)
        return
    if id(value) in seen:
        yield f"again {seen[id(value)][0]}"
        return
    if not isinstance(value, FIXED):
        seen[id(value)] = len(seen), value
    said, inner = _taken_apart(value)
    yield f"{type(value).__name__} {said} {len(inner)}"
    for part in inner:
        yield from _parts(part, seen)


def _taken_apart(value: Any) -> tuple[str, list[Any]]:
    """What can be said of a thing, and its parts."""
    match value:
        case types.CodeType():
            names = (*value.co_names, *value.co_varnames, *value.co_freevars)
            return f"{value.co_code.hex()} {' '.join(names)}", [*value.co_consts]
        case types.FunctionType():
            given = [value.__defaults__, value.__kwdefaults__, *_cells(value)]
            return _name(value), [value.__code__, *given, *_named(value)]
        case types.MethodType():
            return _name(value), [value.__func__, value.__self__]
        case functools.partial():
            return "", [value.func, value.args, value.keywords]
        case Tensor() | np.ndarray():
            return _numbers(torch.as_tensor(value)), []
        case Mapping():
            return "", [part for pair in value.items() for part in pair]
        case tuple() | list():
            return "", [*value]
        case set() | frozenset():
            return "", sorted(value, key=repr)
    held = _held(value)
    by_name = held or callable(value) or isinstance(value, types.ModuleType)
    parts = [part for pair in held.items() for part in pair]
    said = _name(value) if by_name else repr(value)
    return _name(value) if ADDRESS in said else said, parts


def _named(function: types.FunctionType) -> Iterator[Any]:
    """What its code names of its own module: constants, and functions that are written there."""
    there = function.__globals__
    for name in sorted(_names(function.__code__) & there.keys()):
        value = there[name]
        own = isinstance(value, types.FunctionType) and value.__module__ == function.__module__
        if not name.startswith("__") and (own or isinstance(value, (*ATOMS, tuple))):
            yield from (name, value)


def _names(code: types.CodeType) -> set[str]:
    """The names in a function's code, and in the functions within it."""
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return {*code.co_names, *(name for one in inner for name in _names(one))}


def _cells(function: types.FunctionType) -> Iterator[Any]:
    """What a function holds of those around it, where that has a value yet."""
    empty = types.CellType()
    return (cell.cell_contents for cell in function.__closure__ or () if cell != empty)


def _numbers(tensor: Tensor) -> str:
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(values.tobytes()).hexdigest()}"
