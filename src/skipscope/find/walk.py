"""Ways back through the graph: what descends from what, and which parameters lie on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skipscope.find.graph import Graph
from skipscope.find.node import Branch, Edge, Node
from skipscope.find.vocabulary import Op

#: So many operations tell what a stream starts from.
_ORIGIN_NODES = 6


def origin_ops(graph: Graph, edge: Edge) -> set[Op]:
    """The operations right before an edge where the way back ends."""
    frontier, ops = {edge}, set[Op]()
    for _ in range(_ORIGIN_NODES):
        if not frontier:
            break
        node = graph.node(max(frontier))
        ops.add(node.op)
        frontier = {e for e in frontier if e[0] != node.number} | set(node.operands)
    return ops


def descends(graph: Graph, edge: Edge, targets: Iterable[Edge]) -> dict[Edge, Branch]:
    """For each target that `edge` descends from, the branch between them."""
    wanted = set(targets) - {edge}
    if not wanted:
        return {}
    floor = min(number for number, _ in wanted)
    visited: dict[float, Node] = {}
    todo = [edge]
    while todo:
        current = todo.pop()
        if current[0] in visited or current[0] <= floor:
            continue
        node = graph.node(current)
        visited[current[0]] = node
        todo.extend(node.operands)
    hit = {e for node in visited.values() for e in node.operands if e in wanted}
    ordered = sorted(visited)
    return {target: _between(target, ordered, visited) for target in hit}


def _between(target: Edge, ordered: list[float], visited: dict[float, Node]) -> Branch:
    inside: dict[float, Node] = {}
    for number in ordered:
        node = visited[number]
        if any(e == target or e[0] in inside for e in node.operands):
            inside[number] = node
    return Branch(target, inside)


def parameters_of(graph: Graph, branch: Branch) -> tuple[str, ...]:
    """Names of the trained parameters that the nodes of a branch use."""
    found: dict[str, None] = {}
    for node in branch.nodes.values():
        for operand in node.inputs:
            if operand is not None and graph.constant(operand):
                for name in _leaf_names(graph, operand):
                    found.setdefault(name)
    return tuple(found)


def _leaf_names(graph: Graph, edge: Edge) -> Iterator[str]:
    seen: set[float] = set()
    todo = [edge]
    while todo:
        current = todo.pop()
        if current[0] in seen:
            continue
        seen.add(current[0])
        if current in graph.copy_names:
            yield graph.copy_names[current]
            continue
        node = graph.node(current)
        name = graph.names.get(int(-current[0]))
        if node.op is Op.PARAMETER and name is not None:
            yield name
        todo.extend(node.operands)
