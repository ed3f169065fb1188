"""Weights, gradients and updates against the real difference around `optimizer.step`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.capture.nets import D, Residual
from tests.capture.reference import BAR, norm
from tests.capture.updating import loss_of, monitored, net, now, step_that_agrees, weights

Make = Callable[[list[nn.Parameter]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "two groups": lambda p: torch.optim.SGD(
        [{"params": p[:5]}, {"params": p[5:], "lr": 0.5}], lr=0.1
    ),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers(make: Make) -> None:
    model = net()
    optimizer = make(list(model.parameters()))
    monitor = monitored(model, optimizer)
    for _ in range(3):
        with step_that_agrees(model, monitor):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
    assert monitor.history.update_steps.tolist() == [0, 1, 2]
    assert (monitor.history.table("changed_share").values > 0.5).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_of_any_precision(dtype: torch.dtype) -> None:
    model = net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    monitor = monitored(model, optimizer)
    with step_that_agrees(model, monitor):
        model(torch.randn(4, 6, D).to(dtype)).square().mean().backward()
        optimizer.step()


def test_updates_that_bf16_rounds_away() -> None:
    model = net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    monitor = monitored(model, optimizer)
    with step_that_agrees(model, monitor):
        model(torch.randn(4, 6, D).bfloat16()).square().mean().backward()
        optimizer.step()
    table = monitor.history.table("changed_share")
    assert table.values[0, table.columns.index("blocks.0.norm.weight")] == 0


def test_gradients_before_clipping() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = monitored(model, optimizer)
    with step_that_agrees(model, monitor) as given:
        loss_of(model).backward()
        given.append(now(model))
        monitor.gradients_ready()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    with step_that_agrees(model, monitor):  # without the call: as the optimizer found them
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    total = np.sqrt(np.square(monitor.history.table("gradient_norm").values).sum(1))
    assert total[0] > 2e-3
    assert total[1] == pytest.approx(1e-3, rel=1e-3)


def test_accumulation_with_a_clip() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = monitored(model, optimizer)
    for _ in range(2):
        with step_that_agrees(model, monitor) as given:
            optimizer.zero_grad()
            for _ in range(3):
                (loss_of(model) / 3).backward()
            given.append(now(model))
            monitor.gradients_ready(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()


def test_closure() -> None:
    """LBFGS: the gradients are those of its last evaluation."""
    model = net(1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    monitor = monitored(model, optimizer)
    x = torch.randn(4, 6, D)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        with step_that_agrees(model, monitor):
            optimizer.step(closure)
    with step_that_agrees(model, monitor):
        optimizer.step(closure=closure)
    assert not monitor.history.table("branch_gradient").missing.any()


def test_closure_that_clips() -> None:
    model = net(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    monitor = monitored(model, optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        given[:] = [now(model)]
        monitor.gradients_ready(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
        return loss

    for _ in range(2):
        with step_that_agrees(model, monitor) as given:
            optimizer.step(closure)


def test_two_optimizers_and_parameters_in_none() -> None:
    model = net()
    first = torch.optim.SGD(model.blocks[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model.blocks[1].parameters(), lr=0.1)
    model.stem.requires_grad_(False)  # frozen; the head is trainable and forgotten
    monitor = monitored(model, first, second)
    before = weights(model)
    with monitor.step():
        loss_of(model).backward()
        first.step()
        second.step()
    after = weights(model)
    tables = {
        name: monitor.history.table(name)
        for name in ("weight_norm", "update_norm", "gradient_norm")
    }
    for at, (name, p) in enumerate(model.named_parameters()):
        missing = {key: bool(table.missing[0, at]) for key, table in tables.items()}
        held = name.startswith("blocks.")
        frozen = name.startswith("stem.")
        assert missing == {
            "weight_norm": not held,
            "update_norm": not held,
            "gradient_norm": frozen,
        }, name
        if held:
            moved = norm(after[at] - before[at])
            assert tables["update_norm"].values[0, at] == pytest.approx(moved, rel=BAR)
        if p.grad is not None:
            assert tables["gradient_norm"].values[0, at] == pytest.approx(norm(p.grad), rel=BAR)
    groups = {p.name.split(".")[0]: p.group for p in monitor.history.parameters}
    assert groups["stem"] is groups["head"] is None


def test_only_one_of_two_optimizers_steps() -> None:
    model = net()
    first = torch.optim.SGD(model.blocks[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model.blocks[1].parameters(), lr=0.1)
    monitor = monitored(model, first, second)
    with monitor.step():
        loss_of(model).backward()
        second.step()
    table = monitor.history.table("update_norm")
    for name, missing in zip(table.columns, table.missing[0], strict=True):
        assert missing == (not name.startswith("blocks.1.")), name
    monitor.flush()
    assert monitor.history.table("skipped").values[-1, 0] == 0


def test_sparse_gradients() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(50, D, sparse=True)
            self.block = Residual(torch.add)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.block(self.emb(tokens))

    model = Net()
    sparse = torch.optim.SparseAdam(model.emb.parameters(), lr=0.1)
    dense = torch.optim.SGD(model.block.parameters(), lr=0.1)
    monitor = monitored(model, sparse, dense)
    with step_that_agrees(model, monitor) as given:
        model(torch.tensor([[3, 3, 7]])).square().sum().backward()
        given.append([norm(p.grad.to_dense()) for p in model.parameters()])
        sparse.step()
        dense.step()
    shares = monitor.history.table("changed_share")
    assert shares.values[0, shares.columns.index("emb.weight")] == pytest.approx(2 / 50)


def test_complex_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Parameter(torch.randn(D // 2 + 1, dtype=torch.complex64))
            self.block = Residual(torch.add)

        def forward(self, x: Tensor) -> Tensor:
            return self.block(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=D))

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    monitor = monitored(model, optimizer)
    before = model.filter.detach().clone()
    with monitor.step():
        model(torch.randn(2, 3, D)).square().sum().backward()
        optimizer.step()
    table = monitor.history.table("update_norm")
    moved = float((model.filter.detach() - before).abs().double().square().sum().sqrt())
    assert table.values[0, table.columns.index("filter")] == pytest.approx(moved, rel=BAR)
