"""What one rank of a plain loop does; each function runs in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from tests.ranks import nets


def ddp(
    rank: int,
    root: Path,
    *,
    watch: bool = True,
    accumulate: int = 1,
    unused: bool = False,
    **wrapper: Any,
) -> dict[str, Any]:
    with nets.world():
        net = DistributedDataParallel(nets.make(unused=unused), **wrapper)
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root) if watch else None
        data = (nets.shard(batch, rank) for batch in nets.batches())
        nets.train(net, optimizer, monitor, data, accumulate=accumulate)
        if monitor is None:
            return {"weights": nets.digest(net)}
        monitor.epoch_end()
        monitor.close()
        return {
            "weights": nets.digest(net),
            "broken": monitor._guard.broken,
            "captures": len(monitor.history.capture_steps),
            "steps": monitor.step_count,
        }
