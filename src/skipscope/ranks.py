"""The processes that train one model together: who they are, and how their numbers meet.

They meet at the end of a captured step and nowhere else. What travels goes over sockets of our own
(gloo, on the host) that no registry of PyTorch knows: it cannot mix with the training's
collectives, needs no device, and no process has to create anything that the others must create too.

No rank waits for one that will not come. A rank announces a meeting when the step begins, withdraws
when the step is broken off, and says when it takes part no more, by counts in the store through
which the processes found each other. By the end of a step backward has brought the ranks together:
all have announced the meeting, or one never will.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

#: How long a rank waits at the end of a step for one that has not announced that it will come, and
#: for one that has, and may be busy. Both are short of what the training's own collectives wait.
ANNOUNCED_WITHIN = timedelta(seconds=20)
ARRIVES_WITHIN = timedelta(minutes=2)


class AbsentError(RuntimeError):
    """Not all ranks that train together come to a meeting."""


@dataclass(frozen=True)
class Company:
    """Which processes train a model together.

    >>> Company()
    Company(ranks=(0,), rank=0, world=1, reason='')
    """

    ranks: tuple[int, ...] = (0,)
    rank: int = 0
    world: int = 1
    reason: str = ""  #: why it is this process alone although there are others

    @property
    def first(self) -> bool:
        """Whether this process records, judges and reports."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether the numbers of several processes are to be merged."""
        return len(self.ranks) > 1

    @property
    def measures(self) -> bool:
        """The ranks that train together with the first one measure, the others do nothing."""
        return self.first or (self.several and 0 in self.ranks)


def company_of(model: nn.Module) -> Company:
    """The processes over which a model, wrapped as it is trained, is data-parallel.

    They are those of the process group of DDP or FSDP, or of the mesh of `fully_shard`. A model
    without any of these is taken to be trained by each process for itself.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return Company()
    rank, world = distributed.get_rank(), distributed.get_world_size()
    if world == 1:
        return Company()
    found: set[tuple[int, ...]] = set()
    try:
        found.update(_wrapper_ranks(model))
        found.update(_mesh_ranks(model))
    except _UnknownLayoutError as error:
        return Company((rank,), rank, world, str(error))
    if not found:
        return Company((rank,), rank, world, "the model is not wrapped by DDP or FSDP")
    if len(found) > 1:
        return Company((rank,), rank, world, "its parts are spread over different groups of ranks")
    if not distributed.is_gloo_available() or _store() is None:
        return Company((rank,), rank, world, "this run has no gloo, or no store to meet through")
    return Company(tuple(sorted(found.pop())), rank, world)


def _store() -> Any:
    """Through which the processes found each other; MPI has none."""
    return distributed.distributed_c10d._get_default_store()


class _UnknownLayoutError(Exception):
    """Parameters lie over the ranks in a way that is not data-parallel alone."""


def _wrapper_ranks(model: nn.Module) -> Iterable[tuple[int, ...]]:
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            yield tuple(distributed.get_process_group_ranks(module.process_group))
        elif _is_fsdp1(module):
            group: Any = module.process_group
            if getattr(module, "_inter_node_pg", None) is not None:
                raise _UnknownLayoutError("hybrid sharding of FSDP1 has two groups of ranks")
            yield tuple(distributed.get_process_group_ranks(group))


def _mesh_ranks(model: nn.Module) -> Iterable[tuple[int, ...]]:
    """The ranks of `fully_shard`: a mesh of one dimension, or replicas of shards."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    spread: list[Any] = [p for p in model.parameters() if isinstance(p, DTensor)]
    if spread and not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise _UnknownLayoutError("its parameters lie on a mesh that is not fully_shard's")
    for parameter in spread:
        placements = parameter.placements
        replicas_of_shards = len(placements) == 2 and placements[0].is_replicate()
        if len(placements) > 1 and not replicas_of_shards:
            raise _UnknownLayoutError("tensor parallelism shares out what one sample passes")
        yield tuple(parameter.device_mesh.mesh.flatten().tolist())


def _is_fsdp1(module: nn.Module) -> bool:
    """Without loading what a run that does not shard never needs."""
    return any(
        kind.__name__ == "FullyShardedDataParallel" and kind.__module__.startswith("torch.")
        for kind in type(module).__mro__
    )


def shards(
    parameters: Iterable[nn.Parameter], model: nn.Module, rank: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which parameters lie in shards over the ranks, and which count on this one.

    What is whole on every rank counts on the first, and of replicas of shards the first.

    Args:
        parameters: those in question.
        model: the model, wrapped as it is trained.
        rank: of this process.

    Shape:
        Both (parameters,).
    """
    held_flat = {
        id(parameter)
        for module in model.modules()
        if _is_fsdp1(module) and "NO_SHARD" not in str(getattr(module, "sharding_strategy", ""))
        for parameter in module.parameters()
    }
    sharded, counts = [], []
    for parameter in parameters:
        placements: Sequence[Any] = getattr(parameter, "placements", ())
        cut = id(parameter) in held_flat or any(not place.is_replicate() for place in placements)
        mesh: Any = getattr(parameter, "device_mesh", None)
        where = mesh.get_coordinate() if cut and placements else ()
        replica = any(
            at and place.is_replicate() for at, place in zip(where or (), placements, strict=False)
        )
        sharded.append(cut)
        counts.append(not replica if cut else rank == 0)
    return np.array(sharded, bool), np.array(counts, bool)


class Meetings:
    """The meetings of a company, for one monitor.

    Args:
        company: of several processes.
        name: the monitor's, equal on all of them.
    """

    def __init__(self, company: Company, name: str) -> None:
        self._company = company
        self._size = len(company.ranks)
        self._corner = f"skipscope/{name}/{'_'.join(map(str, company.ranks))}"
        self._store: Any = None
        self._gloo: Any = None
        self._announced = 0
        self.held = 0  #: how many meetings there were

    def announce(self) -> None:
        """Says that this rank will come to the meeting of the step that begins."""
        if self._store is None:  # a corner of its own for each monitor of a name, in their order
            store = _store()
            mine = store.add(f"{self._corner}/of/{self._company.rank}", 1)
            self._store = distributed.distributed_c10d.PrefixStore(f"{self._corner}/{mine}", store)
        self._announced += 1
        self._tell("announced")

    def withdraw(self) -> None:
        """Says that this rank will not come: its step was broken off."""
        if self._store is not None:  # else it never said that it would
            self._tell("withdrawn")

    def exchange(
        self, numbers: Sequence[float], parcel: bytes
    ) -> tuple[npt.NDArray[np.float64], list[bytes]]:
        """All ranks learn everybody's numbers; the first gets the parcels too.

        Shape:
            (ranks, numbers); one parcel a rank, none but on the first.

        Raises:
            AbsentError: some rank does not come.
            RuntimeError: the connection broke.
        """
        self._assemble()
        if self._gloo is None:
            self._gloo = distributed.ProcessGroupGloo(
                self._store, self._place(self._company.rank), self._size, ARRIVES_WITHIN
            )
        mine = torch.tensor([*numbers, len(parcel)], dtype=torch.float64)
        heads = self._all_gather(mine)
        parcels = self._to_first(parcel, heads[:, -1].long().tolist())
        self.held += 1
        return heads[:, :-1].numpy(), parcels

    def leave(self) -> None:
        """Comes to no further meeting, and says so."""
        if self._store is not None:
            with suppress(RuntimeError):  # the store went with its process: nobody is to be told
                self._store.set("left", str(self._company.rank))
        self._store = self._gloo = None

    def _tell(self, what: str, ranks: int = 1) -> int:
        """Counts this rank among those of which something is true; how many there are."""
        return int(self._store.add(f"{self._announced}/{what}", ranks))

    def _assemble(self) -> None:
        """Waits until all ranks are here: what follows then keeps nobody waiting."""
        self._tell("arrived")
        start = time.monotonic()
        for attempt in itertools.count():
            if self._tell("arrived", 0) >= self._size:
                return
            if reason := self._in_vain(timedelta(seconds=time.monotonic() - start)):
                self._tell("arrived", -1)  # who comes later is not to count on this rank
                raise AbsentError(reason)
            time.sleep(0.001 * 2 ** min(attempt, 6))

    def _in_vain(self, waited: timedelta) -> str:
        """Why some rank will not come any more; empty where it still may."""
        if self._store.check(["left"]):
            return "another rank takes part no more"
        if self._tell("withdrawn", 0):
            return "a step was broken off on another rank"
        if waited > ANNOUNCED_WITHIN and (came := self._tell("announced", 0)) < self._size:
            return f"only {came} of {self._size} processes are at this capture"
        if waited > ARRIVES_WITHIN:
            return f"another rank did not end its step within {ARRIVES_WITHIN}"
        return ""

    def _place(self, rank: int) -> int:
        return self._company.ranks.index(rank)

    def _all_gather(self, mine: Tensor) -> Tensor:
        all_of_them = [torch.empty_like(mine) for _ in range(self._size)]
        self._gloo.allgather([all_of_them], [mine]).wait()
        return torch.stack(all_of_them)

    def _to_first(self, parcel: bytes, sizes: list[int]) -> list[bytes]:
        room = torch.zeros(max(sizes), dtype=torch.uint8)
        room[: len(parcel)] = torch.frombuffer(bytearray(parcel), dtype=torch.uint8)
        first = self._company.first
        rooms = [torch.empty_like(room) for _ in range(self._size)] if first else []
        options = distributed.GatherOptions()
        options.rootRank = self._place(0)
        self._gloo.gather([rooms] if first else [], [room], options).wait()
        return [r.numpy().tobytes()[:size] for r, size in zip(rooms, sizes, strict=False)]
