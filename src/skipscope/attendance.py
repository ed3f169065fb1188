"""A monitor's part in what the ranks measure together: it announces itself, brings, and leaves."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from skipscope.capture import Captured
from skipscope.guard import Guard
from skipscope.merge import Bits, Floats
from skipscope.ranks import Company
from skipscope.recorder import Recorder
from skipscope.together import Parcel, Shards, Together, whole_updates


class Attendance:
    """This process among those that train one model; they are found when the first step begins.

    Args:
        model: the user's own.
        wrapped: the model as it is trained.
        guard: holds what went wrong here.
        name: the monitor's.
    """

    def __init__(self, model: nn.Module, wrapped: nn.Module, guard: Guard, name: str) -> None:
        self._model = model
        self.wrapped = wrapped
        self._guard = guard
        self._name = name
        self._together: Together | None = None
        self._shards: Shards | None = None

    def _others(self) -> Together:
        if self._together is None:
            self._together = Together(self.wrapped, self._guard, self._name)
        return self._together

    @property
    def company(self) -> Company:
        """The processes."""
        return self._others().company

    @property
    def first(self) -> bool:
        """Whether this process records."""
        return self.company.first

    @property
    def shards(self) -> Shards:
        """Parameter sums of shards, which wait for a meeting."""
        if self._shards is None:
            self._shards = Shards(self._model, self.wrapped, self.company)
        return self._shards

    @property
    def words(self) -> tuple[float, ...]:
        """What the first rank had to say at the last meeting; empty where none was held."""
        return self._together.words if self._together is not None else ()

    # ------------------------------------------------------------------ meetings
    def takes_part(self) -> bool:
        """Whether this process measures: the first, and those that train together with it."""
        return self.company.measures

    def announce(self, step: int) -> None:
        """Tells the other ranks that this one comes to the meeting of the step that begins."""
        self._others().announce(step)

    def withdraw(self, step: int) -> None:
        """No other rank is to wait for what this step would have brought."""
        if self._together is not None:
            self._together.withdraw(step)

    def meet(
        self,
        step: int,
        captured: Captured | None,
        recorder: Recorder | None,
        words: Sequence[float],
    ) -> list[Parcel]:
        """Goes to the meeting of a step, whatever was measured; all parcels, on the first rank.

        Args:
            step: the optimizer step.
            captured: what this rank measured.
            recorder: its; None where none could be made.
            words: numbers that the first rank lets the others know; as many on every rank.
        """
        together = self._others()
        if not together.joins:
            return []
        parcel = self._guard.call("packing what was measured", self._parcel, captured, recorder)
        return together.meet(step, parcel or Parcel(), words)

    @property
    def met_once(self) -> bool:
        """Whether the first meeting was the last one."""
        return self._others().held == 1

    def leave(self) -> None:
        """Comes to no further meeting."""
        if self._together is not None:
            self._together.leave()

    def _parcel(self, captured: Captured | None, recorder: Recorder) -> Parcel:
        learnt = None if captured is None or self.first else recorder.learn(captured)
        return Parcel(
            rows=captured.rows if captured is not None else None,
            site_map=None if learnt is None else self._others().news(learnt),
            losses=recorder.losses,
            updates=self.shards.take(),
        )

    # ------------------------------------------------------------------ optimizer steps
    @property
    def _waits(self) -> bool:
        """Whether optimizer steps wait for the next meeting: other ranks have shards of them."""
        return self._others().joins and self.shards.any

    def keep(self, step: int, updated: tuple[Floats, Bits] | None) -> None:
        """Keeps this rank's part of an optimizer step until the next meeting, where that is so."""
        if updated is not None and self._waits:
            self.shards.keep(step, *updated)

    def updates(
        self, step: int, updated: tuple[Floats, Bits] | None, parcels: Sequence[Parcel]
    ) -> list[tuple[int, Floats, Bits]]:
        """What to record: this step; of shards all steps up to a meeting."""
        if self._waits:
            return whole_updates(parcels)
        if updated is None:
            return []
        sums, have = updated
        return [(step, sums, self.shards.without(have))]
