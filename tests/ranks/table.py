"""Ways to train with several processes: the rows of docs/compatibility.md that run here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.modes.mode import Mode
from tests.modes.nets import OtherNet
from tests.ranks import nets
from tests.ranks.loops import in_ddp, in_fsdp1, in_shards, loop

GROUP = "Several processes"
CHECKS = ("bits", "numbers", "endings", "growth", "copies")
_row = partial(Mode, group=GROUP, checks=CHECKS, module=OtherNet, data=nets.loader)


def twice(kind: str) -> Any:
    return nets.loader(kind, 12, every=2)


def with_idle(kind: str) -> OtherNet:
    """A layer that no forward passes."""
    net = OtherNet(kind)
    net.body.idle = nn.Linear(2, 2)
    return net


def two(strategy: Callable[[], Any], **settings: Any) -> Callable[[], dict[str, Any]]:
    """A Trainer's arguments."""
    return lambda: {
        "devices": 2,
        "strategy": strategy(),
        "use_distributed_sampler": False,
        **settings,
    }


def fit_shards(trainer: Any, module: Any, data: Any, root: Path) -> None:
    def shard() -> None:
        mesh = module.device_mesh["data_parallel"]
        for block in module.body.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(module.body, mesh=mesh)

    module.configure_model = shard
    trainer.fit(module, data)


#: Those of which one start of two processes runs all.
TOGETHER = [
    _row("DDP, plain loop", fit=loop(in_ddp())),
    _row("DDP, accumulation with no_sync", fit=loop(in_ddp(), 2), data=twice),
    _row(
        "DDP, find_unused_parameters",
        module=with_idle,
        fit=loop(in_ddp(find_unused_parameters=True)),
    ),
    _row("DDP, static_graph", fit=loop(in_ddp(static_graph=True))),
    _row("fully_shard, plain loop", fit=loop(in_shards)),
    _row("FSDP1, plain loop", fit=loop(in_fsdp1)),
    _row("Trainer(strategy='ddp')", trainer=two(lambda: "ddp")),
    _row(
        "Trainer(strategy='ddp'), accumulation",
        trainer=two(lambda: "ddp", accumulate_grad_batches=2),
        data=twice,
    ),
    _row(
        "ModelParallelStrategy with fully_shard",
        trainer=two(lambda: ModelParallelStrategy(2, 1)),
        fit=fit_shards,
    ),
]
SPAWN = _row(
    "Trainer(strategy='ddp_spawn')",
    trainer=two(lambda: "ddp_spawn"),
    slow=True,
    note="the record is in its file: the processes that made it are gone after the fit",
)
MODES = [*TOGETHER, SPAWN]
