"""The one interceptor: every addition of a forward passes through here.

`Additions` is a `TorchFunctionMode`. It sees an addition with its operands before the operation
runs (afterwards an in-place one has overwritten them), asks a visitor, and lets the operation run.
An intervention is a visitor that returns another sum, at each step of a training: nothing else is
done for it. A discovery or capture follows all that the operands are made of: for it, `Operations`
tells of all other functions too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

_ADD = {
    torch.add,
    Tensor.add,
    Tensor.add_,
    Tensor.__add__,
    Tensor.__radd__,
    Tensor.__iadd__,
}
_SUBTRACT = {
    torch.sub,
    torch.subtract,
    Tensor.sub,
    Tensor.sub_,
    Tensor.subtract,
    Tensor.subtract_,
    Tensor.__sub__,
    Tensor.__isub__,
}
_REVERSED = {torch.rsub, Tensor.__rsub__}
_SUMS = _ADD | _SUBTRACT | _REVERSED
_IN_PLACE = {Tensor.add_, Tensor.__iadd__, Tensor.sub_, Tensor.subtract_, Tensor.__isub__}
#: Additions that form the branch inside one kernel: there is no F to measure.
_FUSED = {
    torch.addmm,
    Tensor.addmm,
    Tensor.addmm_,
    torch.baddbmm,
    Tensor.baddbmm,
    Tensor.baddbmm_,
    torch.addbmm,
    Tensor.addbmm,
    Tensor.addbmm_,
    torch.addcmul,
    Tensor.addcmul,
    Tensor.addcmul_,
    torch.addcdiv,
    Tensor.addcdiv,
    Tensor.addcdiv_,
    torch.lerp,
    Tensor.lerp,
    Tensor.lerp_,
    torch.addr,
    Tensor.addr,
    Tensor.addr_,
    torch.index_add,
    Tensor.index_add,
    Tensor.index_add_,
    torch.scatter_add,
    Tensor.scatter_add,
    Tensor.scatter_add_,
    torch.scatter_reduce,
    Tensor.scatter_reduce,
    Tensor.scatter_reduce_,
}
_STACK = {torch.stack}
_REDUCE = {torch.sum, Tensor.sum, torch.mean, Tensor.mean}
_CONCATENATE = {torch.cat, torch.concat, torch.concatenate}
_FOREACH_ADD = {torch._foreach_add, torch._foreach_add_}
_NOTICED = _FUSED | _CONCATENATE | _FOREACH_ADD | _REDUCE
_MODES = {torch._C._set_grad_enabled}
_BACKWARD = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}


@dataclass(frozen=True, slots=True)
class Addition:
    """`left * left_factor + right * right_factor`, operands as they are before the operation."""

    left: Tensor
    right: Tensor
    left_factor: float = 1.0
    right_factor: float = 1.0
    into: Tensor | None = None  #: what the sum is written to: `left` in place, or what `out=` names


class Summing(Protocol):
    """What an interceptor of additions alone tells about a forward."""

    def addition(self, addition: Addition, run: Callable[[], Tensor]) -> Tensor:
        """An addition; `run()` performs it. What is returned becomes the result."""
        ...

    def small(self) -> None:
        """An addition of tensors with less than two dimensions is about to run: not data."""
        ...


class Visitor(Summing, Protocol):
    """What an interceptor of all operations tells about a forward."""

    def is_idle(self) -> bool:
        """Whether nothing is of interest now, as while an optimizer steps; asked under no_grad."""
        ...

    def attempt(self, work: Callable[..., Any], *args: Any) -> Any:
        """Does a piece of the interceptor's own work; None where an error was kept inside.

        What is told otherwise than of an addition is told within such a piece.
        """
        ...

    def fused(self, what: str, operands: list[Tensor]) -> None:
        """A form of addition, or a concatenation, that is noticed and not measured."""
        ...

    def call(self, name: str, args: Iterable[Any], result: Any) -> None:
        """Any other torch function, after it ran."""
        ...

    def before_backward(self, roots: list[Tensor]) -> None:
        """A backward is about to begin at these tensors, the loss mostly."""
        ...


class Additions(TorchFunctionMode):
    """Tells `visitor` of the additions of a forward.

    PyTorch takes a mode off its stack while its handler runs. So a visitor may compute freely;
    code that a torch function calls inside (`multi_head_attention_forward`) is not seen; and a
    backward, being a torch function too, runs outside of the mode with all that it recomputes.
    """

    def __init__(self, visitor: Summing) -> None:
        super().__init__()
        self._summing = visitor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        pair = _pair(args, kwargs) if func in _SUMS else None
        if pair is None:
            return func(*args, **kwargs)
        addition = _parse(func, pair, args, kwargs)
        if addition is not None:
            return self._summing.addition(addition, lambda: func(*args, **kwargs))
        if _is_small(pair):
            self._summing.small()
        return func(*args, **kwargs)


def visitors_below() -> list[Summing]:
    """Asked by a visitor of additions: the other ones that what it runs is told to, in order."""
    below = reversed(_get_current_function_mode_stack())
    return [mode._summing for mode in below if type(mode) is Additions]


class Operations(Additions):
    """Tells `visitor` of all torch functions of a forward, and of where a backward begins."""

    def __init__(self, visitor: Visitor) -> None:
        super().__init__(visitor)
        self._visitor = visitor
        self._stacked: tuple[Tensor, list[Tensor]] | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _MODES:  # at once: a Ctrl-C in our code here would leave the mode as it is
            return func(*args, **kwargs)
        if not torch.is_grad_enabled() and self._visitor.is_idle():
            return func(*args, **kwargs)
        attempt = self._visitor.attempt
        if func in _BACKWARD:
            attempt(self._before_backward, args, kwargs)
            return func(*args, **kwargs)
        pair = _pair(args, kwargs) if func in _SUMS else None
        if pair is not None:
            addition = attempt(_parse, func, pair, args, kwargs)
            if addition is not None:
                return self._visitor.addition(addition, lambda: func(*args, **kwargs))
            if attempt(_is_small, pair):
                attempt(self._visitor.small)
        if func in _NOTICED:
            attempt(self._before, func, args, kwargs)
        result = func(*args, **kwargs)
        attempt(self._after, func, args, kwargs, result)
        return result

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._visitor.before_backward(_roots(args, kwargs))

    def _after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        # Kept until the next call only: `torch.stack([x, f]).sum(0)` sums at once.
        stacked = func in _STACK and isinstance(result, Tensor)
        self._stacked = (result, _list_of(args, kwargs)) if stacked else None
        self._visitor.call(_name_of(func), (*args, *kwargs.values()), result)

    def _before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if func in _FUSED:
            operands = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
            self._visitor.fused("fused", operands)
        elif func in _CONCATENATE:
            self._visitor.fused("concatenation", _list_of(args, kwargs))
        elif func in _FOREACH_ADD and len(args) > 1 and isinstance(args[1], (list, tuple)):
            for pair in zip(args[0], args[1]):  # noqa: B905 - what does not fit PyTorch will tell
                if all(isinstance(operand, Tensor) for operand in pair):  # not a list of numbers
                    self._visitor.fused("fused", list(pair))
        elif func in _REDUCE and self._stacked is not None:
            stacked, operands = self._stacked
            if (args[0] if args else kwargs.get("input")) is stacked:
                self._visitor.fused("stack-sum", operands)


def _name_of(func: Any) -> str:
    """A function's name; for the getter of an attribute (`x.data`) that of the attribute."""
    name = getattr(func, "__name__", "")
    return getattr(getattr(func, "__self__", None), "__name__", name) if name == "__get__" else name


def _roots(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """What a backward starts from: `loss.backward()`, `autograd.grad(outputs, inputs)`."""
    first = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
    found = first if isinstance(first, (list, tuple)) else [first]
    return [tensor for tensor in found if isinstance(tensor, Tensor)]


def _list_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that a stack or concatenation is given."""
    return [t for t in (args[0] if args else kwargs.get("tensors", ())) if isinstance(t, Tensor)]


def _pair(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The operands of an addition, positional or by keyword; None where one is a number."""
    operands = (*args, *(kwargs[k] for k in ("input", "self", "other") if k in kwargs))
    if len(operands) < 2 or not isinstance(operands[0], Tensor):
        return None
    return operands[:2] if isinstance(operands[1], Tensor) else None


def _parse(
    func: Any, pair: tuple[Tensor, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Addition | None:
    """An addition of these operands; None where one is no data."""
    left, right = pair
    if not (_may_be_data(left) and _may_be_data(right)):
        return None
    alpha = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    if not isinstance(alpha, (int, float, Tensor)):
        return None
    factor = float(alpha)
    into = left if func in _IN_PLACE else kwargs.get("out")
    if func in _SUBTRACT:
        return Addition(left, right, 1.0, -factor, into)
    if func in _REVERSED:
        return Addition(left, right, -factor, 1.0, into)
    return Addition(left, right, 1.0, factor, into)


def _may_be_data(tensor: Tensor) -> bool:
    return tensor.dim() >= 2 and tensor.is_floating_point()


def _is_small(pair: tuple[Tensor, Tensor]) -> bool:
    return all(tensor.dim() < 2 and tensor.is_floating_point() for tensor in pair)


class Passing:
    """A visitor that lets everything pass; the base of those that look at some of it."""

    def is_idle(self) -> bool:
        """Never."""
        return False

    def attempt(self, work: Callable[..., Any], *args: Any) -> Any:
        """An error goes through: whoever looks once wants to know."""
        return work(*args)

    def addition(self, addition: Addition, run: Callable[[], Tensor]) -> Tensor:
        """Lets it run."""
        return run()

    def small(self) -> None:
        """Does nothing."""

    def fused(self, what: str, operands: list[Tensor]) -> None:
        """Does nothing."""

    def call(self, name: str, args: Iterable[Any], result: Any) -> None:
        """Does nothing."""

    def before_backward(self, roots: list[Tensor]) -> None:
        """Does nothing."""
