"""Called modules as sibling blocks: same place, same parts, same shapes of the parameters.

A module class says little: a block whose shape changes has no shortcut by design, and a variant
without one may be a class of its own. Siblings are therefore modules whose paths differ in their
numbers only, which called the same parts and hold parameters of the same shapes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from skipscope.records import ModuleClass, Parameter, Site
from skipscope.rule.siblings import without_numbers


@dataclass(frozen=True)
class Block:
    """A called module and the residual additions inside it, its parts included."""

    path: str
    kind: str  #: class name
    additions: int


def sibling_blocks(
    modules: Sequence[ModuleClass], parameters: Sequence[Parameter], uneven: bool = True
) -> Iterator[tuple[Block, ...]]:
    """Groups of siblings in the order of their numbers.

    Args:
        modules: the inventory.
        parameters: those of the model; modules without parameters have no siblings.
        uneven: only groups whose members differ in their number of additions; False: only groups
            whose members have none.
    """
    called = {path: module.name for module in modules for path in module.paths}
    chosen = [group for group in _by_place(modules, called) if _worth_a_look(group, uneven)]
    parts = _parts({block.path for group in chosen for block in group}, called, parameters)
    for group in chosen:
        alike: defaultdict[frozenset[object], list[Block]] = defaultdict(list)
        for block in group:
            if parts[block.path]:
                alike[frozenset(parts[block.path])].append(block)
        for members in alike.values():
            if _worth_a_look(members, uneven):
                yield tuple(sorted(members, key=lambda block: numbers(block.path)))


def _by_place(modules: Sequence[ModuleClass], called: dict[str, str]) -> list[list[Block]]:
    """The modules whose paths differ in their numbers only."""
    inside: defaultdict[str, int] = defaultdict(int)
    for module in modules:
        for path, count in zip(module.paths, module.additions, strict=True):
            for holder in _holders(path) if count else ():
                inside[holder] += count
    places: defaultdict[str, list[Block]] = defaultdict(list)
    for path, name in called.items():
        if re.search(r"\d", path):
            places[without_numbers(path)].append(Block(path, name, inside[path]))
    return list(places.values())


def _worth_a_look(group: Sequence[Block], uneven: bool) -> bool:
    counts = {block.additions for block in group}
    return len(group) > 1 and (len(counts) > 1 if uneven else counts == {0})


def _holders(path: str) -> Iterator[str]:
    """The module itself and the modules around it, the model left out.

    >>> list(_holders("a.0.b"))
    ['a', 'a.0', 'a.0.b']
    """
    pieces = path.split(".")
    return (".".join(pieces[: k + 1]) for k in range(len(pieces)))


def _parts(
    paths: set[str], called: dict[str, str], parameters: Sequence[Parameter]
) -> defaultdict[str, set[object]]:
    """Per path what it called and which parameters it holds, by name inside it; {} without any.

    An `nn.Identity` is no part: where it is the shortcut, a block without its addition leaves it
    out as well.
    """
    parts: defaultdict[str, set[object]] = defaultdict(set)
    for parameter in parameters:
        for holder in _holders(parameter.name):
            if holder in paths:
                parts[holder].add((parameter.name[len(holder) :], parameter.shape))
    for path, name in called.items():
        for holder in _holders(path):
            if holder != path and holder in parts and name != "Identity":
                parts[holder].add((path[len(holder) :], name))
    return parts


def numbers(path: str) -> tuple[int, ...]:
    """The numbers of a path, by which siblings are in order.

    >>> numbers("layer2.10.conv1")
    (2, 10, 1)
    """
    return tuple(int(number) for number in re.findall(r"\d+", path))


def within(path: str, sites: Iterable[Site]) -> tuple[Site, ...]:
    """The sites inside a module, by stream and depth.

    >>> within("blocks.0", ())
    ()
    """
    found = (s for s in sites if s.module == path or s.module.startswith(f"{path}."))
    return tuple(sorted(found, key=lambda site: (site.stream, site.depth, site.index)))


def block_of(path: str) -> str:
    """The repeated part that a module lies in: its path up to the last number.

    >>> block_of("encoder.3.attention.output"), block_of("stem")
    ('encoder.3', 'stem')
    """
    pieces = path.split(".")
    ends = [k for k, piece in enumerate(pieces) if piece.isdigit()]
    return ".".join(pieces[: ends[-1] + 1]) if ends else path
