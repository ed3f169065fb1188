"""An order in which what was seen behind something else stands behind it."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator


def in_order(members: Iterable[int], behind: Iterable[tuple[int, int]]) -> Iterator[int]:
    """The members, each as early as those allow that come before it.

    Args:
        members: in the order that holds where nothing else decides.
        behind: pairs (a, b): b was seen behind a. Where pairs contradict each other, the first
            member that is left stands first.

    >>> list(in_order([3, 1, 2], [(2, 1)]))
    [3, 2, 1]
    >>> list(in_order([1, 2, 3], [(1, 2), (2, 1)]))
    [3, 1, 2]
    """
    left = dict.fromkeys(members)
    rank = {member: number for number, member in enumerate(left)}
    followers: defaultdict[int, list[int]] = defaultdict(list)
    waits: Counter[int] = Counter()
    for a, b in behind:
        if a in rank and b in rank:
            followers[a].append(b)
            waits[b] += 1
    ready = [(rank[member], member) for member in left if not waits[member]]
    while left:
        first = heapq.heappop(ready)[1] if ready else next(iter(left))
        if first not in left:  # it went first in a contradiction
            continue
        del left[first]
        yield first
        for member in followers[first]:
            waits[member] -= 1
            if not waits[member]:
                heapq.heappush(ready, (rank[member], member))
