"""From the additions of a forward to the site map: names, streams, stages, nesting, placement."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from skipscope.find.found import Found
from skipscope.find.names import with_names
from skipscope.find.node import Branch
from skipscope.find.order import in_order
from skipscope.find.vocabulary import MATRIX, Op
from skipscope.records import (
    Key,
    ModuleClass,
    NormPlacement,
    ShortcutSource,
    Site,
    SiteMap,
    Stream,
    Unseen,
)

_REASONS = {
    "gate": "multiplied by something computed from the data: a gate, not a shortcut",
    "concatenation": "concatenated, not added",
    "fused": "the branch is formed inside the addition's kernel",
    "stack-sum": "stacked and summed: the branch is not an operand",
    "no graph": "it ran under no_grad (a reentrant checkpoint, a teacher): no graph to follow",
    "transform": "it ran inside a transform of torch.func (vmap, grad): no numbers of one tensor",
    "not watched": "named in sites=, but input and output are no tensors of one shape",
    "left out": "a residual addition that sites= or exclude= leaves out",
    "unrelated": "shapes differ and neither operand descends from the other",
}


class SiteRegistry:
    """The sites of a run, forward after forward.

    A place of an addition gets its index once. Streams keep their order when a forward leaves
    places out (LayerDrop): what was seen to follow on what decides, and where nothing was, the
    numbers in module paths.
    """

    def __init__(self) -> None:
        self._index: dict[Key, int] = {}
        self._sites: dict[int, Site] = {}
        self._streams: list[list[int]] = []
        self._follow: set[tuple[int, int]] = set()  # pairs that were seen behind each other
        self._fed: dict[
            int, bool
        ] = {}  # whether a stream that starts there comes from an embedding

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
        hosts = _hosts(members)
        chains = _chains([f for f in members if id(f) not in hosts])
        for chain in chains:
            self._merge([self.index(member.key) for member in chain])
        following = {id(a): b for chain in chains for a, b in pairwise(chain)}
        for member in members:
            self._update(_site(member, self.index(member.key), hosts, following))
        self._place({self.index(f.key): self.index(h.key) for f, h in _outermost(hosts, members)})
        ordered = with_names([self._sites[index] for index in sorted(self._sites)])
        return SiteMap(
            sites=tuple(ordered),
            streams=tuple(self._stream_records(chains)),
            unseen=_unseen(unseen, ordered),
            modules=_inventory(called, ordered),
        )

    def adopt(self, other: SiteMap) -> None:
        """Takes in the places that only another rank has passed; those known here stay."""
        index_of = {site.index: self.index(site.key) for site in other.sites}
        known = set(self._sites)
        for stream in other.streams:
            if stream.sites:
                self._merge([index_of[index] for index in stream.sites])
                self._fed.setdefault(index_of[stream.sites[0]], stream.embedding_fed)
        for site in other.sites:
            if index_of[site.index] not in known:
                self._update(replace(site, index=index_of[site.index]))
        hosts = {(site.stream, site.depth): site.index for site in other.block_level}
        self._place(
            {
                index_of[site.index]: index_of[hosts[site.stream, site.depth]]
                for site in other.sites
                if site.nested and index_of[site.index] not in known
            }
        )

    def _merge(self, chain: list[int]) -> None:
        """Takes a chain of this forward into the stream that it belongs to."""
        parts = [s for s in self._streams if not set(chain).isdisjoint(s)]
        if not parts:
            self._streams.append([])
        stream, *others = parts or self._streams[-1:]
        known = len(stream), len(self._follow)
        for other in others:  # what was never passed together before turns out to be one stream
            stream += other
            self._streams.remove(other)
        self._follow.update(pairwise(chain))
        held = set(stream)
        stream += [index for index in chain if index not in held]
        if known != (len(stream), len(self._follow)):
            modules = [module for module, _, _ in self._index]
            stream.sort(key=lambda index: (_numbers(modules[index]), index))
            stream[:] = in_order(stream, self._follow)

    def _update(self, site: Site) -> None:
        known = self._sites.get(site.index, site)
        # The shape is that of the discovery; other readers are looked for once.
        readers = known.other_readers or site.other_readers
        self._sites[site.index] = replace(site, shape=known.shape, other_readers=readers)

    def _place(self, host_of: Mapping[int, int]) -> None:
        """Sets stream, depth and stage: of block-level sites by order, of nested ones by host."""
        for number, stream in enumerate(self._streams):
            stages = _stages([self._sites[index].shape for index in stream])
            for depth, (index, stage) in enumerate(zip(stream, stages, strict=True)):
                site = self._sites[index]
                self._sites[index] = replace(site, stream=number, depth=depth, stage=stage)
        for index, host in host_of.items():
            at = self._sites[host]
            site = self._sites[index]
            self._sites[index] = replace(site, stream=at.stream, depth=at.depth, stage=at.stage)

    def _stream_records(self, chains: list[list[Found]]) -> Iterator[Stream]:
        for chain in chains:
            self._fed.setdefault(self.index(chain[0].key), chain[0].embedding_fed)
        for number, stream in enumerate(self._streams):
            yield Stream(
                index=number,
                sites=tuple(stream),
                embedding_fed=self._fed.get(stream[0], False),
                pure=all(not self._sites[index].link for index in stream[1:]),
            )


def _numbers(path: str) -> tuple[int, ...]:
    """The numbers in a module path, by which siblings are called mostly."""
    return tuple(int(part) for part in path.split(".") if part.isdigit())


def _hosts(members: list[Found]) -> dict[int, Found]:
    """For each site inside another site's branch, that other site, by id.

    A long skip over a chain of blocks does not make the chain nested: there the blocks are the
    block level, and the skip is one more residual addition around them.
    """
    hosts: dict[int, Found] = {}
    for outer in members:
        chained = {id(f.previous) for f in outer.inside} & {id(f) for f in outer.inside}
        if not chained:
            hosts.update({id(inner): outer for inner in outer.inside})
    return hosts


def _outermost(hosts: dict[int, Found], members: list[Found]) -> Iterator[tuple[Found, Found]]:
    """Each nested site with the block-level site that it is part of."""
    for found in members:
        if id(found) in hosts:
            host = hosts[id(found)]
            while id(host) in hosts:
                host = hosts[id(host)]
            yield found, host


def _chains(block_level: list[Found]) -> list[list[Found]]:
    """Sites that follow on each other; a second reader of one sum starts a chain of its own."""
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


def _site(
    found: Found, index: int, hosts: Mapping[int, Found], following: Mapping[int, Found]
) -> Site:
    """A site's record; its stream, depth, stage and name come later, from all of them."""
    return Site(
        index=index,
        depth=0,
        name=found.module or "model",
        module=found.module,
        source=found.source,
        occurrence=found.occurrence,
        kind=found.kind,
        broadcast=found.broadcast,
        alpha=found.alpha,
        shortcut_source=_source(found),
        shortcut_path=tuple(op.value for op in found.relation.path),
        stream=0,
        stage=0,
        link=tuple(op.value for op in found.link),
        norm_placement=_placement(found, following.get(id(found))),
        nested=id(found) in hosts,
        parallel=found.parallel,
        other_readers=found.other_readers,
        shape=found.shape,
        rows=found.rows,
        shortcut_dtype=found.dtypes[0],
        branch_dtype=found.dtypes[1],
        parameters=found.parameters,
        watched=found.watched,
    )


def _source(found: Found) -> ShortcutSource:
    if found.relation.detached:
        return "detached"
    return "rewritten" if found.rewritten else "same"


def _stages(shapes: list[tuple[int, ...]]) -> list[int]:
    """A new stage begins where the shape (without the batch) changes.

    >>> _stages([(2, 7, 32), (14, 32), (2, 7, 64)])  # the second: all tokens as rows
    [0, 0, 1]
    """
    stages = [0]
    for before, after in pairwise(shapes):
        stages.append(stages[-1] + (not _are_alike(before, after)))
    return stages


def _are_alike(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    if len(one) == len(other):
        return one[1:] == other[1:]
    return one[-1:] == other[-1:] and math.prod(one) == math.prod(other)


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


def _unseen(unseen: Mapping[tuple[str, str, str], int], sites: list[Site]) -> tuple[Unseen, ...]:
    """One record for each kind and line; a place that is measured as well is not unseen."""
    measured = {(site.module, site.source) for site in sites}
    grouped: dict[tuple[str, str], tuple[str, int]] = {}
    for (what, where, source), count in unseen.items():
        if what in ("no graph", "transform") and (where, source) in measured:
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
