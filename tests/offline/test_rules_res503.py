"""RES503: a shortcut that is missing, missing everywhere, or there twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from skipscope.history import Table
from skipscope.records import ModuleClass, Parameter, Run, Site, SiteMap, Unseen
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_history, make_map, make_parameter, make_site

RULE = RULES["RES503"]
TABLES = (
    "rms_shortcut", "rms_branch", "rms_sum", "cosine", "growth", "max_shortcut", "max_branch",
    "max_sum",
)  # fmt: skip


def parameters(count: int, widths: Sequence[int] = (), kernel: tuple[int, ...] = ()) -> Any:
    """A norm and two matrices a block, from a width back to that width."""
    made: list[Parameter] = []
    for k in range(count):
        width = widths[k] if widths else 16
        for part, shape in (
            ("ln.weight", (width,)),
            ("fc1.weight", (2 * width, width, *kernel)),
            ("fc2.weight", (width, 2 * width, *kernel)),
        ):
            made.append(make_parameter(len(made), name=f"blocks.{k}.{part}", shape=shape))
    return tuple(made)


def inventory(additions: Sequence[int], uncalled: Sequence[int] = ()) -> tuple[ModuleClass, ...]:
    paths = tuple(f"blocks.{k}" for k in range(len(additions)))
    called = [path for k, path in enumerate(paths) if k not in uncalled]
    linear = tuple(f"{path}.{part}" for path in called for part in ("fc1", "fc2"))
    return (
        ModuleClass("Net", ("",), (0,)),
        ModuleClass("Block", paths, tuple(additions)),
        ModuleClass("Linear", linear, (0,) * len(linear)),
    )


def lacking(
    additions: Sequence[int], link: tuple[str, ...] = ("norm", "linear"), **changes: Any
) -> SiteMap:
    """A chain whose sites are those of the inventory; behind a gap the link holds its weights."""
    sites: list[Site] = []
    for k, count in enumerate(additions):
        gap = k > 0 and additions[k - 1] < max(additions)
        for j in range(count):
            sites.append(
                make_site(
                    len(sites), name=f"blocks.{k}/{j}", module=f"blocks.{k}", source=f"net.py:{j}",
                    link=link if gap and j == 0 else (),
                )
            )  # fmt: skip
    return make_map(*sites, modules=inventory(additions), **changes)


def look(sites: SiteMap, held: Any = None, captures: int = 3, **more: Any) -> tuple[Hit, ...]:
    count = sum(len(m.paths) for m in sites.modules if m.name == "Block")
    values = {
        "sites": sites,
        "captures": np.arange(captures),
        "parameters": parameters(count) if held is None else held,
    }
    return RULE.run({**values, **more})


ONE_OF_TWELVE = [1] * 5 + [0] + [1] * 6


def test_one_block_of_twelve() -> None:
    (hit,) = look(lacking(ONE_OF_TWELVE))
    assert hit.where == ("blocks.5",)
    assert hit.severity is None
    assert "11 of 12" in hit.message
    assert "net.py:0" in hit.cause


def test_two_neighbours_are_one_finding() -> None:
    (hit,) = look(lacking([1, 1, 1, 0, 0, 1, 1, 1, 1]))
    assert hit.where == ("blocks.3", "blocks.4")


def test_one_of_the_two_additions_of_a_block() -> None:
    (hit,) = look(lacking([2, 2, 1, 2, 2, 2]))
    assert hit.where == ("blocks.2",)
    assert hit.value == 1
    assert "net.py:1" in hit.cause


def test_a_variant_class_is_a_sibling_all_the_same() -> None:
    sites = lacking(ONE_OF_TWELVE)
    net, block, linear = sites.modules
    kept = [k for k in range(12) if k != 5]
    split = (
        net,
        ModuleClass("Block", tuple(block.paths[k] for k in kept), (1,) * 11),
        ModuleClass("PlainBlock", ("blocks.5",), (0,)),
        linear,
    )
    (hit,) = look(replace(sites, modules=split), parameters(12))
    assert hit.where == ("blocks.5",)


@pytest.mark.parametrize("at", [0, 11])
def test_first_and_last_are_information(at: int) -> None:
    (hit,) = look(lacking([int(k != at) for k in range(12)]))
    assert hit.where == (f"blocks.{at}",)
    assert hit.severity == "info"


def test_first_and_last_of_another_width_are_silent() -> None:
    assert not look(lacking([0, *[1] * 10, 0]), parameters(12, (8, *[16] * 10, 32)))


def test_blocks_that_change_the_width_are_no_siblings() -> None:
    """Inverted residuals: no shortcut where width or resolution changes."""
    assert not look(lacking(ONE_OF_TWELVE), parameters(12, [16] * 5 + [24] + [16] * 6))


def test_a_change_of_resolution_between_equal_widths_is_silent() -> None:
    sites = lacking(ONE_OF_TWELVE)
    half = [replace(s, shape=(4, 4, 16)) if s.index > 4 else s for s in sites.sites]
    assert not look(replace(sites, sites=tuple(half)))


def test_a_block_beside_the_stream_is_silent() -> None:
    """The next x is the sum before: nothing stands between. Excluded blocks look so, too."""
    assert not look(lacking(ONE_OF_TWELVE, link=()))


@pytest.mark.parametrize("embedding_fed", [False, True])
def test_a_stream_that_begins_behind_the_block(embedding_fed: bool) -> None:
    """A product of two operands (adaLN's gate) leads no way back; an embedding is another net."""
    sites = [
        replace(s, stream=int(s.index > 4), depth=s.depth - 5 * (s.index > 4))
        for s in lacking(ONE_OF_TWELVE, link=()).sites
    ]
    found = make_map(*sites, embedding_fed=embedding_fed, modules=inventory(ONE_OF_TWELVE))
    assert len(look(found)) == (not embedding_fed)


def test_a_stream_that_begins_within_the_block() -> None:
    """The first of its two additions is absent; the second starts a stream of its own."""
    additions = [2, 2, 1, 2, 2, 2]
    sites = [
        replace(s, stream=int(s.index > 3), depth=s.depth - 4 * (s.index > 3))
        for s in lacking(additions, link=()).sites
    ]
    (hit,) = look(make_map(*sites, modules=inventory(additions)))
    assert hit.where == ("blocks.2",)


@pytest.mark.parametrize(
    "what", ["no graph", "fused", "stack-sum", "gate", "concatenation", "left out"]
)
def test_not_visible_is_never_missing(what: Any) -> None:
    inside = Unseen(what, "blocks.5", "net.py:9", 1, "because")
    assert not look(lacking(ONE_OF_TWELVE, unseen=(inside,)))
    same_line = Unseen(what, "blocks.3", "net.py:0", 2, "because")
    assert not look(lacking(ONE_OF_TWELVE, unseen=(same_line,)))
    elsewhere = Unseen(what, "head", "net.py:50", 1, "because")
    assert look(lacking(ONE_OF_TWELVE, unseen=(elsewhere,)))


def test_a_block_dropped_by_chance_did_not_call_its_parts() -> None:
    sites = replace(lacking(ONE_OF_TWELVE), modules=inventory(ONE_OF_TWELVE, uncalled=(5,)))
    assert not look(sites, parameters(12))


def test_siblings_must_be_enough_and_agree() -> None:
    assert look(lacking([1, 0, 1, 1]))
    assert not look(lacking([1, 0, 1]))  # two siblings
    assert not look(lacking([1, 0] * 6))  # every second: by design


def test_patience() -> None:
    with pytest.raises(NotMeasurable, match="needs 3 captures, has 2"):
        look(lacking(ONE_OF_TWELVE), captures=2)


def test_the_innermost_module_is_named() -> None:
    sites = lacking(ONE_OF_TWELVE)
    inner = tuple(replace(s, module=f"{s.module}.att") for s in sites.sites)
    net, block, _ = sites.modules
    nested = (
        net,
        ModuleClass("Block", block.paths, (0,) * 12),
        ModuleClass("Attention", tuple(f"{path}.att" for path in block.paths), block.additions),
    )
    held = tuple(make_parameter(k, name=f"blocks.{k}.att.weight") for k in range(12))
    (hit,) = look(replace(sites, sites=inner, modules=nested), held)
    assert hit.where == ("blocks.5.att",)


# ------------------------------------------------------------------ in none of them
def none(count: int = 12, **changes: Any) -> SiteMap:
    return SiteMap(modules=inventory([0] * count), **changes)


def test_none_of_twelve() -> None:
    (hit,) = look(none())
    assert hit.where == tuple(f"blocks.{k}" for k in range(12))
    assert hit.severity is None
    assert not look(none(3))
    assert look(none(4))


@pytest.mark.parametrize("what", ["gate", "concatenation", "no graph", "fused"])
def test_connections_of_another_kind_are_silent(what: Any) -> None:
    assert not look(none(unseen=(Unseen(what, "blocks.0", "net.py:1", 12, "because"),)))


def test_plain_nets_are_silent() -> None:
    matrix = tuple(make_parameter(k, name=f"blocks.{k}.fc1.weight") for k in range(12))
    assert not look(none(), matrix)  # one matrix a block
    widening = parameters(12, [2**k for k in range(12)])
    assert not look(none(), widening)
    kernels = parameters(12, kernel=(3, 3))
    behind = tuple(sorted(kernels, key=lambda p: ("ln" in p.name, p.index)))
    assert not look(none(), behind)  # convolutions with their norm behind them
    assert look(none(), kernels)  # the norm first: built as a branch


# ------------------------------------------------------------------ twice
def tables(sites: SiteMap, r: Any, **numbers: Any) -> dict[str, Table]:
    history = make_history(np.tile(r, (3, 1)), sites=sites, **numbers)
    return {name: history.table(name) for name in TABLES}


def twice(r: float = 0.25, cosine: float = 0.1, factor: float = 1.0, count: int = 3) -> Any:
    """`x + factor*(x + F)` in each block: outer and inner addition alternate."""
    sites, ratio, c, shortcut = [], [], [], []
    growth = np.sqrt(1 + 2 * r * cosine + r**2)
    for k in range(count):
        x = 2.0**k
        sites += [
            make_site(2 * k, name=f"blocks.{k}/1", module=f"blocks.{k}", depth=k),
            make_site(2 * k + 1, name=f"blocks.{k}/2", module=f"blocks.{k}", depth=k, nested=True,
                      source="net.py:7"),
        ]  # fmt: skip
        ratio += [factor * growth, r]
        c += [(1 + r * cosine) / growth, cosine]
        shortcut += [x, x]
    known = make_map(*sites)
    return known, tables(known, ratio, cosine=c, shortcut_rms=[shortcut] * 3)


def test_twice_in_every_block() -> None:
    sites, more = twice()
    (hit,) = look(sites, (), **more)
    assert hit.where == ("blocks.0", "blocks.1", "blocks.2")
    assert hit.severity is None
    assert hit.value == pytest.approx(2, rel=0.05)
    assert "net.py:7 already returns x + F(x)" in hit.cause


def test_a_zero_branch_is_added_twice_all_the_same() -> None:
    sites, more = twice(r=0.0, cosine=0.0)
    assert look(sites, (), **more)


@pytest.mark.parametrize(("factor", "found"), [(0.5, 1), (0.31, 1), (0.25, 0), (1e-5, 0)])
def test_a_scaled_block_around_a_block(factor: float, found: int) -> None:
    """LayerScale around a whole block adds next to nothing of x."""
    sites, more = twice(factor=factor)
    assert len(look(sites, (), **more)) == found


def test_the_caller_adds_x_again() -> None:
    sites, more = twice()
    moved = [replace(s, module="") if not s.nested else s for s in sites.sites]
    (hit,) = look(replace(sites, sites=tuple(moved)), (), **more)
    assert hit.where == ("blocks.0", "blocks.1", "blocks.2")


def test_a_chain_inside_the_block() -> None:
    """Attention and MLP each with their own addition, and x once more around both."""
    sites = make_map(
        make_site(0, name="a", module="blocks.0", source="net.py:1"),
        make_site(1, name="b", module="blocks.0", source="net.py:2", depth=1),
        make_site(2, name="c", module="", source="net.py:3", stream=1, depth=0),
    )
    grown = np.sqrt(1 + 0.3**2)
    more = tables(sites, [0.3, 0.3, grown**2], shortcut_rms=[[1.0, grown, 1.0]] * 3)
    (hit,) = look(sites, (), **more)
    assert hit.where == ("blocks.0",)
    apart = tables(sites, [0.3, 0.3, 1.3], shortcut_rms=[[1.0, grown, 1.0]] * 3)
    assert not look(sites, (), **apart)


def test_a_nested_addition_of_another_x_is_silent() -> None:
    sites, _ = twice(count=1)
    assert not look(sites, (), **tables(sites, [0.5, 0.3], shortcut_rms=[[1.0, 0.4]] * 3))
    assert not look(sites, (), **tables(sites, [0.5, 0.3], shortcut_rms=[[1.0, 1.0]] * 3))


def test_a_skip_around_several_blocks_is_silent() -> None:
    """The branch is the sum of the last of two blocks."""
    sites = make_map(
        make_site(0), make_site(1), make_site(2, name="body", module="", stream=1, depth=0)
    )
    grown = np.sqrt(1 + 0.3**2)
    more = tables(sites, [0.3, 0.3, grown**2], shortcut_rms=[[1.0, grown, 1.0]] * 3)
    assert not look(sites, (), **more)


def test_behind_a_norm_every_tensor_has_one_size() -> None:
    """Adapters: the branch ends in an addition of its own, and all shortcuts have RMS 1."""
    sites = make_map(
        make_site(0, name="a", module="blocks.0", source="net.py:1"),
        make_site(1, name="b", module="blocks.0", source="net.py:2"),
        make_site(2, name="in", module="blocks.0", source="net.py:3", depth=0, nested=True),
    )
    grown = 0.2 * np.sqrt(1 + 0.5**2)
    sizes = {"shortcut_rms": [[1.0, 1.0, 0.2]] * 3, "max_s": [[2.9, 3.1, 0.6]] * 3}
    assert not look(sites, (), **tables(sites, [grown, 0.4, 0.5], **sizes))
    one_tensor = {**sizes, "max_s": [[2.9, 2.9, 0.6]] * 3}
    assert look(sites, (), **tables(sites, [grown, 0.4, 0.5], **one_tensor))


def test_nothing_recorded() -> None:
    with pytest.raises(NotMeasurable, match=r"inventory.*; twice"):
        RULE.run({"sites": make_map(make_site(0)), "captures": np.arange(3)})


def test_sums_that_an_intervention_changed_are_not_judged() -> None:
    with pytest.raises(NotMeasurable, match=r"intervention changes the sums: y = F"):
        look(lacking(ONE_OF_TWELVE), run=Run(intervention="y = F"))
    assert look(lacking(ONE_OF_TWELVE), run=Run())
