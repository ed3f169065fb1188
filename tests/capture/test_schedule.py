"""Which steps are captured: counters only."""

from __future__ import annotations

import pytest

from skipscope.schedule import EARLY, Schedule


def test_default_steps() -> None:
    schedule = Schedule(every_n_steps=50)
    assert [s for s in range(201) if schedule.captures(s)] == [*sorted(EARLY), 50, 100, 150, 200]
    updated = [s for s in range(201) if schedule.updates(s)]
    assert updated == [*range(50), 50, 100, 150, 200]


def test_every_step() -> None:
    schedule = Schedule(every_n_steps=50, every_step=True)
    assert all(schedule.captures(s) and schedule.updates(s) for s in range(200))


@pytest.mark.parametrize("every", [1, 7, 50, 1000])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 10, 99, 149, 150, 151, 400])
def test_three_captures_in_every_epoch(every: int, length: int) -> None:
    schedule = Schedule(every_n_steps=every)
    for epoch in range(4):
        start = epoch * length
        captured = [s for s in range(start, start + length) if schedule.captures(s)]
        assert len(captured) >= min(3, length), (epoch, captured)
        assert len(captured) <= 4 + length / every + (len(EARLY) if epoch * length < 64 else 0)
        schedule.epoch_ended(start + length)


def test_an_epoch_of_another_length() -> None:
    schedule = Schedule(every_n_steps=1000)
    schedule.epoch_ended(60)
    assert sum(schedule.captures(s) for s in range(60, 120)) == 3
    schedule.epoch_ended(120)
    schedule.epoch_ended(120)  # an empty epoch teaches nothing
    assert sum(schedule.captures(s) for s in range(120, 180)) == 3
