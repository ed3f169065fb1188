"""Is this addition residual? Two operands in, a `Relation` (or the reason why not) out.

`y = s + f` is residual when `s`, or what `s` is a short image of, is an ancestor of `f`, and the
way from there to `f`, the branch, holds a parametric operation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from skipscope.find.graph import Graph
from skipscope.find.node import Branch, Edge, Node
from skipscope.find.vocabulary import MATRIX, NONLINEAR, PARAMETRIC, PASSES, PROJECTION, Op
from skipscope.find.walk import descends
from skipscope.records import Kind

#: A shortcut is short: so many operations at most, so many of them with a weight matrix.
MAX_STEPS, MAX_MATRICES = 12, 3
#: What a norm that is written out consists of; one of `_SCALES_DOWN` makes it one.
_NORM_PARTS = frozenset({Op.MOMENT, Op.POOL, Op.MULTIPLY, Op.SCALE, Op.SHIFT, Op.ADD, Op.NORM})
#: What an activation that is written out consists of (`x * sigmoid(x)`, a tanh GELU).
_ACTIVATION_PARTS = frozenset(
    {Op.ACTIVATION, Op.MULTIPLY, Op.SCALE, Op.SHIFT, Op.ADD, Op.MOMENT} | PASSES
)


@dataclass(frozen=True, slots=True)
class Link:
    """One point on the way back from a shortcut operand."""

    edge: Edge
    path: tuple[Op, ...]  #: what stands between this point and the operand, transparent left out


@dataclass(frozen=True, slots=True)
class Relation:
    """How the operands of a residual addition hang together."""

    shortcut: Edge
    source: Edge  #: x
    path: tuple[Op, ...]  #: from x to the shortcut operand
    branch: Branch

    @property
    def kind(self) -> Kind:
        """What the shortcut does to x."""
        if PROJECTION & set(self.path):
            return "projection"
        return "scaled" if Op.SCALE in self.path else "identity"

    @property
    def detached(self) -> bool:
        """No gradient flows through the shortcut although x has one."""
        ours = self.shortcut[0] != int(self.shortcut[0])
        return ours and self.source[0] == int(self.source[0])

    @property
    def last_matrix(self) -> Node | None:
        """The last operation of the branch with a weight matrix."""
        matrices = [number for number, node in self.branch.nodes.items() if node.op in MATRIX]
        return self.branch.nodes[max(matrices)] if matrices else None


def way_back(graph: Graph, edge: Edge) -> list[Link]:
    """The points that a shortcut operand may be an image of, nearest first.

    The way ends where data of two kinds meet.
    """
    links = [Link(edge, ())]
    path: tuple[Op, ...] = ()
    for _ in range(MAX_STEPS):
        step = graph.step_back(edge)
        if step is None:
            break
        edge, between = step
        op = summary(between)
        if op is None:
            break
        if op is Op.ACTIVATION:
            if not path:  # of x itself: an altered shortcut; with more before it, a branch
                links.append(Link(edge, (op,)))
            break
        if op not in PASSES:
            path = (op, *path)
        if sum(op in MATRIX for op in path) > MAX_MATRICES:
            break
        links.append(Link(edge, path))
    return links


def views(graph: Graph, edge: Edge) -> list[Edge]:
    """An edge and those that it is a view, a cast or a shift of."""
    return [link.edge for link in way_back(graph, edge) if not link.path]


def factors(graph: Graph, edge: Edge) -> list[Edge]:
    """The data that an operand is the product of; none where it is no product of two."""
    for _ in range(MAX_STEPS):
        node = graph.node(edge)
        data = graph.data_inputs(node)
        if node.op is Op.MULTIPLY or (node.op is Op.LINEAR and len(data) > 1):
            step = graph.step_back(edge)
            written_out = step is not None and summary(step[1]) is not None  # a norm, a SiLU
            return [] if written_out else data
        if len(data) != 1 or node.op not in PASSES | {Op.SCALE}:
            break
        edge = data[0]
    return []


def summary(between: list[Node]) -> Op | None:
    """What the operations between two points amount to; None where it is no shortcut's business."""
    ops = {node.op for node in between}
    if len(between) == 1:
        (op,) = ops
        return op if op in PASSES | PROJECTION | {Op.SCALE, Op.SLICE} else None
    if Op.MOMENT in ops and ops <= _NORM_PARTS | PASSES:
        return Op.NORM
    if ops <= PASSES | {Op.SLICE, Op.CONCATENATE}:
        return Op.SLICE
    if Op.ACTIVATION in ops and ops <= _ACTIVATION_PARTS:
        return Op.ACTIVATION
    return None


class Relater:
    """Decides additions one by one, knowing the residual sums found before."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sums: dict[float, Relation] = {}  #: by the number of the sum's node

    def relate(self, left: Edge | None, right: Edge | None) -> Relation | None:
        """The relation of two operands, in the order that fits best; None when not residual."""
        if left is None or right is None:
            return None
        found: dict[Edge, Relation | None] = {}
        for s, f in sorted(((left, right), (right, left))):  # x is older than what was made of it
            found[s] = relation = self._as_shortcut(s, f)
            if relation is not None and relation.kind == "identity" and not relation.path:
                return relation  # nothing fits better
        order = {"identity": 0, "scaled": 1, "projection": 2}
        options = [relation for s in (left, right) if (relation := found[s]) is not None]
        return min(options, key=lambda r: (order[r.kind], len(r.path)), default=None)

    def is_gate(self, left: Edge | None, right: Edge | None) -> bool:
        """Whether one operand is a product of data and the other a nonlinear image of a factor.

        That is a gate (Highway, GRU), not a shortcut.
        """
        if left is None or right is None:
            return False
        return any(
            NONLINEAR & branch.ops
            for s, f in ((left, right), (right, left))
            for branch in descends(self.graph, f, self._factors(s)).values()
        )

    def _factors(self, edge: Edge) -> list[Edge]:
        return [same for factor in factors(self.graph, edge) for same in views(self.graph, factor)]

    def are_related(self, operands: Iterable[Edge]) -> bool:
        """Whether one of several operands descends from another, or from what that is a view of."""
        same = {f: views(self.graph, f) for f in operands}
        points = {edge for edges in same.values() for edge in edges}
        return any(descends(self.graph, f, points.difference(same[f])) for f in same)

    def branch_between(self, source: Edge, operand: Edge | None) -> Branch | None:
        """The branch from a known x to an operand, when there is a parametric one."""
        if operand is None:
            return None
        branch = descends(self.graph, operand, [source]).get(source)
        return branch if branch is not None and self._is_branch(branch) else None

    def _as_shortcut(self, s: Edge, f: Edge) -> Relation | None:
        if self.graph.constant(s):
            return None
        links = way_back(self.graph, s)
        branches = descends(self.graph, f, [link.edge for link in links])
        # Only the nearest point counts: what lies further back leads to both operands through it.
        nearest = next((link for link in links if link.edge in branches), None)
        if nearest is None:
            return None
        relation = Relation(s, nearest.edge, nearest.path, branches[nearest.edge])
        return relation if self._is_residual(relation) else None

    def _is_branch(self, branch: Branch) -> bool:
        """Whether something is learned on the way: a matrix, a norm, a weighted activation."""
        if PARAMETRIC & branch.ops:
            return True
        weighted = any(self._by_weight(node) for node in branch.nodes.values())
        return weighted and bool(NONLINEAR & branch.ops)

    def _by_weight(self, node: Node) -> bool:
        """Whether an element-wise operation holds a trained parameter."""
        return node.op is Op.SCALE and any(
            edge is not None and self.graph.constant(edge) for edge in node.inputs
        )

    def _is_residual(self, relation: Relation) -> bool:
        if not self._is_branch(relation.branch):
            return False
        if relation.kind == "projection" and not NONLINEAR & relation.branch.ops:
            return False  # two parallel linear maps of x: a re-parameterised convolution, say
        if Op.SLICE in relation.path and all(
            node.op is Op.SLICE for node in relation.branch.consumers
        ):
            return False  # the branch reads a sibling slice, not x
        return not self._enters_from_the_side(relation)

    def _enters_from_the_side(self, relation: Relation) -> bool:
        """Whether x reaches the other operand only as an additive guest of another stream.

        A bias, a mask or a conditioning vector that is added in every block is an ancestor of all
        that follows its first use. But it came into the stream through a branch: the first residual
        sum on the way has a shortcut that does not descend from it. Or it was added to the stream
        before that sum already, and a map of it comes again now.
        """
        inside = relation.branch.nodes
        first = min(self.sums.keys() & inside.keys(), default=None)
        if first is None:
            return False
        shortcut = self.sums[first].shortcut
        if relation.kind == "projection" and any(
            self._meets_others(node, relation) for n, node in inside.items() if n <= shortcut[0]
        ):
            return True
        return shortcut != relation.source and shortcut[0] not in inside

    def _meets_others(self, node: Node, relation: Relation) -> bool:
        """Whether an addition of the branch takes in data that does not come from x."""
        return node.op is Op.ADD and any(
            edge != relation.source and edge[0] not in relation.branch.nodes
            for edge in self.graph.data_inputs(node)
        )


def sums_inside(branch: Branch, sums: dict[float, Relation]) -> list[float]:
    """Numbers of the residual sums within a branch, in order.

    A sum that leads nowhere (the last state of a recurrence) is within where its x is.
    """
    first = branch.source[0]
    latest = takewhile(lambda number: number > first, reversed(sums))
    inside = branch.nodes
    return sorted(n for n in latest if n in inside or sums[n].source[0] in inside)
