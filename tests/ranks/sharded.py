"""What one rank does whose parameters lie in shards; each function runs in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.ranks import nets
from tests.ranks.plain import outcome


def _trained(net: nn.Module, rank: int, root: Path, **options: Any) -> dict[str, Any]:
    optimizer = nets.optimizer_of(net)
    monitor = nets.monitor_of(net, optimizer, root, **options)
    nets.train(net, optimizer, monitor, (nets.shard(b, rank) for b in nets.batches()))
    return {**outcome(net, monitor), "reason": monitor._attendance.company.reason}


def fsdp2(rank: int, root: Path, *, replicas: bool = False, **options: Any) -> dict[str, Any]:
    """`fully_shard` over both ranks, or two replicas of one shard each."""
    with nets.world():
        net = nets.make()
        if replicas:
            mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
        else:
            mesh = init_device_mesh("cpu", (2,))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        return _trained(net, rank, root, **options)


def fsdp1(rank: int, root: Path) -> dict[str, Any]:
    with nets.world():
        net = FullyShardedDataParallel(
            nets.make(),
            auto_wrap_policy=ModuleWrapPolicy({nets.Block}),
            use_orig_params=True,
            device_id=torch.device("cpu"),
        )
        return _trained(net, rank, root)


def tensor_parallel(rank: int, root: Path) -> dict[str, Any]:
    """Both ranks pass the same samples, each with a part of every block's weights."""
    with nets.world():
        net = nets.make()
        mesh = init_device_mesh("cpu", (2,))
        for block in net.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return _trained(net, 0, root)
