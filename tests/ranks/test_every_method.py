"""Every method that only several ranks come to fails on one of them: no rank's training notices.

The others are in `tests/capture/test_every_method.py`. As there, the list is made from the code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from skipscope.attendance import Attendance
from skipscope.ranks import Meetings
from skipscope.together import Together
from tests.ranks.launch import launch

OF_ALL = (Meetings, Together, Attendance)
MORE = [
    ("skipscope.together.Shards", "take"),
    ("skipscope.recorder.Recorder", "losses"),
    ("skipscope.recorder.Recorder", "set_losses"),
    ("skipscope.recorder.Recorder", "forget"),
    ("skipscope.find.SiteRegistry", "adopt"),
    ("skipscope.stepping.Steps", "_announce"),
    ("skipscope.stepping.Steps", "_meet"),
    ("skipscope.stepping.Steps", "_withdraw"),
    ("skipscope.stepping", "merge_losses"),
    ("skipscope.recorder", "merge_sites"),
]
#: What a rank never comes to unless another one fails, or because its place is not the first.
NOT_REACHED = {
    0: "_all_stop _not_met forget news",
    1: "_all_stop _not_met _waits adopt held merge_losses merge_sites met_once set_losses updates",
}
#: Whoever is first at a meeting comes to it.
SOMETIMES = {"_in_vain"}


def places() -> Iterator[tuple[str, str]]:
    for owner in OF_ALL:
        for name, thing in vars(owner).items():
            written = inspect.isfunction(thing) or isinstance(thing, property)
            if written and not name.startswith("__"):
                yield f"{owner.__module__}.{owner.__name__}", name
    yield from MORE


PLACES = list(places())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        f"rank {culprit}": ("plain:methods_fail", {"places": PLACES, "culprit": culprit})
        for culprit in (0, 1)
    }
    return launch(tmp_path_factory.mktemp("methods"), calls)


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("place", PLACES, ids=[".".join(place) for place in PLACES])
def test_an_error_of_one_rank(
    results: dict[str, Any], place: tuple[str, str], culprit: int
) -> None:
    mine, other = (results[f"rank {culprit}"][rank] for rank in (culprit, 1 - culprit))
    assert (mine.get("error"), other.get("error")) == (None, None)
    plain = mine["plain"]
    mine, other = mine[".".join(place)], other[".".join(place)]
    if place[1] not in SOMETIMES:
        reached = place[1] not in NOT_REACHED[culprit].split()
        assert bool(mine["called"]) == reached, "NOT_REACHED is to be brought up to date"
    assert mine["broken"] == bool(mine["called"])
    assert mine["weights"] == other["weights"] == plain
    assert max(mine["seconds"], other["seconds"]) < 15, "less than any wait of ours"
