"""Streams and stages as chains of sites: what every profile along depth is taken over."""

from __future__ import annotations

from typing import NamedTuple

from skipscope.records import SiteMap


class Chain(NamedTuple):
    """Block-level sites of a stream, or of one stage of it, along depth."""

    name: str  #: "stream 0" or "stream 0 stage 1"
    stream: int
    stage: int | None
    sites: tuple[int, ...]  #: indices
    counted: tuple[bool, ...]  #: not the first of a stage, nor of the first two behind an embedding


def chains(sites: SiteMap, by_stage: bool = False) -> tuple[Chain, ...]:
    """The streams of a site map, or their stages."""
    fed = {stream.index for stream in sites.streams if stream.embedding_fed}
    members: dict[tuple[int, int | None], list[tuple[int, bool]]] = {}
    place: dict[int, int] = {}  # how many sites of a stream came before
    stages: set[tuple[int, int]] = set()
    for site in sites.block_level:
        before = place.get(site.stream, 0)
        place[site.stream] = before + 1
        first = (site.stream, site.stage) not in stages
        stages.add((site.stream, site.stage))
        counted = not first and not (before < 2 and site.stream in fed)
        key = (site.stream, site.stage if by_stage else None)
        members.setdefault(key, []).append((site.index, counted))
    return tuple(
        Chain(
            f"stream {stream}" + ("" if stage is None else f" stage {stage}"),
            stream,
            stage,
            tuple(index for index, _ in held),
            tuple(counted for _, counted in held),
        )
        for (stream, stage), held in members.items()
    )
