"""A plain loop over a wrapped net, as what `tests.modes.runs` runs in place of a Trainer's fit.

It has of a Trainer what the callbacks of `tests.modes` look at, and calls their hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from skipscope import Monitor, ResidualMonitor
from tests.lightning import parts
from tests.modes.nets import loss_of
from tests.modes.runs import Attending

Wrap = Callable[[nn.Module], nn.Module]


def in_ddp(**settings: Any) -> Wrap:
    return lambda module: DistributedDataParallel(module, **settings)


def in_shards(module: Any) -> nn.Module:
    """`fully_shard`, each block a group of its own."""
    mesh = init_device_mesh("cpu", (2,))
    for block in module.body.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


def in_fsdp1(module: nn.Module) -> nn.Module:
    blocks = {parts.ConvBlock, parts.GptBlock}
    return FullyShardedDataParallel(
        module,
        auto_wrap_policy=ModuleWrapPolicy(blocks),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )


class Loop:
    """A training by hand, with `Monitor` where the callbacks have a `ResidualMonitor`.

    Args:
        module: as made; it is wrapped here. callbacks: of the Trainer that it stands in for.
        accumulate: micro-batches of a step; only the last one synchronises.
    """

    precision_plugin = None  #: no scaler

    def __init__(self, module: Any, callbacks: Sequence[Any], wrap: Wrap, accumulate: int) -> None:
        self.lightning_module, self.callbacks, self.accumulate = module, callbacks, accumulate
        self.net = wrap(module)
        self.optimizers = [module.configure_optimizers()]
        self.at = SimpleNamespace(_batches_that_stepped=0, batch_idx=0)
        self.fit_loop = SimpleNamespace(epoch_loop=self.at)
        self.monitor: Monitor | None = None
        for callback in callbacks:
            if isinstance(callback, ResidualMonitor):
                self.monitor = Monitor.from_options(self.net, callback.options)
                self.monitor.optimizers = self.optimizers
                callback.monitor = self.monitor  # so that its history is found

    def run(self, data: Any) -> None:
        batches = list(data)
        try:
            for first in range(0, len(batches), self.accumulate):
                with self.monitor.step() if self.monitor is not None else nullcontext():
                    if not self.step(batches[first : first + self.accumulate]):
                        break
        except BaseException as error:
            self._call("on_exception", error)
            raise
        finally:
            if self.monitor is not None:
                self.monitor.close()
        self._call("on_train_end")

    def step(self, batches: Sequence[Any]) -> bool:
        """One optimizer step; False where the user's code ends the loop in its midst."""
        (optimizer,) = self.optimizers
        optimizer.zero_grad()
        for number, batch in enumerate(batches, start=1):
            self._call("on_train_batch_start", batch, self.at.batch_idx)
            if self.lightning_module.on_train_batch_start(batch, self.at.batch_idx) == -1:
                return False
            with self._unsynchronised(number < len(batches)):
                loss = loss_of(self.net(batch[0]), batch)
                self._call("on_before_backward", loss)
                (loss / len(batches)).backward()
            if number == len(batches):
                optimizer.step()
            self._call("on_train_batch_end", loss, batch, self.at.batch_idx)
            self.at.batch_idx += 1
        self.at._batches_that_stepped += 1
        return True

    def _unsynchronised(self, wanted: bool) -> Any:
        return self.net.no_sync() if wanted else nullcontext()  # type: ignore[operator]

    def _call(self, hook: str, *args: Any) -> None:
        for callback in self.callbacks:
            if isinstance(callback, Attending):
                getattr(callback, hook)(self, self.lightning_module, *args)


def loop(wrap: Wrap, accumulate: int = 1) -> Callable[[Any, Any, Any, Path], Loop]:
    """For a mode's `fit`."""

    def fit(trainer: Any, module: Any, data: Any, root: Path) -> Loop:
        running = Loop(module, trainer.callbacks, wrap, accumulate)
        running.run(data)
        return running

    return fit
