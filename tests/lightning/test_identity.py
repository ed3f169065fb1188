"""The callback never changes training: losses and weights are equal, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.plugins import MixedPrecision

from skipscope import ResidualMonitor
from tests.lightning import parts

Result = tuple[list[torch.Tensor], list[torch.Tensor]]


def _half(init_scale: float) -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}


#: name -> (net's settings, Trainer's settings made anew for each run, batches)
CASES: dict[str, tuple[dict[str, Any], Any, int]] = {
    "sgd": ({}, dict, 15),
    "adamw": ({"optimizer": "adamw"}, dict, 15),
    "accumulation": ({}, lambda: {"accumulate_grad_batches": 3}, 15),
    "accumulation, a rest": ({}, lambda: {"accumulate_grad_batches": 3}, 16),
    "clip by norm": ({}, lambda: {"gradient_clip_val": 0.05}, 15),
    "clip by value": (
        {"optimizer": "adamw"},
        lambda: {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        15,
    ),
    "bf16-mixed": ({"optimizer": "adamw"}, lambda: {"precision": "bf16-mixed"}, 15),
    "16-mixed, overflow": ({}, lambda: _half(2.0**24), 15),
    "16-mixed, fused, accumulation": (
        {"optimizer": "fused"},
        lambda: {**_half(2.0**22), "accumulate_grad_batches": 3},
        15,
    ),
    "step that returns None": ({"none_at": (3, 4, 9)}, dict, 15),
}
_plain: dict[tuple[str, str], Result] = {}


def _train(root: Path, body: str, case: str, *callbacks: Any) -> Result:
    net_settings, trainer_settings, batches = CASES[case]
    torch.manual_seed(7)
    net = parts.Net(body, **net_settings)
    trainer = parts.trainer(root, *callbacks, max_epochs=2, **trainer_settings())
    trainer.fit(net, parts.loader(body, batches))
    assert len(net.losses) == 2 * batches
    return net.losses, parts.weights(net)


@pytest.mark.filterwarnings("ignore:.*returned `None`.*")
@pytest.mark.parametrize("preset", ["train", "debug"])
@pytest.mark.parametrize("body", ["cnn", "gpt"])
@pytest.mark.parametrize("case", CASES)
def test_bit_identical(tmp_path: Path, body: str, case: str, preset: Any) -> None:
    if (body, case) not in _plain:
        _plain[body, case] = _train(tmp_path, body, case)
    callback = ResidualMonitor(preset=preset, every_n_steps=7, report=[], on_error="raise")
    losses, weights = _train(tmp_path, body, case, callback)
    assert parts.equal(losses, _plain[body, case][0])
    assert parts.equal(weights, _plain[body, case][1])
    captured = len(callback.history.capture_steps)
    steps = len(callback.history.facts)
    assert steps == trainer_steps(case)
    assert captured == steps if preset == "debug" else 5 < captured < steps
    skipped = callback.history.fact("skipped").sum()
    assert 0 < skipped < steps if case.startswith("16") or "None" in case else skipped == 0


def trainer_steps(case: str) -> int:
    accumulate = CASES[case][1]().get("accumulate_grad_batches", 1)
    return 2 * -(-CASES[case][2] // accumulate)


@pytest.mark.parametrize("preset", ["train", "debug"])
@pytest.mark.parametrize("body", ["cnn", "gpt"])
def test_bit_identical_with_manual_optimization(tmp_path: Path, body: str, preset: Any) -> None:
    results = []
    for callbacks in ([], [ResidualMonitor(preset=preset, report=[], on_error="raise")]):
        torch.manual_seed(7)
        net = parts.TwoOptimizers(body)
        parts.trainer(tmp_path, *callbacks).fit(net, parts.loader(body, 30))
        results.append((net.losses, parts.weights(net)))
    assert len(results[0][0]) == 30
    assert parts.equal(results[0][0], results[1][0])
    assert parts.equal(results[0][1], results[1][1])
    history = callbacks[0].history
    assert len(history.sites.sites) == {"cnn": 3, "gpt": 4}[body]  # not again for each forward
    assert not history.table("update_ratio").missing.all(axis=0).any()
    assert history.facts[:, 2].tolist() == list(range(0, 60, 2))  # global_step: two a batch


def test_bit_identical_when_the_optimizer_asks_several_times(tmp_path: Path) -> None:
    """LBFGS runs forward and backward several times in one step."""

    class Asking(parts.Net):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)

    results = []
    for callbacks in ([], [ResidualMonitor(preset="debug", report=[], on_error="raise")]):
        torch.manual_seed(7)
        net = Asking("cnn")
        parts.trainer(tmp_path, *callbacks).fit(net, parts.loader())
        results.append((net.losses, parts.weights(net)))
    assert len(results[0][0]) > 20
    assert parts.equal(results[0][0], results[1][0])
    assert parts.equal(results[0][1], results[1][1])
    history = callbacks[0].history
    assert len(history.sites.sites) == 3
    assert history.capture_steps.tolist() == list(range(10))
    assert not history.table("gradient_gain").missing.any()


def test_an_overflow_is_a_skipped_step(tmp_path: Path) -> None:
    for optimizer in ("sgd", "fused"):
        torch.manual_seed(7)
        callback = ResidualMonitor(report=[], on_error="raise")
        net = parts.Net("cnn", optimizer=optimizer)
        before = [weight.clone() for weight in net.parameters()]
        trainer = parts.trainer(tmp_path, callback, max_steps=1, **_half(2.0**40))
        trainer.fit(net, parts.loader())
        assert parts.equal(before, list(net.parameters()))
        history = callback.history
        assert history.fact("skipped").tolist() == [1]
        assert history.fact("loss_scale").tolist() == [2.0**40]
        assert not len(history.update_steps)


@pytest.mark.filterwarnings("ignore:.*returned `None`.*")
def test_a_loss_of_none_is_a_skipped_step(tmp_path: Path) -> None:
    callback = ResidualMonitor(report=[], on_error="raise")
    net = parts.Net("cnn", none_at=(1, 3))
    parts.trainer(tmp_path, callback, max_steps=5).fit(net, parts.loader())
    assert callback.history.fact("skipped").tolist() == [0, 1, 0, 1, 0]
    assert callback.history.update_steps.tolist() == [0, 2, 4]
    losses = callback.history.fact("loss")
    expected = torch.stack(net.losses).double()
    assert losses[[0, 2, 4]].tolist() == expected[[0, 2, 4]].tolist()
