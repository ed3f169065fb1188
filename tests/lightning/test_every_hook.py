"""Every hook of the callback fails once, whatever it touches: the Trainer does not notice."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from skipscope import ResidualMonitor

HOOKS = [name for name in vars(ResidualMonitor) if hasattr(pl.Callback, name) and name[0] != "_"]
#: These touch nothing that could fail.
TOUCHES_NOTHING = {"setup", "state_key"}


class Broken:
    """Fails at whatever is done with it."""

    def __init__(self, error: BaseException) -> None:
        vars(self)["error"] = error

    def fail(self, *_: Any) -> Any:
        raise vars(self)["error"]

    __getattr__ = __setattr__ = __iter__ = __call__ = __getitem__ = __bool__ = fail
    keys = property(fail)


def call(hook: str, error: BaseException, **options: Any) -> ResidualMonitor:
    """Calls a hook with nothing but broken things, of a callback whose monitor is broken."""
    callback = ResidualMonitor(**options)
    callback.monitor = Broken(error)  # type: ignore[assignment]
    method = getattr(ResidualMonitor, hook)
    if isinstance(method, property):
        assert getattr(callback, hook)
        return callback
    count = len(inspect.signature(method).parameters) - 1
    names = list(inspect.signature(method).parameters)[1:]
    half = count // 2  # Lightning gives some by position and some by name
    method(
        callback,
        *[Broken(error) for _ in range(half)],
        **{name: Broken(error) for name in names[half:]},
    )
    return callback


def test_the_list_is_not_empty() -> None:
    assert {"on_fit_start", "on_train_batch_start", "teardown", "state_dict"} <= set(HOOKS)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "error", [RuntimeError, MemoryError, AttributeError, torch.OutOfMemoryError]
)
def test_an_error_stays_inside(
    hook: str, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    planted = error("planted")
    with caplog.at_level(logging.WARNING, "skipscope"):
        callback = call(hook, planted)
        if hook in TOUCHES_NOTHING:
            assert not caplog.records
            return
        (told,) = caplog.records
        assert told.exc_info is not None
        assert told.exc_info[1] is planted
        assert "report this traceback" in told.getMessage()
        callback.on_train_batch_start(*[Broken(planted)] * 4)
    assert caplog.records == [told], "it is off"


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook not in TOUCHES_NOTHING])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_passes_and_an_error_on_request(hook: str, error: type[BaseException]) -> None:
    planted = error("planted")
    with pytest.raises(error) as caught:
        call(hook, planted, on_error="raise" if error is RuntimeError else "disable")
    assert caught.value is planted
