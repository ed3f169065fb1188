"""Where training cannot change what flows in: raw data, or what frozen layers make of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from skipscope.records import REASONS
from skipscope.rule.siblings import Stage, blocks

_NO_GRADIENT_AT_X = REASONS.index("x has no gradient: it is a raw input or behind frozen layers")


def first_trained(stages: Sequence[Stage], why: npt.NDArray[np.integer]) -> frozenset[int]:
    """Indices of the sites of each block that is trained, and had an x that was not, at any time.

    It is the first that can change what stands in the stream, and nothing in front of it can. A
    block counts that began to train later, too: what was the first one before it has learnt so.

    Args:
        stages: those of all streams.
        why: positions in `REASONS`. Shape: (captures, sites).
    """
    found: set[int] = set()
    for stream in {stage.stream for stage in stages}:
        members = [site for stage in stages if stage.stream == stream for site in stage.sites]
        block = blocks(members)
        known = [site for site in members if site.index < why.shape[1]]
        first = {
            block[site.index] for site in known if (why[:, site.index] == _NO_GRADIENT_AT_X).any()
        }
        found |= {site.index for site in members if block[site.index] in first}
    return frozenset(found)
