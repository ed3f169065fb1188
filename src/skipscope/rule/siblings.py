"""Where a site stands: its stage, its position in it, its block, its role, its branch's parameters.

Rules compare a site with its siblings. Nothing here knows a model family: a role is read off what
the site map holds (module path with its numbers taken out, line of code, parameters of the branch).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from skipscope.records import Parameter, Site, SiteMap

Role = tuple[str, str, str, str, frozenset[str], int]


@dataclass(frozen=True)
class Stage:
    """The block-level sites of one stream that share a shape: where the laws of depth hold."""

    stream: int
    stage: int
    sites: tuple[Site, ...]  #: along depth; the position k of a law is the place in this tuple
    exempt: frozenset[int]  #: indices of sites that no rule but RES102 judges
    where: str  #: "model" when the model has one stream, else the longest common module path

    @property
    def name(self) -> str:
        """Its column in the tables of stages."""
        return f"stream {self.stream} stage {self.stage}"

    @cached_property
    def judged(self) -> tuple[tuple[int, Site], ...]:
        """Position k and site, without the exempt ones and the projections."""
        return tuple(
            (k, site)
            for k, site in enumerate(self.sites)
            if site.index not in self.exempt and site.kind != "projection"
        )

    @cached_property
    def post_norm(self) -> bool:
        """Whether most of its sites are followed by a norm on the stream."""
        return 2 * sum(site.norm_placement == "post-norm" for site in self.sites) > len(self.sites)

    @cached_property
    def rescaled(self) -> bool:
        """Whether most of its sites bring the stream back to a size, so that r keeps its own.

        By a norm behind the sum, or by a factor on the shortcut or the sum, as in (x + F)/sqrt(2).
        """
        scales = sum(site.kind == "scaled" or "scale" in site.link for site in self.sites)
        return self.post_norm or 2 * scales > len(self.sites)


@cache
def without_numbers(path: str) -> str:
    """A path with every number replaced, equal for siblings.

    >>> without_numbers("layer2.10.conv1")
    'layer#.#.conv#'
    """
    return re.sub(r"\d+", "#", path)


def common_path(paths: Iterable[str]) -> str:
    """The longest module path that holds all `paths`, `model` when that is the whole model.

    >>> common_path(["encoder.0.fc", "encoder.1.fc"])
    'encoder'
    """
    split = [path.split(".") for path in paths]
    shared: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared) or "model"


def blocks(sites: Sequence[Site]) -> dict[int, str]:
    """The block of each site of one stream: its index to a key that the sites of a block share.

    Below the path that all sites share, a block ends at the first component that is a number
    (`h.3` of `h.3.mlp`). Where one module makes all the sites, its calls are the blocks.
    """
    paths = [site.module for site in sites]
    shared = common_path(paths)
    depth = 0 if shared == "model" else len(shared.split("."))
    if len(set(paths)) == 1:
        return {site.index: f"{site.module}#{site.occurrence}" for site in sites}
    found = {}
    for site in sites:
        parts = site.module.split(".")
        ends = [i for i in range(depth, len(parts)) if parts[i].isdigit()]
        found[site.index] = ".".join(parts[: (ends[0] if ends else depth) + 1])
    return found


def streams(sites: SiteMap) -> dict[int, tuple[Site, ...]]:
    """The block-level sites of each stream along depth."""
    found: dict[int, list[Site]] = {}
    for site in sites.block_level:
        found.setdefault(site.stream, []).append(site)
    return {stream: tuple(members) for stream, members in found.items()}


def stages(sites: SiteMap) -> tuple[Stage, ...]:
    """The stages of every stream, with the sites that the rules leave out.

    Left out are the first site of a stream or stage and, where the stream starts at an embedding,
    every site of its first block: there the stream is still small, by design.
    """
    fed = {stream.index for stream in sites.streams if stream.embedding_fed}
    by_stream = streams(sites)
    found = []
    for stream, members in by_stream.items():
        exempt = set()
        if stream in fed:
            block = blocks(members)
            exempt = {s.index for s in members if block[s.index] == block[members[0].index]}
        where = "model" if len(by_stream) == 1 else common_path(s.module for s in members)
        grouped: dict[int, list[Site]] = {}
        for site in members:
            grouped.setdefault(site.stage, []).append(site)
        for number, inside in grouped.items():
            left_out = frozenset(exempt | {inside[0].index})
            found.append(Stage(stream, number, tuple(inside), left_out, where))
    return tuple(found)


def roles(members: Sequence[Site]) -> dict[int, Role]:
    """What the sites of one stream have in common with their siblings: index to role.

    Same line of code, same place of the norm, same kind of shortcut, same names (numbers taken
    out) of the module and of the branch's parameters, same position inside the block.
    """
    one_module = len({site.module for site in members}) == 1
    return {
        site.index: (
            without_numbers(site.module),
            site.source,
            site.kind,
            site.norm_placement,
            frozenset(without_numbers(name) for name in site.parameters),
            0 if one_module else site.occurrence,
        )
        for site in members
    }


def of_branch(site: Site, parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """The parameters of a site's branch, frozen ones too (autograd does not see those)."""
    table = _Table.of(parameters)
    own = {*table.of_site.get(site.index, ())}
    own |= {table.at[name] for name in site.parameters if name in table.at}
    return tuple(parameters[at] for at in sorted(own or table.inside(site.module)))


class _Table:
    """Where the parameters stand, by site and by name; read once for all sites of a model."""

    latest: _Table | None = None

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = parameters
        self.at = {parameter.name: at for at, parameter in enumerate(parameters)}
        self.names = sorted(self.at)
        self.of_site: dict[int, list[int]] = {}
        for at, parameter in enumerate(parameters):
            for site in parameter.sites:
                self.of_site.setdefault(site, []).append(at)

    @classmethod
    def of(cls, parameters: Sequence[Parameter]) -> _Table:
        """The table of these parameters; that of the last ones is kept."""
        if cls.latest is None or cls.latest.parameters is not parameters:
            cls.latest = cls(parameters)
        return cls.latest

    def inside(self, module: str) -> list[int]:
        """The parameters inside a module."""
        if not module:
            return []
        first = bisect_left(self.names, f"{module}.")
        behind = bisect_left(self.names, f"{module}/")  # "/" follows "."
        return [self.at[name] for name in self.names[first:behind]]


def parameter_role(parameter: Parameter) -> str:
    """Equal for the same weight of sibling blocks."""
    return parameter.role or without_numbers(parameter.name)


def by_name(sites: SiteMap) -> Mapping[str, Site]:
    """Site name to site: the columns of a site table."""
    return {site.name: site for site in sites.sites}
