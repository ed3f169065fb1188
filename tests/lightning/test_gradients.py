"""Parameter gradients: whole accumulation, unscaled, not clipped, with the update that followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.plugins import MixedPrecision

from skipscope import ResidualMonitor
from tests.lightning import parts


class Reference(parts.Net):
    """Notes gradients where Lightning has unscaled and not clipped them, and the updates."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.gradients: list[list[float]] = []
        self.updates: list[list[float]] = []
        self.scale = 1.0
        self.before: list[torch.Tensor] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.gradients.append(
            [float(p.grad.double().norm()) / self.scale for p in self.parameters()]
        )
        self.before = [p.detach().clone() for p in self.parameters()]

    def on_train_batch_end(self, *args: Any) -> None:
        if self.before:
            pairs = zip(self.parameters(), self.before, strict=True)
            self.updates.append([float((p.detach() - b).double().norm()) for p, b in pairs])
            self.before = []


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("sgd", {}),
    "clip by norm": ("sgd", {"gradient_clip_val": 0.01}),
    "clip by value": ("adamw", {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": "value"}),
    "accumulation": ("sgd", {"accumulate_grad_batches": 3}),
    "accumulation and clip": ("sgd", {"accumulate_grad_batches": 3, "gradient_clip_val": 0.01}),
    "16-mixed": ("sgd", {"scale": 1024.0}),
    "16-mixed and clip": ("sgd", {"scale": 1024.0, "gradient_clip_val": 0.01}),
    "16-mixed, fused": ("fused", {"scale": 1024.0}),
    "fused": ("fused", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_against_gradients_noted_by_the_model(tmp_path: Path, case: str) -> None:
    optimizer, settings = CASES[case]
    settings = dict(settings)
    scale = settings.pop("scale", None)
    net = Reference("cnn", optimizer)
    if scale is not None:
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        settings["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler)]
        net.scale = scale if optimizer == "fused" else 1.0  # Lightning leaves it to the optimizer
    callback = ResidualMonitor(report=[], on_error="raise")
    parts.trainer(tmp_path, callback, **settings).fit(net, parts.loader())
    history = callback.history
    assert history.update_steps.tolist() == list(range(len(net.updates)))
    names = history.table("gradient_norm").columns
    assert names == tuple(name for name, _ in net.named_parameters())
    np.testing.assert_allclose(history.table("gradient_norm").values, net.gradients, rtol=1e-4)
    np.testing.assert_allclose(
        history.table("update_norm").values, net.updates, rtol=1e-3, atol=1e-9
    )
    expected_scale = 1.0 if scale is None else scale
    assert history.fact("loss_scale")[history.fact("captured") == 1] == pytest.approx(
        expected_scale
    )
    every = settings.get("accumulate_grad_batches", 1)
    last = [loss for at, loss in enumerate(net.losses) if (at + 1) % every == 0 or at == 9]
    assert history.fact("loss") == pytest.approx([float(loss) for loss in last], rel=1e-6)


def test_site_gradients_are_unscaled(tmp_path: Path) -> None:
    """Under 16-mixed with a scale of 2**12 and of 2**4 they agree."""
    tables = []
    for scale in (2.0**4, 2.0**12):
        torch.manual_seed(7)
        callback = ResidualMonitor(report=[], on_error="raise")
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
        trainer = parts.trainer(tmp_path, callback, plugins=[plugin], max_steps=1)
        trainer.fit(parts.Net("gpt"), parts.loader("gpt"))
        tables.append(callback.history.table("grad_sum_norm").values)
    np.testing.assert_allclose(tables[0], tables[1], rtol=2e-2)
