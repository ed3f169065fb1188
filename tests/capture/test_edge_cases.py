"""Nothing outlives its step: no tensor, no hook, no mode, whatever ends it."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from skipscope.capture import Capture
from skipscope.capture.slots import Slot
from tests.capture.attachments import attached, changes
from tests.capture.interrupting import interrupted, one_step, raise_, setting
from tests.capture.nets import D


# ---------------------------------------------------------------------- leaks
def test_no_tensor_of_a_step_outlives_it() -> None:
    model, optimizer, monitor = setting(on_error="raise")
    gc.collect()
    gc.disable()  # reference counts alone must free it: the device's memory waits for no collector
    try:
        counts = []
        for step in range(60):
            one_step(model, optimizer, monitor)
            assert [r for r in model.seen if r() is not None] == [], f"step {step}"
            model.seen.clear()
            if step in (9, 59):
                counts.append(live_tensors())
    finally:
        gc.enable()
    assert counts[0] == counts[1]
    assert len(monitor.history.capture_steps) == 60


def live_tensors() -> int:
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def test_no_tensor_of_a_failed_step_outlives_it() -> None:
    model, optimizer, monitor = setting(on_error="raise")
    one_step(model, optimizer, monitor)
    model.fail_at, model.error = 2, ValueError("mine")
    with pytest.raises(ValueError, match="mine"):
        one_step(model, optimizer, monitor)
    model.error = None
    gc.collect()  # the traceback
    assert [r for r in model.seen if r() is not None] == []


def test_a_graph_that_is_kept_has_no_hooks_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, monitor = setting(on_error="raise")
    with monitor.step():
        loss = model(torch.randn(4, 6, D)).square().mean()
        loss.backward(retain_graph=True)
    fired: list[str] = []
    for name in ("at_sum", "at_share", "at_input"):
        monkeypatch.setattr(Slot, name, lambda self, *args, name=name: fired.append(name))
    loss.backward()
    assert fired == []


# ---------------------------------------------------------------------- nothing stays attached
def test_what_is_attached_when() -> None:
    model, optimizer, monitor = setting(preset="train", every_n_steps=60, on_error="raise")
    before = attached(model, [optimizer])
    during: dict[int, set[str]] = {}
    for step in range(70):
        with monitor.step():
            during[step] = set(changes(before, attached(model, [optimizer])))
            optimizer.zero_grad()
            model(torch.randn(2, 3, D)).square().mean().backward()
            optimizer.step()
        assert changes(before, attached(model, [optimizer])) == {}, step
    hooks = {"optimizer 0 _optimizer_step_pre_hooks", "optimizer 0 _optimizer_step_post_hooks"}
    for step, names in during.items():
        if step in (0, 1, 2, 4, 8, 16, 32, 60):
            assert names == hooks | {
                "function modes",
                "stance",
                "_global_forward_pre_hooks",
                "_global_forward_hooks",
            }
        else:
            assert names == (hooks if step < 50 else set()), step


@pytest.mark.parametrize(
    "error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)], ids=repr
)
@pytest.mark.parametrize("where", ["forward", "backward", "step", "after"])
def test_exceptions_leave_nothing_attached(error: BaseException, where: str) -> None:
    model, optimizer, monitor = setting(on_error="raise")
    one_step(model, optimizer, monitor)
    before = attached(model, [optimizer])
    with pytest.raises(type(error)) as caught, monitor.step():
        interrupted(model, optimizer, error, where)
    assert caught.value is error
    assert changes(before, attached(model, [optimizer])) == {}
    model.fail_at = None
    one_step(model, optimizer, monitor)
    assert monitor.history.capture_steps.tolist() == [0, 1]


def test_a_step_that_never_ended_is_taken_off_by_the_next() -> None:
    model, optimizer, monitor = setting(on_error="raise")
    before = attached(model, [optimizer])
    monitor.begin_step()
    model(torch.randn(4, 6, D)).sum().backward()
    assert changes(before, attached(model, [optimizer]))
    one_step(model, optimizer, monitor)
    assert changes(before, attached(model, [optimizer])) == {}
    monitor.begin_step()
    monitor.epoch_end()
    assert changes(before, attached(model, [optimizer])) == {}
    monitor.begin_step()
    monitor.close()
    assert changes(before, attached(model, [optimizer])) == {}


def test_interrupt_while_a_step_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, monitor = setting()
    before = attached(model, [optimizer])
    monkeypatch.setattr(Capture, "collect", lambda *_: raise_(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        one_step(model, optimizer, monitor)
    after = attached(model, [optimizer])
    monitor.close()  # whatever this test finds, the next must not
    assert changes(before, after) == {}
