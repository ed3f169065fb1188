"""Discovery against the zoo: every model has exactly the additions that its definition has."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from skipscope.find import find_residuals
from skipscope.records import SiteMap
from tests.zoo.hf import DECODERS, FAMILIES, Family
from tests.zoo.registry import ENTRIES, Entry


def check(entry: Entry, found: SiteMap) -> None:
    block_level = found.block_level
    if entry.found_or_listed is not None:
        listed = sum(unseen.count for unseen in found.unseen)
        assert entry.found_or_listed in (len(block_level), listed), found
        return
    expected, actual = {}, {}
    kinds = Counter(site.kind for site in (block_level if entry.block_level else found.sites))
    for name, value in (
        ("block_level", len(block_level)),
        ("identity", kinds["identity"]),
        ("scaled", kinds["scaled"]),
        ("projection", kinds["projection"]),
        ("nested", len(found.sites) - len(block_level)),
        ("streams", len(found.streams)),
        ("total", len(found.sites)),
    ):
        if getattr(entry, name) is not None:
            expected[name], actual[name] = getattr(entry, name), value
    assert actual == expected, f"{entry.notes}\n{found}"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_zoo(entry: Entry) -> None:
    args, kwargs = entry.example()
    check(entry, find_residuals(entry.factory(), *args, **kwargs))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_transformers(family: Family) -> None:
    pytest.importorskip("transformers")
    model = family.build()
    found = find_residuals(model, **family.example())
    kinds = Counter(site.kind for site in found.block_level)
    assert len(found.block_level) == family.block_level, found
    for kind, count in family.kinds.items():
        assert kinds[kind] == count, found
    if family.nested is not None:
        assert len(found.sites) - len(found.block_level) == family.nested, found
    if family.streams is not None:
        assert len(found.streams) == family.streams, found
    if family in DECODERS:  # of one width from end to end, whether tokens lie in rows or not
        assert {site.stage for site in found.block_level} == {0}, found


def test_seed_makes_the_zoo_repeatable() -> None:
    torch.manual_seed(3)
    first = ENTRIES[0].factory()
    torch.manual_seed(3)
    second = ENTRIES[0].factory()
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
