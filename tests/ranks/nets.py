"""Nets, data and plain loops: the same training by one process and by several."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from skipscope import Monitor
from tests.lightning import parts

STEPS, BATCH, WIDTH = 5, 8, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Three blocks, of which the last can be left out, and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.project, self.widen = nn.Linear(WIDTH, WIDTH + 2), nn.Linear(WIDTH, WIDTH + 2)
        self.head = nn.Linear(WIDTH + 2, 3)

    def forward(self, x: Tensor, blocks: int = 3) -> Tensor:
        x = self.stem(x)
        for block in self.blocks[:blocks]:
            x = block(x)
        return self.head(self.project(x) + torch.tanh(self.widen(F.gelu(x))))


def make() -> Net:
    torch.manual_seed(3)
    return Net()


def batches(steps: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    """Union batches; the halves differ strongly, so that a rank alone is seen to be wrong."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        inputs = torch.randn(BATCH, 4, generator=generator)
        inputs[BATCH // 2 :] = 4 * inputs[BATCH // 2 :] + 1
        yield inputs, torch.randint(3, (BATCH,), generator=generator)


def shard(batch: tuple[Tensor, Tensor], rank: int, ranks: int = 2) -> tuple[Tensor, Tensor]:
    inputs, targets = batch
    return inputs.chunk(ranks)[rank], targets.chunk(ranks)[rank]


class Shards(Dataset[Any]):
    """Union batches of a net of `tests.modes`; in one of two processes its half of each."""

    def __init__(self, kind: str, batches: int, size: int) -> None:
        parted = (part.split(size) for part in parts.samples(kind, batches * size))
        self.batches = list(zip(*parted, strict=True))

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        batch = self.batches[at]
        return shard(batch, distributed.get_rank()) if distributed.is_initialized() else batch


def loader(kind: str, batches: int = 6, every: int = 1) -> DataLoader[Any]:
    """`every` of its batches are a step's."""
    return DataLoader(Shards(kind, batches, BATCH // every), batch_size=None)


@contextmanager
def world() -> Iterator[None]:
    """The process group; nobody leaves before all are done, or waits until it is killed."""
    try:
        distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    except Exception as error:  # the others wait for this one: no call can be made
        raise SystemExit(f"no process group: {error}") from error
    first = distributed.get_rank() == 0
    try:
        yield
        distributed.barrier()
        if first:  # it holds the store, and can be through the barrier while others are in it
            _await_others(distributed.get_world_size() - 1)
    finally:
        distributed.destroy_process_group()
        if not first:
            Path(f"{os.environ['CALL']}-{os.environ['RANK']}.left").touch()


def _await_others(count: int) -> None:
    deadline = time.monotonic() + 60
    while len(list(Path.cwd().glob(f"{os.environ['CALL']}-*.left"))) < count:
        if time.monotonic() > deadline:
            raise TimeoutError("another rank did not leave the process group")
        time.sleep(0.005)


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def monitor_of(net: nn.Module, optimizer: Any, root: Path | None, **options: Any) -> Monitor:
    settings = {"preset": "debug", "report": ["json"], "on_error": "disable", **options}
    return Monitor(net, optimizer, dirpath=None if root is None else str(root), **settings)


def train(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    monitor: Monitor | None,
    data: Any,
    *,
    accumulate: int = 1,
    blocks: int = 3,
) -> None:
    """Steps over batches; with accumulation each is split, and only the last part synchronises."""
    for inputs, targets in data:
        with monitor.step() if monitor is not None else nullcontext():
            optimizer.zero_grad()
            parts = list(zip(inputs.chunk(accumulate), targets.chunk(accumulate), strict=True))
            for number, (x, y) in enumerate(parts, start=1):
                alone = isinstance(net, DistributedDataParallel) and number < accumulate
                with net.no_sync() if alone else nullcontext():  # type: ignore[union-attr]
                    (F.cross_entropy(net(x, blocks), y) / accumulate).backward()
            optimizer.step()


def digest(net: nn.Module) -> str:
    """Of the weights, bit for bit."""
    content = hashlib.sha256()
    for parameter in net.parameters():
        tensor = parameter.detach()
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        content.update(tensor.contiguous().numpy().tobytes())
    return content.hexdigest()
