"""A visitor that cannot stop a training: an error of ours ends the visit, not the forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from skipscope.additions import Addition, Visitor
from skipscope.guard import Guard


class Guarded:
    """Passes everything on to a visitor until that fails; the model's own errors go through."""

    def __init__(self, visitor: Visitor, guard: Guard) -> None:
        self._visitor = visitor
        self._guard = guard

    def is_idle(self) -> bool:
        """As the visitor says; always after an error.

        Asked for each operation of an optimizer: it reads no tensor, so no function mode of others
        has to be kept from seeing it.
        """
        try:
            return self._guard.broken or self._visitor.is_idle()
        except Exception as error:
            self._guard.fail(error, "finding")
            return True

    def attempt(self, work: Callable[..., Any], *args: Any) -> Any:
        """An error ends the visit."""
        return self._guard.call("finding", work, *args)

    def addition(self, addition: Addition, run: Callable[[], Tensor]) -> Tensor:
        """Whatever the visitor does, the addition runs exactly once."""
        if self._guard.broken:
            return run()
        once = _Once(run)
        try:
            return self._visitor.addition(addition, once)
        except Exception as error:
            if once.error is error:
                raise
            ours = error
        result = once()  # where this raises, the model's own operation was at fault
        self._guard.fail(ours, "the capture of an addition")
        return result

    def small(self) -> None:
        """Passed on; `attempt` keeps an error."""
        self._visitor.small()

    def fused(self, what: str, operands: list[Tensor]) -> None:
        """Passed on; `attempt` keeps an error."""
        self._visitor.fused(what, operands)

    def call(self, name: str, args: Iterable[Any], result: Any) -> None:
        """Passed on; `attempt` keeps an error."""
        self._visitor.call(name, args, result)

    def before_backward(self, roots: list[Tensor]) -> None:
        """Passed on."""
        self._guard.call("the start of a backward", self._visitor.before_backward, roots)


class _Once:
    """An operation that runs at most once, however often it is asked for."""

    def __init__(self, run: Callable[[], Tensor]) -> None:
        self._run = run
        self._result: Tensor | None = None
        self.error: Exception | None = None

    def __call__(self) -> Tensor:
        if self._result is None:
            try:
                self._result = self._run()
            except Exception as error:
                self.error = error
                raise
        return self._result
