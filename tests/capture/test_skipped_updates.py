"""Updates that are not measured (a byte budget), and steps that are none (an overflow)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from skipscope.updates import Rotation
from tests.capture.reference import BAR, norm
from tests.capture.updating import loss_of, monitored, net, now, step_that_agrees, weights


# ---------------------------------------------------------------------- the byte budget
def test_rotation_covers_every_block() -> None:
    model = net(4)
    block = sum(p.numel() * 4 for p in model.blocks[0].parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = monitored(model, optimizer, update_bytes=block + 8)
    for _ in range(12):
        with monitor.step():
            loss_of(model).backward()
            optimizer.step()
    table = monitor.history.table("update_norm")
    by_block: dict[str, list[list[bool]]] = {}
    for name, column in zip(table.columns, table.missing[1:].T, strict=True):  # 0: blocks unknown
        by_block.setdefault(".".join(name.split(".")[:2]), []).append(column.tolist())
    blocks = {name: columns for name, columns in by_block.items() if name.startswith("blocks.")}
    assert len(blocks) == 4
    for columns in blocks.values():
        assert all(column == columns[0] for column in columns), "whole blocks only"
    for name, columns in by_block.items():
        assert not all(columns[0]), f"{name} never comes"
    sizes = {name: p.numel() * 4 for name, p in model.named_parameters()}
    used = [
        sum(sizes[c] for c, m in zip(table.columns, row, strict=True) if not m)
        for row in table.missing
    ]
    assert max(used[1:]) <= block + 8
    gradients = monitor.history.table("gradient_norm")
    assert not gradients.missing.any(), "gradients need no copies"


def test_a_block_beyond_the_budget_does_not_stop_the_others() -> None:
    rotation = Rotation([[0], [1, 2], [3]], [4, 50, 60, 5], budget=10)
    taken = [rotation.take() for _ in range(4)]
    assert all(not chosen & {1, 2} for chosen in taken)
    assert {0} <= set.union(*taken)
    assert {3} <= set.union(*taken)


def test_rotation_takes_everything_that_fits() -> None:
    assert Rotation([[0, 1], [2]], [1, 2, 3], budget=6).take() == {0, 1, 2}
    rotation = Rotation([[0], [1], [2]], [2, 2, 2], budget=4)
    assert [rotation.take() for _ in range(3)] == [{0, 1}, {2, 0}, {1, 2}]
    assert Rotation([], [], budget=4).take() == set()


def test_no_budget_still_gives_gradients() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = monitored(model, optimizer, update_bytes=0)
    with monitor.step():
        loss_of(model).backward()
        optimizer.step()
    assert monitor.history.table("update_norm").missing.all()
    assert not monitor.history.table("gradient_norm").missing.any()


# ---------------------------------------------------------------------- skipped steps
@pytest.mark.parametrize("fused", [False, True])
def test_overflow_is_a_skipped_step(fused: bool) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = monitored(model, optimizer, scaler=scaler)
    for step in range(3):
        before = weights(model)
        with monitor.step():
            optimizer.zero_grad()
            loss = loss_of(model) * (math.inf if step == 1 else 1)
            scaler.scale(loss).backward()
            unscaled = [norm(p.grad) / scaler.get_scale() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
        after = weights(model)
        if step != 1:
            moved = [norm(b - a) for a, b in zip(before, after, strict=True)]
            table = monitor.history.table("update_norm")
            assert table.values[-1].tolist() == pytest.approx(moved, rel=BAR)
            table = monitor.history.table("gradient_norm")
            assert table.values[-1].tolist() == pytest.approx(unscaled, rel=BAR)
    monitor.flush()
    history = monitor.history
    assert history.table("skipped").values[:, 0].tolist() == [0, 1, 0]
    assert history.update_steps.tolist() == [0, 2], "no update is not an update of 0"
    assert history.table("loss_scale").values[:, 0].tolist() == [1024, 1024, 512]


def test_overflow_of_one_of_two_fused_optimizers() -> None:
    models = net(1), net(1)
    both = nn.ModuleList(models)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, fused=True) for m in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    monitor = monitored(both, *optimizers, scaler=scaler)
    with monitor.step():
        for model, factor in zip(models, (math.inf, 1.0), strict=True):
            scaler.scale(loss_of(model) * factor).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    table = monitor.history.table("update_norm")
    for name, missing in zip(table.columns, table.missing[0], strict=True):
        assert missing == name.startswith("0."), name


def test_unscaled_by_hand_and_clipped() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = monitored(model, optimizer, scaler=scaler)
    with step_that_agrees(model, monitor) as given:
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        given.append(now(model))
        monitor.gradients_ready()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        scaler.step(optimizer)
        scaler.update()


def test_off() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = monitored(model, optimizer, updates="off")
    with monitor.step():
        loss_of(model).backward()
        optimizer.step()
    assert len(monitor.history.update_steps) == 0
    assert len(monitor.history.capture_steps) == 1
