"""RES503: a block without its shortcut, or with two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import ModuleClass, Parameter, Run, Severity, SiteMap
from skipscope.rule import Gate, Hit, NotMeasurable, either, listed, rule, short
from skipscope.rule.doubled import Doubled, Sizes, doubled
from skipscope.rule.inventory import Block, sibling_blocks, within
from skipscope.rule.shortcuts import MATRICES

Steps = npt.NDArray[np.int64]

#: No connection at all; whatever else was seen takes the place of an addition, or hides one.
_NO_CONNECTION = "unrelated"


@rule(
    code="RES503",
    name="missing-shortcut",
    severity="warning",
    patience=3,
    explains=(
        "RES101",
        "RES103",
        "RES105",
        "RES201",
        "RES205",
        "RES301",
        "RES302",
        "RES404",
    ),
    explains_overall=(
        "RES001",
        "RES101",
        "RES105",
        "RES201",
        "RES203",
        "RES205",
        "RES301",
        "RES302",
        "RES402",
        "RES404",
        "RES901",
    ),
)
def missing_shortcut(
    sites: SiteMap,
    captures: Steps,
    gate: Gate,
    modules: tuple[ModuleClass, ...] | None = None,
    parameters: tuple[Parameter, ...] | None = None,
    rms_shortcut: Table | None = None,
    rms_branch: Table | None = None,
    rms_sum: Table | None = None,
    cosine: Table | None = None,
    growth: Table | None = None,
    max_shortcut: Table | None = None,
    max_branch: Table | None = None,
    max_sum: Table | None = None,
    run: Run | None = None,
    *,
    siblings: int = 3,
    share: float = 0.667,
    extra: float = 0.3,
    same: float = 0.001,
) -> Iterator[Hit]:
    """A block lacks the addition that its siblings have, or adds its input twice.

    What it sees:
        * *missing*: a module with fewer residual additions inside than its siblings, which are
          modules that differ from it in the numbers of their path only, called the same parts and
          hold parameters of the same shapes. At least `siblings` of them, and a share of `share`,
          must agree; the stream must have one shape before and after, and pass the block's weights
          on its way to the next addition. The first and the last of the siblings are an
          information: there it is often meant.
        * *in none of them*: no addition was found in the whole model, nor any gate, concatenation
          or addition that cannot be measured; and more than `siblings` siblings of two or more
          matrices each lead from one width back to the same width. Convolutions that have their
          norm behind them are left out: plain nets look the same.
        * *twice*: the branch of an addition is itself the sum of x and a branch: both shortcuts are
          the same tensor, and the outer branch has RMS, largest element and direction of the inner
          sum, to `same` in every capture. The part of x that is added again must be `extra` or
          more.

        All of it waits for `patience` captures: control flow may leave an addition out by chance.

    Example:
        Three blocks: the second lacks its addition, or adds its input twice, or is
        like the others.

            sick     ──┬─────(+)────── F ──────┬─────(+)──    F(x) instead of x + F(x)
                       └─ F ──┘                └─ F ──┘
            sick     ──┬─────(+)──┬──┬─────(+)─(+)──┬─────(+)──    2x + F(x)
                       └─ F ──┘   │  └─ F ──┘   │   └─ F ──┘
                                  └─────────────┘
            healthy  ──┬─────(+)──┬─────(+)──┬─────(+)──    x + F(x) three times
                       └─ F ──┘   └─ F ──┘   └─ F ──┘

    Why it matters:
        A block without its shortcut throws the stream away and replaces it by one branch; what
        earlier blocks computed, and the gradient on its way to them, passes through that branch
        alone (one block of twelve: stream at .29 of its size there, gradient at .32). An input that
        is added twice doubles the stream in every block: 16 blocks gave a factor 7.1e4 and a first
        loss of 3.5e4.
    What to try:
        * look at the return statement of the block named: `return x + f`, once
        * where a helper already returns x + F(x), do not add x in its caller again
        * if the block is meant to be without, allow it with `ignore`
    When it is wrong:
        What is not visible is never called missing: additions without graph, fused or stacked ones,
        and places that `sites` or `exclude` leave out. Blocks that change width or resolution have
        no shortcut by design and differ in the shape of their parameters or of the stream. Plain
        networks on purpose look like residual ones without their additions. A global skip around
        several blocks adds x again by design and is not judged.
    Thresholds:
        * siblings: blocks that must have the addition
        * share: of the siblings that must agree on their number
        * extra: twice: how much of x must be added again
        * same: twice: how exactly the two tensors must agree, relative
    Source:
        Missing: znxlwm/UGATIT-pytorch issue 32. Twice: yakhyo/darknet-pytorch issue 2. The figures
        are those of small reproductions of both on a CPU. Thresholds are argued: the sums of one
        tensor agree to 1e-6 in float32, those of a sum rounded to bfloat16 to 1e-4. An experiment
        with adapters (a branch with an addition of its own) under post-norm showed that the RMS
        alone takes two tensors for one: behind a norm it is 1 everywhere.
    """
    if run is not None and run.intervention:
        raise NotMeasurable(f"an intervention changes the sums: {run.intervention}")
    if len(captures) < gate.patience:
        raise NotMeasurable(f"needs {gate.patience} captures, has {len(captures)}")
    steps = (int(captures[0]), int(captures[-1]))
    counted = _Counted(sites, modules, parameters, siblings, share)
    sizes = (
        rms_shortcut, rms_branch, rms_sum, cosine, growth, max_shortcut, max_branch, max_sum,
    )  # fmt: skip
    yield from either(
        _missing(counted, steps),
        _in_none(counted, steps),
        _twice(sites, sizes, (extra, same), steps),
    )


@dataclass(frozen=True)
class _Counted:
    """The inventory, and how many siblings must agree."""

    sites: SiteMap
    modules: tuple[ModuleClass, ...] | None
    parameters: tuple[Parameter, ...] | None
    siblings: int
    share: float

    def groups(self, uneven: bool) -> list[tuple[Block, ...]]:
        """The siblings among the modules.

        Raises:
            NotMeasurable: modules or parameters were not recorded.
        """
        if not self.modules or not self.parameters:
            raise NotMeasurable("missing: needs the inventory of modules and parameters")
        return list(sibling_blocks(self.modules, self.parameters, uneven))


@dataclass(frozen=True)
class _Lacking:
    """A block with fewer additions than its siblings."""

    block: Block
    usual: int
    having: int  #: siblings with the usual number
    count: int  #: siblings, this one included
    at_end: bool
    sources: tuple[str, ...]  #: lines of the additions that it lacks


def _missing(counted: _Counted, steps: tuple[int, int]) -> Iterator[Hit]:
    found = {
        lacking.block.path: lacking
        for group in counted.groups(uneven=True)
        for lacking in _lacking(group, counted)
    }
    inner = [one for path, one in found.items() if not _holds_another(path, found)]
    together: dict[tuple[object, ...], list[_Lacking]] = {}
    for one in inner:
        key = (one.usual, one.having, one.count, one.at_end, one.sources)
        together.setdefault(key, []).append(one)
    for group in together.values():
        yield _missing_hit(group, counted, steps)


def _holds_another(path: str, found: dict[str, _Lacking]) -> bool:
    return any(other.startswith(f"{path}.") for other in found)


def _lacking(group: Sequence[Block], counted: _Counted) -> Iterator[_Lacking]:
    ((usual, having),) = Counter(block.additions for block in group).most_common(1)
    if having < max(counted.siblings, counted.share * len(group)):
        return
    for at, block in enumerate(group):
        if block.additions >= usual or _hidden(block, counted.sites):
            continue
        at_end = not 0 < at < len(group) - 1
        if at_end or _in_one_stream(group, at, counted.sites):
            yield _Lacking(
                block, usual, having, len(group), at_end, _sources(block, group, counted.sites)
            )


def _hidden(block: Block, sites: SiteMap) -> bool:
    """Whether something in the block, or in a sibling's place, could not be seen.

    One record stands for all places of one line and names the first; so several of them at the
    line of a sibling may be anywhere.
    """
    inside = tuple(u for u in sites.unseen if u.what != _NO_CONNECTION)
    own = [u for u in inside if u.where == block.path or u.where.startswith(f"{block.path}.")]
    lines = {site.source for site in sites.sites}
    return bool(own) or any(u.count > 1 and u.source in lines for u in inside)


def _in_one_stream(group: Sequence[Block], at: int, sites: SiteMap) -> bool:
    """Whether the stream keeps its shape across a block and passes the block's weights.

    A block that ends in a product (a gate from a condition) leads no way back: there a stream of
    its own, which no embedding feeds, begins behind it.
    """
    before = next((s for b in reversed(group[:at]) if (s := within(b.path, sites.block_level))), ())
    after = next((s for b in group[at + 1 :] if (s := within(b.path, sites.block_level))), ())
    if not before or not after or before[-1].shape[1:] != after[0].shape[1:]:
        return False
    own = within(group[at].path, sites.block_level)
    behind = (*own, after[0])
    return any(MATRICES & set(site.link) for site in behind) or any(
        site.depth == 0
        and site.stream != before[-1].stream
        and not sites.streams[site.stream].embedding_fed
        for site in behind
    )


def _sources(block: Block, group: Sequence[Block], sites: SiteMap) -> tuple[str, ...]:
    own = {site.source for site in within(block.path, sites.sites)}
    theirs = dict.fromkeys(s.source for b in group for s in within(b.path, sites.sites))
    return tuple(source for source in theirs if source not in own)


def _missing_hit(group: Sequence[_Lacking], counted: _Counted, steps: tuple[int, int]) -> Hit:
    one = group[0]
    total = sum(lacking.block.additions for lacking in group)
    severity: Severity | None = "info" if one.at_end else None
    where = tuple(lacking.block.path for lacking in group)
    end = ", at the end of the row, where it is often meant" if one.at_end else ""
    return Hit(
        where=where,
        value=float(total),
        expectation=f"{one.usual} a block, as in {one.having} of {one.count} siblings with the "
        "same parts and parameter shapes",
        message=f"{listed(where)}: {total} residual {'addition' if total == 1 else 'additions'} "
        f"where {one.having} of {one.count} sibling blocks have {one.usual} each{end}",
        first_step=steps[0],
        last_step=steps[1],
        severity=severity,
        evidence={"siblings": float(one.count), "siblings with it": float(one.having)},
        cause=f"siblings add at {listed(one.sources, 2)}" if one.sources else "",
    )


def _in_none(counted: _Counted, steps: tuple[int, int]) -> Iterator[Hit]:
    groups = counted.groups(uneven=False)
    if counted.sites.sites or any(u.what != _NO_CONNECTION for u in counted.sites.unseen):
        return
    chosen = [g for g in groups if len(g) > counted.siblings and _looks_residual(g[0], counted)]
    heads = [group[0].path for group in chosen]
    outer = [g for g in chosen if not any(g[0].path.startswith(f"{head}.") for head in heads)]
    if outer:
        blocks = [block for group in outer for block in group]
        where = tuple(block.path for block in blocks)
        kinds = listed(dict.fromkeys(block.kind for block in blocks))
        yield Hit(
            where=where,
            value=0.0,
            expectation="one residual addition or more in each, if they are residual blocks",
            message=f"none of {len(blocks)} sibling blocks ({kinds}: {listed(where)}) has a "
            "residual addition, although each leads back to the width it starts from",
            first_step=steps[0],
            last_step=steps[1],
            evidence={"siblings": float(len(blocks))},
        )


def _looks_residual(block: Block, counted: _Counted) -> bool:
    """Whether a block is built as a branch: from a width through matrices back to that width.

    Convolutions with a norm behind each are built alike in plain nets, so they must begin with
    the norm.
    """
    inside = [p for p in counted.parameters or () if p.name.startswith(f"{block.path}.")]
    matrices = [p.shape for p in inside if len(p.shape) > 1]
    if len(matrices) < 2 or matrices[0][1] != matrices[-1][0]:
        return False
    convolves = any(len(shape) > 2 for shape in matrices)
    norms = any(len(p.shape) == 1 and p.name.endswith("weight") for p in inside)
    return not (convolves and norms) or len(inside[0].shape) == 1


def _twice(
    sites: SiteMap,
    tables: tuple[Table | None, ...],
    limits: tuple[float, float],
    steps: tuple[int, int],
) -> Iterator[Hit]:
    if any(table is None for table in tables):
        raise NotMeasurable("twice: needs the sizes of shortcut, branch and sum")
    sizes = Sizes(*(table for table in tables if table is not None))
    groups: dict[str, list[Doubled]] = {}
    for one in doubled(sites, sizes, *limits):
        groups.setdefault(one.outer.source, []).append(one)
    for source, found in groups.items():
        times = float(np.median([one.growth for one in found]))
        where = tuple(dict.fromkeys(one.block for one in found))
        lines = listed(dict.fromkeys(one.inner.source for one in found), 2)
        yield Hit(
            where=where,
            value=1 + float(np.median([one.extra for one in found])),
            expectation="x added once: the stream then keeps its size but for the branch",
            message=f"x is added twice at {listed(where)}: the branch added at {source} is the "
            f"sum formed at {lines}; the stream grows {short(times)}x a block",
            first_step=steps[0],
            last_step=steps[1],
            evidence={"growth": times, "blocks": float(len(where))},
            cause=f"{lines} already returns x + F(x), and {source} adds x again",
        )
