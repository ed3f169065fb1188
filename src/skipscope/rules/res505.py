"""RES505: one block, called again and again along the depth."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from skipscope.records import Site, SiteMap
from skipscope.rule import Hit, NotMeasurable, listed, rule
from skipscope.rule.siblings import common_path, streams


@rule(code="RES505", name="shared-block", severity="info")
def shared_block(sites: SiteMap, captures: npt.NDArray[np.int64]) -> Iterator[Hit]:
    """One module instance is called several times along the depth.

    What it sees:
        Additions of one stream, of one module and one line, whose branches use the same parameters.
        An information, never more.

    Example:
        Three additions along the depth: of one block called three times, and of three
        blocks.

            sick     x ──┬────────(+)──┬────────(+)──┬────────(+)── y
                         └── F1 ───┘   └── F1 ───┘   └── F1 ───┘    one set of weights
            healthy  x ──┬────────(+)──┬────────(+)──┬────────(+)── y
                         └── F1 ───┘   └── F2 ───┘   └── F3 ───┘    three sets

    Why it matters:
        `[Block()] * 12` makes twelve references to one block: the net has a twelfth of the
        parameters that its code seems to give it, their gradients are sums over all calls, and a
        ratio "by block" is a ratio by call. It runs and trains, so nothing else tells.
    What to try:
        * make the blocks one by one: `ModuleList(Block() for _ in range(depth))`
        * if it is meant, allow it with `ignore`; read update ratios as those of one shared block
    When it is wrong:
        Sharing weights over depth is an architecture (ALBERT, universal transformers, iterative
        refinement, recurrent cells). Branches that share only some of their parameters, a position
        bias say, do not count.
    Thresholds:
        None: a block is shared or it is not.
    Source:
        Sharing by design: ALBERT (arXiv 1909.11942). That list multiplication repeats references
        is Python's.
    """
    if not len(captures) or not sites.sites:
        raise NotMeasurable("needs a residual addition")
    groups: dict[frozenset[str], list[Site]] = {}
    for line in streams(sites).values():
        calls: dict[tuple[str, str, frozenset[str]], list[Site]] = {}
        for site in line:
            key = (site.module, site.source, frozenset(site.parameters))
            calls.setdefault(key, []).append(site)
        for (*_, parameters), called in calls.items():
            if parameters and len(called) > 1:
                groups.setdefault(parameters, called)
    holders: dict[tuple[str, int], list[str]] = {}
    for parameters, called in groups.items():
        holder = called[0].module or common_path(p.rpartition(".")[0] for p in parameters)
        holders.setdefault((holder, len(called)), []).append(called[0].source)
    for (holder, times), sources in holders.items():
        yield Hit(
            where=(holder,),
            value=float(times),
            expectation="a block of its own at every place of the depth",
            message=f"{holder} is called {times} times along the depth with the same parameters "
            f"({listed(dict.fromkeys(sources), 2)})",
            first_step=int(captures[0]),
            last_step=int(captures[-1]),
            evidence={"calls": float(times), "additions": float(len(sources))},
        )
