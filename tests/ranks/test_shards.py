"""Parameters in shards: squares of shards add up over the ranks to those of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skipscope import History
from tests.ranks import nets
from tests.ranks.launch import Results
from tests.ranks.test_plain_loops import PARAMETER_TABLES, SITE_TABLES, agree

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "fsdp2": ("sharded:fsdp2", {}),
    "replicas": ("sharded:fsdp2", {"replicas": True}),
    "seldom": ("sharded:fsdp2", {"preset": "train"}),
    "fsdp1": ("sharded:fsdp1", {}),
    "tensor parallel": ("sharded:tensor_parallel", {}),
}


@pytest.mark.parametrize("name", ["fsdp2", "replicas", "fsdp1"])
def test_everything_is_that_of_the_whole(
    results: dict[str, Results], root: Path, union: History, name: str
) -> None:
    assert [r.get("error") for r in results[name]] == [None, None]
    assert results[name][0]["said"] == []
    ours = History.load(root / name)
    agree(ours, union, *SITE_TABLES, *PARAMETER_TABLES, "branch_update_ratio", "changed_share")
    agree(ours, union, "block_update_ratio", "branch_gradient_norm", "loss")
    assert [p.name for p in ours.parameters] == [p.name for p in union.parameters]
    assert [p.shape for p in ours.parameters] == [p.shape for p in union.parameters]
    assert [p.role for p in ours.parameters] == [p.role for p in union.parameters]
    assert [s.parameters for s in ours.sites.sites] == [s.parameters for s in union.sites.sites]
    assert ours.run.ranks_measured == 2


def test_steps_between_captures_wait_for_the_next_meeting(
    results: dict[str, Results], root: Path, union: History
) -> None:
    """Captures at steps 0, 1, 2 and 4; the update of step 3 arrives with the last."""
    ours = History.load(root / "seldom")
    assert ours.capture_steps.tolist() == [0, 1, 2, 4]
    assert ours.update_steps.tolist() == list(range(nets.STEPS))
    agree(ours, union, *PARAMETER_TABLES)


def test_tensor_parallelism_is_refused_with_a_reason(
    results: dict[str, Results], root: Path
) -> None:
    first, other = results["tensor parallel"]
    assert (first.get("error"), other.get("error")) == (None, None)
    assert first["reason"] == "its parameters lie on a mesh that is not fully_shard's"
    assert (first["captures"], other["captures"]) == (nets.STEPS, 0)
    ours = History.load(root / "tensor parallel")
    weights = ours.table("weight_norm")
    cut = [p.name for p in ours.parameters if ".up." in p.name or p.name.endswith("down.weight")]
    assert cut
    for column, name in enumerate(weights.columns):  # a shard's norm is not the weight's
        assert weights.missing[:, column].all() == (name in cut), name
