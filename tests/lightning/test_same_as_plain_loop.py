"""The same model, data and seed through the callback and through a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skipscope import Monitor, ResidualMonitor
from skipscope.records import FACTS
from tests.lightning import parts

#: What a clock measured differs; the rest may not.
_CLOCKS = {"seconds", "host_ms"}


def _plain(body: str, optimizer_name: str, clip: float | None, epochs: int, **options: Any) -> Any:
    torch.manual_seed(7)
    net = parts.Net(body, optimizer_name)
    net.log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    optimizer = net.configure_optimizers()
    monitor = Monitor(net, optimizer, **options)
    data = parts.loader(body)
    for _ in range(epochs):
        for at, batch in enumerate(data):
            with monitor.step():
                loss = net.training_step(batch, at)
                optimizer.zero_grad()
                loss.backward()
                if clip is not None:
                    monitor.gradients_ready()
                    torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
                optimizer.step()
        monitor.epoch_end()
    monitor.close()
    return monitor.history, net


@pytest.mark.parametrize(("body", "optimizer"), [("cnn", "sgd"), ("gpt", "adamw")])
@pytest.mark.parametrize(
    ("options", "clip"),
    [({}, None), ({"preset": "debug"}, 0.05), ({"every_n_steps": 7}, 0.05)],
)
def test_histories_are_equal(
    tmp_path: Path, body: str, optimizer: str, clip: float | None, options: dict[str, Any]
) -> None:
    settings = {"report": [], "on_error": "raise", **options}
    theirs, plain_net = _plain(body, optimizer, clip, 3, **settings)
    torch.manual_seed(7)
    callback = ResidualMonitor(**settings)
    net = parts.Net(body, optimizer)
    trainer = parts.trainer(tmp_path, callback, max_epochs=3, gradient_clip_val=clip)
    trainer.fit(net, parts.loader(body))
    ours = callback.history

    assert parts.equal(net.losses, plain_net.losses)
    assert parts.equal(parts.weights(net), parts.weights(plain_net))
    assert ours.sites == theirs.sites
    assert ours.parameters == theirs.parameters
    for name in ("capture_steps", "sums", "have", "why", "update_steps", "updates", "update_have"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    for column, fact in enumerate(FACTS):
        if fact.name == "loss":  # a plain loop's loss is known where it was captured
            known = theirs.fact("captured") == 1
            np.testing.assert_array_equal(ours.facts[known, column], theirs.facts[known, column])
            np.testing.assert_array_equal(
                ours.facts[:, column], [float(loss) for loss in net.losses]
            )
        elif fact.name not in _CLOCKS:
            np.testing.assert_array_equal(
                ours.facts[:, column], theirs.facts[:, column], err_msg=fact.name
            )
    np.testing.assert_array_equal(ours.table("lr").values, theirs.table("lr").values)
    assert len(ours.table("lr").steps) == 30
