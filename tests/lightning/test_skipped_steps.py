"""Steps that no optimizer took: an overflow, a loss of None."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.plugins import MixedPrecision

from skipscope import ResidualMonitor
from tests.lightning import parts


def _half(init_scale: float) -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}


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
