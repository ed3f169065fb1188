"""Several ranks as one: what each brings to a meeting, and what becomes of it.

A rank comes to the meeting of every scheduled capture for as long as its process runs, also when
its own measuring has failed: it then says so, and all stop measuring together.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import nn

from skipscope.guard import Guard
from skipscope.merge import Bits, Floats, ParameterRows, SiteRows, merge_updates
from skipscope.ranks import AbsentError, Company, Meetings, company_of, shards
from skipscope.records import PARAMETER_SUMS, SiteMap, essence
from skipscope.reduce import local

logger = logging.getLogger("skipscope")
_COUNT = [field.name for field in PARAMETER_SUMS].index("n")


@dataclass(frozen=True)
class Parcel:
    """What a rank brings to a meeting."""

    failure: str = ""  #: where an error of ours happened, and its traceback
    rows: SiteRows | None = None
    site_map: SiteMap | None = None  #: where it is new
    losses: Mapping[int, float] = field(default_factory=dict)
    updates: tuple[ParameterRows, ...] = ()


class Together:
    """This process among those that train one model.

    Args:
        model: the model, wrapped as it is trained.
        guard: holds what went wrong here.
        name: the monitor's.
    """

    def __init__(self, model: nn.Module, guard: Guard, name: str) -> None:
        self._guard = guard
        self.company: Company = company_of(model)
        self._meetings: Meetings | None = None
        if self.company.several and self.company.measures:
            self._meetings = Meetings(self.company, name)
            guard.waits_to_tell = True
        elif self.company.first and self.company.world > 1:
            logger.info("skipscope: numbers are of rank 0 alone: %s", self.company.reason)
        self._sent: SiteMap | None = None
        #: what the first rank had to say at the last meeting
        self.words: tuple[float, ...] = ()

    @property
    def joins(self) -> bool:
        """Whether this rank comes to the meetings."""
        return self._meetings is not None

    @property
    def held(self) -> int:
        """How many meetings there were."""
        return self._meetings.held if self._meetings is not None else 0

    def news(self, sites: SiteMap) -> SiteMap | None:
        """The site map where the first rank does not have it yet."""
        if self._sent is not None and essence(sites) == essence(self._sent):
            return None
        self._sent = sites
        return sites

    def announce(self, step: int) -> None:
        """Says that this rank will come to the meeting of the step that begins."""
        if self._meetings is not None:
            try:
                self._meetings.announce()
            except Exception as error:  # the store went with the process that held it
                self._not_met(step, error)

    def meet(self, step: int, parcel: Parcel, words: Sequence[float]) -> list[Parcel]:
        """Goes to the meeting of a step; on the first rank, what all have brought.

        Args:
            step: the optimizer step.
            parcel: what this rank measured.
            words: numbers that the first rank lets the others know; as many on every rank.
        """
        if self._meetings is None:
            return []
        parcel = replace(parcel, failure=self._guard.hand_over())
        try:
            numbers = [float(self._guard.broken), float(step), *words]
            heads, parcels = self._meetings.exchange(numbers, pickle.dumps(parcel))
            brought = [pickle.loads(one) for one in parcels]
        except Exception as error:
            self._not_met(step, error, parcel.failure)
            return []
        place = self.company.ranks.index(0)
        self.words = tuple(heads[place, 2:].tolist())
        if heads[:, 0].any() or len(set(heads[:, 1].tolist())) > 1:
            self._all_stop(heads, brought)
            return []
        return brought

    def leave(self) -> None:
        """Comes to no further meeting; what was not told yet is told here."""
        if self._meetings is not None:
            self._meetings.leave()
        self._meetings = None
        self._guard.waits_to_tell = False
        self._guard.tell()

    def withdraw(self, step: int) -> None:
        """Says that this rank will not come to the meeting that it announced."""
        if self._meetings is not None:
            try:
                self._meetings.withdraw()
            except Exception as error:
                self._not_met(step, error)

    def _not_met(self, step: int, error: Exception, failure: str = "") -> None:
        """Goes on alone where the ranks never met; where they did, this rank stops."""
        first_time = self._meetings is not None and not self._meetings.held
        if failure:
            logger.error("skipscope stopped measuring after an error of its own in %s", failure)
        self.leave()
        if first_time:
            self.company = replace(self.company, ranks=(self.company.rank,), reason=str(error))
            if self.company.first:
                logger.warning(
                    "skipscope: %s. Numbers are of rank 0 alone; make a monitor on every process.",
                    error,
                )
        elif isinstance(error, AbsentError):
            self._guard.broken = True
            logger.warning(
                "skipscope stopped measuring at step %d: %s. The training goes on unchanged. Every "
                "process must tell its monitor of every step and every epoch.",
                step,
                error,
            )
        else:
            self._guard.fail(error, "a meeting of the ranks")

    def _all_stop(self, heads: Floats, brought: Sequence[Parcel]) -> None:
        """One message for all, by the first rank."""
        if brought:
            off = heads[:, 0] != 0
            ranks = np.array(self.company.ranks)[off].tolist()
            failures = [p.failure for p in brought if p.failure]
            steps = sorted({int(step) for step in heads[:, 1]})
            logger.error(
                "skipscope stopped measuring on all %d processes after an error of its own %s; the "
                "training goes on unchanged. Please report this traceback at the project's issue "
                "tracker.",
                len(self.company.ranks),
                f"on rank {', '.join(map(str, ranks))}{f' in {failures[0]}' if failures else ''}"
                if ranks
                else f"(ranks at different steps: {', '.join(map(str, steps))})",
            )
        self._guard.broken = True
        self.leave()


class Shards:
    """Parameter sums of shards: kept from step to step, until the ranks meet.

    Args:
        model: whose parameters are measured.
        wrapped: the model as it is trained.
        company: the processes.
    """

    def __init__(self, model: nn.Module, wrapped: nn.Module, company: Company) -> None:
        self._model = model
        self._company = company
        self._kept: list[ParameterRows] = []
        if company.world > 1:
            self._sharded, self._counts = shards(model.parameters(), wrapped, company.rank)
        else:
            self._sharded = self._counts = np.zeros(0, bool)

    @property
    def any(self) -> bool:
        """Whether some parameter lies in shards over the ranks."""
        return bool(self._sharded.any())

    def keep(self, step: int, sums: Floats, have: Bits) -> None:
        """Takes a step of this rank, which waits for the next meeting."""
        sums = sums.copy()
        sums[:, _COUNT] = [local(parameter).numel() for parameter in self._model.parameters()]
        self._kept.append(ParameterRows(step, sums, have, self._counts))

    def take(self) -> tuple[ParameterRows, ...]:
        """What waits."""
        kept, self._kept = tuple(self._kept), []
        return kept

    def without(self, have: Bits) -> Bits:
        """What is measured where the shards of other ranks are not to be had."""
        return np.where(self._sharded, 0, have).astype(np.uint8) if self.any else have


def whole_updates(parcels: Sequence[Parcel]) -> list[tuple[int, Floats, Bits]]:
    """The optimizer steps that all ranks have brought their shards of, in order."""
    by_step = [{rows.step: rows for rows in parcel.updates} for parcel in parcels]
    if not by_step:
        return []
    steps = sorted(set(by_step[0]).intersection(*by_step[1:]))
    return [(step, *merge_updates([rows[step] for rows in by_step])) for step in steps]
