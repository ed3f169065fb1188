"""Who reads what a shortcut comes from: through which nodes its gradient arrives."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import Tensor

from skipscope.find.found import Found
from skipscope.find.graph import Graph
from skipscope.find.node import Edge, Node
from skipscope.find.walk import descends


def shortcut_consumers(graph: Graph, found: Found) -> list[Node]:
    """The nodes through which the shortcut's gradient reaches x."""
    relation = found.relation
    if relation.shortcut != relation.source:
        way = descends(graph, relation.shortcut, [relation.source]).get(relation.source)
        return way.consumers if way is not None else []
    inside = relation.branch.nodes
    frontier = [found.sum_edge] if found.sum_edge is not None else []
    for _ in range(4):  # an in-place addition on a view hides behind the view's own nodes
        nodes = [graph.node(edge) for edge in frontier if edge[0] not in inside]
        hit = [node for node in nodes if relation.source in node.inputs]
        if hit:
            return hit
        frontier = [edge for node in nodes for edge in node.inputs if edge is not None]
    return []


def note_other_readers(graph: Graph, sites: Collection[Found], roots: Iterable[Tensor]) -> None:
    """Walks the whole graph once and marks sites whose x is read outside of them as well."""
    readers: dict[Edge, set[float]] = {found.relation.source: set() for found in sites}
    todo = [edge for root in roots for edge in [graph.edge(root)] if edge is not None]
    seen: set[float] = set()
    while todo:
        node = graph.node(todo.pop())
        if node.number in seen:
            continue
        seen.add(node.number)
        for edge in node.inputs:
            if edge is not None:
                todo.append(edge)
                if edge in readers:
                    readers[edge].add(node.number)
    for found in sites:
        own = [*found.relation.branch.consumers, *shortcut_consumers(graph, found)]
        others = readers[found.relation.source] - {node.number for node in own}
        found.other_readers = bool(others)
