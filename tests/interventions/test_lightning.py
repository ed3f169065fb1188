"""`skipscope.Intervention` in real Trainers of both packages."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from pytorch_lightning.strategies.strategy import _ForwardRedirection
from torch import Tensor, nn

from skipscope import Intervention, ResidualMonitor, compare, intervene
from tests.interventions import nets
from tests.lightning import parts


def plain(self: parts.ConvBlock, x: Tensor) -> Tensor:
    """The forward of a `ConvBlock` without its shortcut, by hand."""
    out = torch.relu(self.norm1(self.conv1(x)))
    return torch.relu(self.drop(self.norm2(self.conv2(out))))


def fit(tmp_path: Path, package: str, *callbacks: Any, by_hand: bool = False) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module = parts.NETS[package]()
    if by_hand:
        for block in module.body.blocks:
            block.forward = MethodType(plain, block)
    trainer = parts.trainer(
        tmp_path, *callbacks, package=package, max_epochs=2, num_sanity_val_steps=1
    )
    trainer.fit(module, parts.loader(), parts.loader(shuffle=False))
    return module, trainer


def attached(module: nn.Module) -> bool:
    return any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


@pytest.mark.parametrize("package", parts.NAMESPACES)
def test_a_plain_fit_equals_one_written_by_hand(package: str, tmp_path: Path) -> None:
    callback, monitor = Intervention(shortcut=False), ResidualMonitor(report=[], on_error="raise")
    one, hand = fit(tmp_path, package, by_hand=True)
    other, trainer = fit(tmp_path, package, callback, monitor)
    assert parts.equal(parts.weights(one), parts.weights(other))
    for name in ("loss", "val_loss"):  # validation was that of the plain net, too
        assert torch.equal(hand.callback_metrics[name], trainer.callback_metrics[name])
    found = callback.intervention
    assert found is not None
    assert [site.name for site in found.sites] == [f"body.blocks.{k}" for k in range(3)]
    assert not monitor.history.sites.sites  # it saw a net without shortcuts
    assert not attached(other)


@pytest.mark.parametrize("package", parts.NAMESPACES)
def test_nothing_is_left_after_an_error(package: str, tmp_path: Path) -> None:
    base = parts.NAMESPACES[package].Callback

    class Stop(base):  # type: ignore[misc, valid-type]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            assert attached(pl_module)
            self.module = pl_module
            raise RuntimeError("stop")

    stop = Stop()
    with pytest.raises(RuntimeError, match="stop"):
        fit(tmp_path, package, Intervention(branch_scale=0.5), stop)
    assert not attached(stop.module)
    assert not torch._C._len_torch_function_stack()


@pytest.mark.parametrize("package", parts.NAMESPACES)
@pytest.mark.parametrize("checked", [0, 1], ids=["no validation", "validation before"])
def test_a_fit_in_which_no_batch_comes_ends_well(
    package: str, checked: int, tmp_path: Path
) -> None:
    base = parts.NAMESPACES[package].Callback

    class Skip(base):  # type: ignore[misc, valid-type]
        def on_train_batch_start(self, *_: Any) -> int:
            return -1

    changed, module = Intervention(shortcut=False), parts.NETS[package]()
    settings: Any = {"package": package, "max_epochs": 1, "num_sanity_val_steps": checked}
    trainer = parts.trainer(tmp_path, changed, Skip(), **settings)
    trainer.fit(module, parts.loader(), parts.loader(shuffle=False) if checked else None)
    assert not attached(module)


def test_an_unknown_name_stops_the_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'body.block.0' .*; did you mean .*body.blocks.0"):
        fit(tmp_path, "pytorch_lightning", Intervention("body.block.0"))


@pytest.mark.parametrize(
    "wrong",
    [{"shortcut": 2}, {"branch_scale": "x"}, {"projections": "drop"}, {"sites": []}],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_before_a_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
        Intervention(**wrong)


def test_a_step_that_is_led_through_forward_is_not_rehearsed() -> None:
    """As Trainers do under DDP."""

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.steps = nets.Net(nets.Block("add")), 0

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, x: Tensor) -> Tensor:
            self.steps += 1
            return self(x)

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    torch.manual_seed(0)
    step = Step()
    x, _ = nets.batch()
    with intervene(step, shortcut=False) as found:
        got = _ForwardRedirection()(Wrapper(step), step, "training_step", x)
    assert step.steps == 1
    assert torch.equal(got, step.net.by_hand(x, nets.plain))
    assert [site.name for site in found.sites] == ["net.blocks.0"]


def test_copies_and_pickles_take_the_settings_along() -> None:
    callback = Intervention("body.blocks.0", branch_scale=0.5)
    callback.intervention = object()  # type: ignore[assignment]
    for twin in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert twin.state_key == callback.state_key
        assert "0.5" in twin.state_key
        assert twin.intervention is None


@pytest.mark.parametrize("first", ["intervention", "monitor"])
def test_a_run_tells_that_its_sums_were_changed(first: str, tmp_path: Path) -> None:
    changed = Intervention(["body.blocks.0", "body.blocks.1"], branch_scale=0.5)
    monitor = ResidualMonitor(report=[], on_error="raise")
    order = (changed, monitor) if first == "intervention" else (monitor, changed)
    fit(tmp_path / "changed", "pytorch_lightning", *order)
    own = ResidualMonitor(report=[], on_error="raise")
    fit(tmp_path / "own", "pytorch_lightning", own)
    words = "y = s + 0.5 F at body.blocks.0, body.blocks.1"
    assert (own.history.run.intervention, monitor.history.run.intervention) == ("", words)
    told = compare(own.history, monitor.history).numbers.differences
    assert ("intervention", "-", words) in [(one.what, one.a, one.b) for one in told]
    assert "intervention y = s + 0.5 F" in " ".join(monitor.report().split())
