"""Merging by hand: two ranks' rows to one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.merge import (
    ParameterRows,
    SiteRows,
    merge_losses,
    merge_sites,
    merge_updates,
)
from skipscope.records import PARAMETER_SUMS, SUMS

AT = {field.name: position for position, field in enumerate(SUMS)}
UP = {field.name: position for position, field in enumerate(PARAMETER_SUMS)}
A, B = ("net.0", "net.py:1", 0), ("net.1", "net.py:1", 0)


def rows(*sites: tuple[Any, dict[str, float], int, int]) -> SiteRows:
    sums = np.full((len(sites), len(SUMS)), np.nan)
    for row, (_, values, _, _) in enumerate(sites):
        for name, value in values.items():
            sums[row, AT[name]] = value
    return SiteRows(
        tuple(site[0] for site in sites),
        sums,
        np.array([site[2] for site in sites], np.uint8),
        np.array([site[3] for site in sites], np.uint8),
    )


def value(merged: SiteRows, key: Any, name: str) -> float:
    return float(merged.sums[merged.keys.index(key), AT[name]])


def test_every_field_merges_as_it_says() -> None:
    one = {"n": 4.0, "sf": -1.0, "max_y": 3.0, "min_f": -2.0, "r_median": 0.5, "channel": 0.1}
    two = {"n": 6.0, "sf": 4.0, "max_y": 5.0, "min_f": -1.0, "r_median": 9.0, "channel": 0.7}
    merged = merge_sites([rows((A, one, 31, 0)), rows((A, two, 31, 0))])
    expected = {"n": 10, "sf": 3, "max_y": 5, "min_f": -2, "r_median": 0.5, "channel": 0.1}
    assert {name: value(merged, A, name) for name in expected} == expected
    assert (merged.have.tolist(), merged.why.tolist()) == ([31], [0])


def test_gradients_are_those_of_the_mean_of_the_losses() -> None:
    """Losses of two ranks: mean over 2 samples each. Of the mean over 4, each gradient is half."""
    gradients = np.array([[0.5, -1.5], [2.0, 4.0]])
    union = gradients / 2
    parts = [
        rows((A, {"gy": float((g**2).sum()), "gib": float(g.prod())}, 31, 0)) for g in gradients
    ]
    merged = merge_sites(parts)
    assert value(merged, A, "gy") == pytest.approx((union**2).sum())
    assert value(merged, A, "gib") == pytest.approx(union[0].prod() + union[1].prod())


def test_a_site_of_one_rank_alone_counts_nothing_on_the_other() -> None:
    merged = merge_sites([rows((A, {"n": 4, "gy": 8}, 31, 0)), rows((B, {"n": 6, "gy": 8}, 31, 0))])
    assert merged.keys == (A, B)
    assert [value(merged, key, "n") for key in (A, B)] == [4, 6]
    assert [value(merged, key, "gy") for key in (A, B)] == [2, 2]  # two ranks all the same


def test_a_backward_that_reached_x_on_one_rank_alone_is_that_ranks() -> None:
    """Else gx / gy would be of two different batches."""
    whole = rows((A, {"n": 4, "gy": 4, "gx": 8}, 31, 0))
    torn = rows((A, {"n": 6, "gy": 100}, 7, 2))
    for parts in ([whole, torn], [torn, whole]):
        merged = merge_sites(parts)
        assert (value(merged, A, "gy"), value(merged, A, "gx")) == (1, 2)
        assert value(merged, A, "n") == 10
        assert (merged.have.tolist(), merged.why.tolist()) == ([31], [0])


def test_a_nan_of_one_rank_is_a_result() -> None:
    merged = merge_sites(
        [rows((A, {"ff": 1, "max_f": 2}, 31, 0)), rows((A, {"ff": np.nan, "max_f": np.nan}, 31, 0))]
    )
    assert np.isnan(value(merged, A, "ff"))
    assert np.isnan(value(merged, A, "max_f"))


def test_one_rank_stays_as_it_is() -> None:
    alone = rows((A, {"n": 4, "gy": 8}, 15, 2))
    assert merge_sites([alone]) is alone


def update(*parameters: tuple[dict[str, float], int, bool]) -> ParameterRows:
    sums = np.full((len(parameters), len(PARAMETER_SUMS)), np.nan)
    for row, (values, _, _) in enumerate(parameters):
        for name, number in values.items():
            sums[row, UP[name]] = number
    have, counts = zip(*((have, counts) for _, have, counts in parameters), strict=True)
    return ParameterRows(7, sums, np.array(have, np.uint8), np.array(counts, bool))


def test_shards_add_up_and_replicas_count_once() -> None:
    shard, other = {"n": 2, "ww": 3, "gg": 1, "dd": 4}, {"n": 3, "ww": 5, "gg": 2, "dd": 6}
    whole = {"n": 7, "ww": 9, "gg": 9, "dd": 9}
    sums, have = merge_updates(
        [update((shard, 7, True), (whole, 7, True)), update((other, 7, True), (whole, 7, False))]
    )
    assert sums[0, : UP["dd"] + 1].tolist() == [5, 8, 3, 10]
    assert sums[1, : UP["dd"] + 1].tolist() == [7, 9, 9, 9]
    assert have.tolist() == [7, 7]


def test_an_empty_shard_says_nothing_and_an_unmeasured_one_says_no() -> None:
    full, empty, blind = {"n": 2, "ww": 3, "gg": 1}, {"n": 0, "ww": 0}, {"n": 2, "gg": 1}
    sums, have = merge_updates(
        [update((full, 3, True), (full, 3, True)), update((empty, 1, True), (blind, 2, True))]
    )
    assert have.tolist() == [3, 2]
    assert sums[0, [UP["ww"], UP["gg"]]].tolist() == [3, 1]
    assert np.isnan(sums[1, UP["ww"]])
    assert sums[1, UP["gg"]] == 2


def test_losses_are_means_where_all_have_one() -> None:
    assert merge_losses([{3: 1.0, 4: 2.0}, {4: 4.0, 5: 8.0}]) == {4: 3.0}
