"""What one rank of a plain loop does; each function runs in a process of its own."""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from skipscope import Monitor, ranks
from skipscope.capture import Capture
from tests.capture.test_every_method import Failing
from tests.ranks import nets


def outcome(net: nn.Module, monitor: Monitor | None) -> dict[str, Any]:
    if monitor is None:
        return {"weights": nets.digest(net)}
    monitor.epoch_end()
    monitor.close()
    return {
        "weights": nets.digest(net),
        "broken": monitor._guard.broken,
        "captures": len(monitor.history.capture_steps),
        "steps": monitor.step_count,
        "summary": monitor.summary(),
    }


def ddp(
    rank: int,
    root: Path,
    *,
    watch: bool = True,
    accumulate: int = 1,
    blocks: tuple[int, int] = (3, 3),
    **wrapper: Any,
) -> dict[str, Any]:
    """A training under DDP; `blocks` tells how many each rank passes."""
    with nets.world():
        net = DistributedDataParallel(nets.make(), **wrapper)
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root) if watch else None
        data = (nets.shard(batch, rank) for batch in nets.batches())
        nets.train(net, optimizer, monitor, data, accumulate=accumulate, blocks=blocks[rank])
        return outcome(net, monitor)


def one_fails(rank: int, root: Path, *, at_step: int, culprit: int) -> dict[str, Any]:
    """A capture that fails on one rank alone."""
    if rank == culprit:
        measure = Capture._measure_forward
        calls = [0]

        def fail(self: Capture, *args: Any) -> None:
            calls[0] += 1
            if calls[0] > 4 * at_step:  # four sites a step
                raise ValueError("injected")
            measure(self, *args)

        Capture._measure_forward = fail  # type: ignore[method-assign]
        try:
            return ddp(rank, root)
        finally:
            Capture._measure_forward = measure  # type: ignore[method-assign]
    return ddp(rank, root)


def one_is_off(rank: int, root: Path) -> dict[str, Any]:
    """A monitor that is off from its start on rank 1."""
    with nets.world():
        net = DistributedDataParallel(nets.make())
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root)
        monitor._guard.broken = rank == 1
        nets.train(net, optimizer, monitor, (nets.shard(b, rank) for b in nets.batches()))
        return outcome(net, monitor)


def only_first_watches(rank: int, root: Path) -> dict[str, Any]:
    """No monitor on rank 1: rank 0 must not wait for long."""
    ranks.ANNOUNCED_WITHIN = timedelta(seconds=0.3)
    try:
        return ddp(rank, root, watch=rank == 0)
    finally:
        ranks.ANNOUNCED_WITHIN = timedelta(seconds=20)


def no_line(rank: int, root: Path, *, at_meeting: int) -> dict[str, Any]:
    """From some meeting on the processes cannot connect beside the training's own group."""
    real = ranks.Meetings._all_gather

    def gather(self: ranks.Meetings, mine: Any) -> Any:
        if self.held >= at_meeting:
            raise RuntimeError("no interface")
        return real(self, mine)

    ranks.Meetings._all_gather = gather  # type: ignore[method-assign]
    try:
        return ddp(rank, root)
    finally:
        ranks.Meetings._all_gather = real  # type: ignore[method-assign]


def one_skips_steps(rank: int, root: Path) -> dict[str, Any]:
    """From the third step on rank 1 does not tell the monitor of its steps."""
    with nets.world():
        ranks.ANNOUNCED_WITHIN = timedelta(seconds=0.3)
        net = DistributedDataParallel(nets.make())
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root)
        for step, batch in enumerate(nets.batches()):
            watched = monitor if rank == 0 or step < 2 else None
            nets.train(net, optimizer, watched, [nets.shard(batch, rank)])
        ranks.ANNOUNCED_WITHIN = timedelta(seconds=20)
        return outcome(net, monitor)


def independent(rank: int, root: Path) -> dict[str, Any]:
    """A training of its own in each process: nothing is to be joined, whatever the other does."""
    with nets.world():
        net = nets.make()
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root)
        nets.train(net, optimizer, monitor, nets.batches(5 if rank == 0 else 2))
        return {**outcome(net, monitor), "reason": monitor._attendance.company.reason}


def one_breaks_off(rank: int, root: Path, *, goes_on: bool) -> dict[str, Any]:
    """Rank 1 fails after its backward, within a captured step; its loop may go on all the same."""
    with nets.world():
        net = DistributedDataParallel(nets.make())
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root)
        start = time.monotonic()
        data = [nets.shard(batch, rank) for batch in nets.batches()]
        nets.train(net, optimizer, monitor, data[:3])
        with suppress(KeyError), monitor.step():
            net(data[2][0]).sum().backward()
            if rank == 1:
                raise KeyError("the user's own")
        if rank == 1 and not goes_on:
            monitor.close()
        nets.train(net, optimizer, monitor, data[3:])
        return {**outcome(net, monitor), "seconds": time.monotonic() - start}


def interrupted(rank: int, root: Path) -> dict[str, Any]:
    """Ctrl-C on rank 1 while the monitor reads what it captured; the loop goes on."""
    with nets.world():
        net = DistributedDataParallel(nets.make())
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root)
        start = time.monotonic()
        data = [nets.shard(batch, rank) for batch in nets.batches()]
        nets.train(net, optimizer, monitor, data[:2])
        if rank == 1:
            monitor._sampling.collect = _interrupt  # type: ignore[method-assign]
        with suppress(KeyboardInterrupt):
            nets.train(net, optimizer, monitor, data[2:3])
        monitor._sampling.__dict__.pop("collect", None)
        nets.train(net, optimizer, monitor, data[3:])
        return {**outcome(net, monitor), "seconds": time.monotonic() - start}


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def dawdles(rank: int, root: Path) -> dict[str, Any]:
    """Rank 1 stays within a captured step for longer than the others wait."""
    ranks.ARRIVES_WITHIN = timedelta(seconds=0.3)
    try:
        with nets.world():
            net = DistributedDataParallel(nets.make())
            optimizer = nets.optimizer_of(net)
            monitor = nets.monitor_of(net, optimizer, root)
            data = [nets.shard(batch, rank) for batch in nets.batches()]
            nets.train(net, optimizer, monitor, data[:2])
            with monitor.step():
                nets.train(net, optimizer, None, data[2:3])
                time.sleep(1.5 * rank)
            nets.train(net, optimizer, monitor, data[3:])
            return outcome(net, monitor)
    finally:
        ranks.ARRIVES_WITHIN = timedelta(minutes=2)


def unequal(rank: int, root: Path) -> dict[str, Any]:
    """Uneven inputs: rank 1 ends two steps earlier."""
    with nets.world():
        net = DistributedDataParallel(nets.make())
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root)
        start = time.monotonic()
        data = [nets.shard(b, rank) for b in nets.batches()][: 5 - 2 * rank]
        with Join([net]):
            nets.train(net, optimizer, monitor, data)
            monitor.close()
        return {**outcome(net, monitor), "seconds": time.monotonic() - start}


def late_block(rank: int, root: Path) -> dict[str, Any]:
    """A block that only rank 1 passes, and only from the third step on."""
    with nets.world():
        net = DistributedDataParallel(nets.make(), find_unused_parameters=True)
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root)
        for step, batch in enumerate(nets.batches()):
            blocks = 3 if rank == 1 and step >= 2 else 2
            nets.train(net, optimizer, monitor, [nets.shard(batch, rank)], blocks=blocks)
        return outcome(net, monitor)


def compiled(rank: int, root: Path, *, outside: bool) -> dict[str, Any]:
    """DDP of a compiled net, or a compiled DDP; step 3 is not captured."""
    with nets.world():
        net: Any = nets.make()
        if outside:
            net = torch.compile(DistributedDataParallel(net), backend="aot_eager")
        else:
            net = DistributedDataParallel(torch.compile(net, backend="aot_eager"))
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root, preset="train")
        nets.train(net, optimizer, monitor, (nets.shard(b, rank) for b in nets.batches()))
        return outcome(net, monitor)


def methods_fail(
    rank: int, root: Path, *, places: Sequence[tuple[str, str]], culprit: int
) -> dict[str, Any]:
    """Methods, each named by its owner and itself, fail on one rank from the second step on."""
    ranks.ANNOUNCED_WITHIN, ranks.ARRIVES_WITHIN = timedelta(seconds=0.2), timedelta(seconds=2)
    try:
        with nets.world():
            plain = DistributedDataParallel(nets.make(), find_unused_parameters=True)
            data = [nets.shard(batch, rank) for batch in nets.batches(3)]
            optimizer = nets.optimizer_of(plain)
            nets.train(plain, optimizer, None, data[:1], blocks=2)
            nets.train(plain, optimizer, None, data[1:], blocks=2 + rank)
            results = {
                f"{owner}.{name}": _one_fails(rank, culprit, pkgutil.resolve_name(owner), name)
                for owner, name in places
            }
            return {**results, "plain": nets.digest(plain)}
    finally:
        ranks.ANNOUNCED_WITHIN = timedelta(seconds=20)
        ranks.ARRIVES_WITHIN = timedelta(minutes=2)


def _one_fails(rank: int, culprit: int, owner: Any, name: str) -> dict[str, Any]:
    net = DistributedDataParallel(nets.make(), find_unused_parameters=True)
    optimizer = nets.optimizer_of(net)
    options = {"report": [], "name": f"{owner.__name__}.{name}"}
    monitor = nets.monitor_of(net, optimizer, None, **options)
    data = [nets.shard(batch, rank) for batch in nets.batches(3)]
    start = time.monotonic()
    nets.train(net, optimizer, monitor, data[:1], blocks=2)
    failing = Failing(owner, name, ValueError("injected"))
    with failing if rank == culprit else nullcontext():
        nets.train(net, optimizer, monitor, data[1:], blocks=2 + rank)
        monitor.summary()
        monitor.begin_step()
        monitor.pause()
        monitor.close()
    return {
        "weights": nets.digest(net),
        "called": failing.called,
        "broken": monitor._guard.broken,
        "captures": len(monitor.history.capture_steps),
        "seconds": time.monotonic() - start,
    }
