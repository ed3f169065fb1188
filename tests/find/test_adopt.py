"""Sites that only another rank has passed are taken in from its site map."""

from __future__ import annotations

from skipscope.find import SiteRegistry
from skipscope.records import Site, SiteMap, Stream
from tests.offline.builders import make_site


def a_map(*sites: Site) -> SiteMap:
    line = tuple(site.index for site in sites if not site.nested)
    return SiteMap(sites, (Stream(0, line, embedding_fed=True, pure=True),))


def place(index: int, block: int, **changes: object) -> Site:
    name = f"blocks.{block}"
    return make_site(index, **{"name": name, "module": name, **changes})


def test_a_place_of_another_rank_is_put_where_it_follows() -> None:
    registry = SiteRegistry()
    registry.adopt(a_map(place(0, 0), place(1, 2)))
    inner = {"nested": True, "module": "blocks.1.attention", "depth": 1}
    other = a_map(place(0, 0), place(1, 1), place(2, 1, **inner), place(3, 2))
    registry.adopt(other)
    merged = registry.site_map((), {}, {})
    assert [site.module for site in merged.sites] == [  # in the order in which they became known
        "blocks.0",
        "blocks.2",
        "blocks.1",
        "blocks.1.attention",
    ]
    (stream,) = merged.streams
    assert stream.sites == (0, 2, 1)
    assert stream.embedding_fed
    assert [(site.depth, site.nested) for site in merged.sites] == [
        (0, False),
        (2, False),
        (1, False),
        (1, True),
    ]


def test_what_is_known_stays() -> None:
    registry = SiteRegistry()
    registry.adopt(a_map(place(0, 0, kind="identity", shape=(4, 8, 16))))
    before = registry.site_map((), {}, {})
    registry.adopt(a_map(place(0, 0, kind="projection", shape=(2, 8, 16))))
    assert registry.site_map((), {}, {}) == before
