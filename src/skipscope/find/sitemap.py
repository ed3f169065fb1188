"""From the additions of a forward to the site map: names, streams, stages, nesting, placement."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from skipscope.find.discover import Found
from skipscope.find.graph import Branch
from skipscope.find.vocabulary import MATRIX, Op
from skipscope.records import ModuleClass, NormPlacement, Site, SiteMap, Stream, Unseen

_REASONS = {
    "gate": "multiplied by something computed from the data: a gate, not a shortcut",
    "concatenation": "concatenated, not added",
    "fused": "the branch is formed inside the addition's kernel",
    "stack-sum": "stacked and summed: the branch is not an operand",
    "no graph": "it ran under no_grad (a reentrant checkpoint, a teacher): no graph to follow",
    "unrelated": "shapes differ and neither operand descends from the other",
}
Key = tuple[str, str, int]


class SiteRegistry:
    """Gives every place of a residual addition its index, once."""

    def __init__(self) -> None:
        self._index: dict[Key, int] = {}
        self._sites: dict[int, Site] = {}

    def index(self, key: Key) -> int:
        """The index of a place, given now if it is new."""
        return self._index.setdefault(key, len(self._index))

    def site_map(
        self,
        found: Iterable[Found],
        unseen: Mapping[tuple[str, str, str], int],
        called: Mapping[str, str],
    ) -> SiteMap:
        """The map after one more forward; places that were not passed this time stay as known."""
        members = list(found)
        nested = _nested(members)
        streams = _streams([f for f in members if id(f) not in nested])
        sites = _sites(members, nested, streams, self.index)
        self._sites.update({site.index: site for site in sites})
        ordered = _with_names([self._sites[index] for index in sorted(self._sites)])
        self._sites = {site.index: site for site in ordered}
        return SiteMap(
            sites=tuple(ordered),
            streams=_stream_records(streams, self.index),
            unseen=_unseen(unseen, ordered),
            modules=_inventory(called, ordered),
        )


def _nested(members: list[Found]) -> set[int]:
    """Ids of the sites inside another site's branch.

    A long skip over a chain of blocks does not make the chain nested: there the blocks are the
    block level, and the skip is one more residual addition around them.
    """
    nested: set[int] = set()
    for outer in members:
        chained = {id(f.previous) for f in outer.inside} & {id(f) for f in outer.inside}
        if not chained:
            nested |= {id(f) for f in outer.inside}
    return nested


def _streams(block_level: list[Found]) -> list[list[Found]]:
    """Chains of sites; a second reader of one sum starts a chain of its own."""
    chains: list[list[Found]] = []
    end_of: dict[int, list[Found]] = {}
    for found in block_level:
        chain = end_of.pop(id(found.previous), None) if found.previous is not None else None
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(found)
        end_of[id(found)] = chain
    return chains


def _sites(
    members: list[Found],
    nested: set[int],
    streams: list[list[Found]],
    index: Callable[[Key], int],
) -> list[Site]:
    position = {
        id(found): (stream, depth)
        for stream, chain in enumerate(streams)
        for depth, found in enumerate(chain)
    }
    host = {id(inner): outer for outer in members for inner in outer.inside if id(inner) in nested}
    stages = {id(f): stage for chain in streams for f, stage in zip(chain, _stages(chain))}
    following = {id(a): b for chain in streams for a, b in zip(chain, chain[1:])}
    sites = []
    for found in members:
        level = found
        while id(level) not in position:
            level = host[id(level)]
        stream, depth = position[id(level)]
        sites.append(
            Site(
                index=index(found.key),
                depth=depth,
                name=found.module or "model",
                module=found.module,
                source=found.source,
                occurrence=found.occurrence,
                kind=found.relation.kind,
                broadcast=found.broadcast,
                alpha=found.alpha,
                shortcut_source=_source(found),
                shortcut_path=tuple(op.value for op in found.relation.path),
                stream=stream,
                stage=stages[id(level)],
                link=tuple(op.value for op in found.link),
                norm_placement=_placement(found, following.get(id(found))),
                nested=id(found) in nested,
                parallel=found.parallel,
                other_readers=found.other_readers,
                shape=found.shape,
                rows=found.rows,
                shortcut_dtype=found.dtypes[0],
                branch_dtype=found.dtypes[1],
                parameters=found.parameters,
            )
        )
    return sites


def _source(found: Found) -> str:
    if found.relation.detached:
        return "detached"
    return "rewritten" if found.rewritten else "same"


def _stages(chain: list[Found]) -> list[int]:
    """A new stage begins where the shape (without the batch) changes."""
    stages = [0]
    for before, after in zip(chain, chain[1:]):
        stages.append(stages[-1] + (before.shape[1:] != after.shape[1:]))
    return stages


def _placement(found: Found, following: Found | None) -> NormPlacement:
    opening, closing = _ends(found.relation.branch)
    if _has_norm(opening):
        if Op.ACTIVATION in opening:
            return "pre-activation"
        return "sandwich" if _has_norm(closing) else "pre-norm"
    after = set(following.link if following is not None else found.link)
    if Op.ACTIVATION in after:
        return "post-activation"
    if Op.NORM in after:
        return "post-norm"
    return "branch-norm" if _has_norm(closing) else "none"


def _ends(branch: Branch) -> tuple[set[Op], set[Op]]:
    """The operations before the first weight matrix of a branch and after the last."""
    matrices = [number for number, node in branch.nodes.items() if node.op in MATRIX]
    if not matrices:
        return set(), set()
    first, last = min(matrices), max(matrices)
    opening = {node.op for number, node in branch.nodes.items() if number < first}
    closing = {node.op for number, node in branch.nodes.items() if number > last}
    return opening, closing


def _has_norm(ops: set[Op]) -> bool:
    return Op.NORM in ops or Op.MOMENT in ops


def _with_names(sites: list[Site]) -> list[Site]:
    """Readable unique names: the module path, then the branch's first part, then a number."""
    by_module: dict[str, list[Site]] = defaultdict(list)
    for site in sites:
        by_module[site.module].append(site)
    named: dict[int, str] = {}
    for module, members in by_module.items():
        base = module or "model"
        labels = [_label(site) for site in members]
        repeated = Counter(labels)
        seen: Counter[str] = Counter()
        for site, label in zip(members, labels):
            seen[label] += 1
            name = base if len(members) == 1 else f"{base}/{label}" if label else base
            if repeated[label] > 1:
                name = f"{name}/{seen[label]}"
            named[site.index] = name
    return [replace(site, name=named[site.index]) for site in sites]


def _label(site: Site) -> str:
    """The first child of the site's module that the branch's parameters belong to."""
    prefix = f"{site.module}." if site.module else ""
    children = [
        name.removeprefix(prefix).split(".")[0]
        for name in site.parameters
        if name.startswith(prefix)
    ]
    norms = ("norm", "ln", "bn")
    telling = [child for child in children if not child.lower().startswith(norms)]
    return (telling or children or [""])[-1]


def _stream_records(
    streams: list[list[Found]], index: Callable[[Key], int]
) -> tuple[Stream, ...]:
    return tuple(
        Stream(
            index=number,
            sites=tuple(index(found.key) for found in chain),
            embedding_fed=chain[0].embedding_fed,
            pure=all(not found.link for found in chain[1:]),
        )
        for number, chain in enumerate(streams)
    )


def _unseen(unseen: Mapping[tuple[str, str, str], int], sites: list[Site]) -> tuple[Unseen, ...]:
    """One record for each kind and line; a place that is measured as well is not unseen."""
    measured = {(site.module, site.source) for site in sites}
    grouped: dict[tuple[str, str], tuple[str, int]] = {}
    for (what, where, source), count in unseen.items():
        if what == "no graph" and (where, source) in measured:
            continue
        first, total = grouped.get((what, source), (where, 0))
        grouped[what, source] = (first, total + count)
    return tuple(
        Unseen(what, where, source, count, _REASONS[what])  # type: ignore[arg-type]
        for (what, source), (where, count) in grouped.items()
    )


def _inventory(called: Mapping[str, str], sites: list[Site]) -> tuple[ModuleClass, ...]:
    """The called modules by class, with the additions in each one's own code."""
    additions = Counter(site.module for site in sites)
    by_class: dict[str, list[str]] = defaultdict(list)
    for path, name in called.items():
        by_class[name].append(path)
    return tuple(
        ModuleClass(name, tuple(paths), tuple(additions[path] for path in paths))
        for name, paths in by_class.items()
    )
