"""Every model of the zoo without its shortcuts: looked at from outside, none of them is there."""

from __future__ import annotations

import pytest
import torch

from skipscope import find_residuals, intervene
from skipscope.records import Site
from tests.zoo.registry import ENTRIES, Entry


def key(site: Site) -> tuple[str, str, int]:
    return site.module, site.source, site.occurrence


#: Its checkpoint is around a function.
REFUSED = "checkpoint_non_reentrant"
TABLE = [entry for entry in ENTRIES if entry.block_level and entry.name != REFUSED]


@pytest.mark.slow
@pytest.mark.parametrize("entry", TABLE, ids=lambda e: e.name)
def test_no_shortcut_is_left(entry: Entry) -> None:
    torch.manual_seed(0)
    model = entry.factory().eval()
    args, kwargs = entry.example()
    whole = find_residuals(model, *args, **kwargs)
    expected = {key(site) for site in whole.block_level if site.kind != "projection"}
    if not expected:
        left = pytest.raises(ValueError, match=r"nowhere: it leaves all .* P\(x\) is kept")
        with left, intervene(model, shortcut=False):
            model(*args, **kwargs)
        return
    with intervene(model, shortcut=False) as found:
        model(*args, **kwargs)
        plain = find_residuals(model, *args, **kwargs)
    assert {key(site) for site in found.sites} == expected
    assert not {key(site) for site in plain.sites} & expected
    assert find_residuals(model, *args, **kwargs) == whole
