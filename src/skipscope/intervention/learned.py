"""What rehearsals have told: what each addition is to a site, and which cannot be followed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from skipscope.intervention.rehearsal import Part, Place, Rehearsal
from skipscope.records import Key, Site


class Learned:
    """The additions of all rehearsals so far, by place and in order."""

    def __init__(self) -> None:
        self.checkpointed: set[Key] = set()  #: sites that a checkpoint recomputes
        self._parts: dict[Place, list[Part | None]] = {}
        self._small: Counter[Place] = Counter()
        self._in_functions: set[Key] = set()
        self._outside: set[Key] = set()

    def learn(self, rehearsal: Rehearsal) -> None:
        """Takes one more in.

        Raises:
            ValueError: an addition is another one than before.
        """
        self.checkpointed |= rehearsal.checkpointed
        self._in_functions |= rehearsal.in_functions
        self._outside |= rehearsal.outside
        for place, parts in rehearsal.parts.items():
            known = self._parts.get(place, [])
            for one, other in zip(known, parts, strict=False):
                if (one and one.branch_left) != (other and other.branch_left):
                    raise ValueError(
                        f"intervene: {place[1]} in {place[0] or 'model'} is not the same addition "
                        "in every forward, so it cannot be followed"
                    )
            self._parts[place] = max(known, parts, key=len)
            self._small[place] = max(self._small[place], rehearsal.small_passed[place])

    def at(self, place: Place) -> Sequence[Part | None]:
        """The additions at a place, in order."""
        return self._parts.get(place, ())

    def check_sites(self, acted: Collection[Site]) -> None:
        """Whether all can be followed.

        Raises:
            ValueError: one cannot.
        """
        for site in acted:
            if site.key in self._in_functions:
                raise ValueError(
                    f"intervene: {site.name} is added in a function that a checkpoint recomputes "
                    "without calling its module, where it could not be followed: checkpoint the "
                    "module, or switch checkpointing off"
                )
            if site.key in self._outside:
                raise ValueError(
                    f"intervene: {site.source} adds in a hook that runs before the forward can be "
                    "followed: register it before the intervention is opened"
                )

    def is_small(self, place: Place, count: int, acted: Collection[Key]) -> bool:
        """Whether a place of sites passes more sums too small for data than when rehearsed.

        Nothing would tell a site's sum of one sample, without its batch, from a bias.
        """
        here = any(part is not None and part.key in acted for part in self.at(place))
        return here and count > self._small[place]
