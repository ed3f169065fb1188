"""What one rank does whose parameters lie in shards; each function runs in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.ranks import nets
from tests.ranks.plain import outcome


def fsdp2(rank: int, root: Path, *, watch: bool = True, **options: Any) -> dict[str, Any]:
    with nets.world():
        net = nets.make()
        shard_blocks(net)
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root, **options) if watch else None
        nets.train(net, optimizer, monitor, (nets.shard(b, rank) for b in nets.batches()))
        return outcome(net, monitor)


def shard_blocks(net: nets.Net) -> None:
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)


def fsdp1(rank: int, root: Path, *, watch: bool = True, original: bool = True) -> dict[str, Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    with nets.world():
        net: nn.Module = FullyShardedDataParallel(
            nets.make(),
            auto_wrap_policy=ModuleWrapPolicy({nets.Block}),
            use_orig_params=original,
            device_id=torch.device("cpu"),
        )
        optimizer = nets.optimizer_of(net)
        monitor = nets.monitor_of(net, optimizer, root) if watch else None
        nets.train(net, optimizer, monitor, (nets.shard(b, rank) for b in nets.batches()))
        return outcome(net, monitor)
