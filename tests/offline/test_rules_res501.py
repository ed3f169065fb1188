"""RES501: projections and constants on shortcuts that need none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_site
from tests.offline.rule_values import chain, names, staged, table

RULE = RULES["RES501"]


def look(sites: SiteMap, factor: Any = 1.0, rows: int = 4, **over: float) -> tuple[Hit, ...]:
    shape = (rows, len(sites.sites))
    ratio = np.broadcast_to(np.asarray(factor, float), shape)
    values = {
        name: table(name, np.ones(shape), names(sites)) for name in ("rms_shortcut", "rms_sum")
    }
    adapter = table("adapter_ratio", ratio, names(sites))
    return RULE.run({"sites": sites, "adapter_ratio": adapter, **values}, **over)


def projected(count: int, **changes: Any) -> SiteMap:
    """The first site of a stream is not judged, so one more is needed."""
    path = {"kind": "projection", "shortcut_path": ("convolution", "norm"), **changes}
    return chain(count + 1, **path)


def scaled(count: int, **changes: Any) -> SiteMap:
    return chain(count, kind="scaled", shortcut_path=("scale",), **changes)


@pytest.mark.parametrize(
    ("count", "severity"), [(9, "silent"), (10, "info"), (19, "info"), (20, None)]
)
def test_projections_are_counted(count: int, severity: str | None) -> None:
    hits = look(projected(count))
    assert [hit.severity for hit in hits] == ([] if severity == "silent" else [severity])
    if hits:
        assert hits[0].value == count
        assert "blocks.0" not in hits[0].where


def test_the_count_is_by_stream() -> None:
    two = [make_site(k, kind="projection", shortcut_path=("linear",), stream=k // 8, depth=k % 8)
           for k in range(16)]  # fmt: skip
    assert not look(make_map(*two))


def test_stage_boundaries_are_needed() -> None:
    assert not look(staged(*[1] * 30))
    assert not look(staged(3, 4, 23, 3))


@pytest.mark.parametrize(
    "path", [("pool", "convolution"), ("slice", "slice", "pad"), ("norm",), ("activation",)]
)
def test_adapters_of_shape_and_altered_shortcuts_do_not_count(path: tuple[str, ...]) -> None:
    assert not look(projected(24, shortcut_path=path))


def test_a_resampled_stream_does_not_count() -> None:
    assert not look(projected(24, link=("norm", "convolution")))


def test_a_small_constant_in_every_block_at_any_depth() -> None:
    (hit,) = look(scaled(8), 0.1)
    assert hit.severity is None
    assert hit.value == pytest.approx(0.1)
    assert hit.evidence["product"] == pytest.approx(1e-8)
    assert len(hit.where) == 8
    assert not look(scaled(2), 0.1)  # `several`
    assert not look(scaled(8), 0.1, rows=2)  # patience


@pytest.mark.parametrize(("factor", "found"), [(0.39, 1), (0.41, 0), (2.4, 0), (2.6, 1)])
def test_how_far_is_far(factor: float, found: int) -> None:
    assert len(look(scaled(8), factor)) == found


def test_a_constant_in_few_blocks_is_not_in_every_block() -> None:
    sites = make_map(
        *(make_site(k, kind="scaled" if k < 3 else "identity", shortcut_path=("scale",) * (k < 3))
          for k in range(8))
    )  # fmt: skip
    assert not look(sites, 0.1)
    assert look(sites, 0.1, share=0.3)


def test_half_is_left_to_the_count() -> None:
    """Once for each block but the first; far enough from 1, and steady."""
    assert not look(scaled(8), 0.5)
    assert [hit.severity for hit in look(scaled(12), 0.5)] == ["info"]
    assert [hit.severity for hit in look(scaled(25), 0.5)] == [None]
    assert not look(scaled(25), 0.96)
    assert look(scaled(25), 0.94)
    assert not look(scaled(25), np.array([0.8, 1.0, 0.7, 1.1])[:, None])  # a mask


def test_deepnorm_and_variance_preserving_sums_are_silent() -> None:
    assert not look(scaled(48, norm_placement="post-norm"), 3.1)
    assert look(scaled(48, norm_placement="post-norm"), 0.1)
    assert not look(scaled(48), 2**-0.5)


def test_layer_scale_on_the_branch_is_an_identity_shortcut() -> None:
    assert not look(chain(48, alpha=0.1), 1.0)


def test_the_sum_before_stands_in_for_an_input_that_was_not_measured() -> None:
    sites = scaled(8)
    s, y = np.full((4, 8), 0.1), np.ones((4, 8))
    values = {
        "sites": sites,
        "rms_shortcut": table("rms_shortcut", s),
        "rms_sum": table("rms_sum", y),
    }
    (hit,) = RULE.run(values)
    assert len(hit.where) == 7
    linked = {**values, "sites": scaled(8, link=("norm",))}
    assert not RULE.run(linked)


def test_without_sites() -> None:
    empty = table("rms_shortcut", np.zeros((2, 0)), ())
    with pytest.raises(NotMeasurable, match="nothing to measure it on"):
        RULE.run({"sites": SiteMap(), "rms_shortcut": empty, "rms_sum": empty})
