"""A visitor that tells residual additions from all others while a forward runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from skipscope.additions import Addition, Passing
from skipscope.find.graph import Branch, Edge, Graph
from skipscope.find.places import Places, source_line
from skipscope.find.relate import Relater, Relation, sums_inside, summary
from skipscope.find.vocabulary import PASSES, Op

#: How far back the previous sum of a stream is looked for.
MAX_LINK_STEPS = 32


@dataclass(slots=True)
class Found:
    """One residual addition of the present forward, with the structure around it."""

    relation: Relation
    module: str
    source: str
    occurrence: int  #: k-th time at this module and line, counted along the stream
    alpha: float
    shortcut_factor: float
    broadcast: bool
    rewritten: bool
    shape: tuple[int, ...]
    dtypes: tuple[str, str]
    parameters: tuple[str, ...]
    previous: Found | None  #: whose sum x leads back to
    link: tuple[Op, ...]  #: what stands between that sum and x
    embedding_fed: bool
    inside: list[Found]  #: residual additions within the branch
    parallel: bool = False
    other_readers: bool = False
    frozen: bool = False  #: neither operand has a gradient
    sum_edge: Edge | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """Its identity over time."""
        return self.module, self.source, self.occurrence

    @property
    def rows(self) -> Literal["token", "sample"]:
        """Tokens where the branch's last weight acts on the last axis."""
        last = self.relation.last_matrix
        on_last_axis = last is not None and last.op is not Op.CONVOLUTION
        return "token" if on_last_axis and len(self.shape) > 2 else "sample"


@dataclass
class Observations:
    """What a forward showed besides residual additions: (what, module, source) -> how often."""

    unseen: Counter[tuple[str, str, str]] = field(default_factory=Counter)


class Discovery(Passing):
    """Finds the residual additions of one forward and hands each to `on_site`.

    `on_site(found, shortcut, branch, run)` gets the operands with their factors still to be applied
    (`found.shortcut_factor`, `found.alpha`) and returns the sum, normally `run()`.
    """

    def __init__(
        self,
        model: nn.Module,
        on_site: Callable[[Found, Tensor, Tensor, Callable[[], Tensor]], Tensor] | None = None,
    ) -> None:
        self.graph = Graph(model)
        self.places = Places(model, self._module_input)
        self.relater = Relater(self.graph)
        self.found: dict[tuple[str, str, int], Found] = {}
        self.observations = Observations()
        self._by_sum: dict[Edge, Found] = {}
        self._by_number: dict[float, Found] = {}
        self._places: set[tuple[str, str]] = set()
        self._on_site = on_site
        self._last: tuple[Found, Tensor, int] | None = None

    def close(self) -> None:
        """Lets go of the graph and of every tensor."""
        self.graph.close()
        self.places.forget()
        self.relater.sums.clear()
        self._by_sum.clear()
        self._by_number.clear()
        self._last = None
        for found in self.found.values():
            found.relation.branch.nodes.clear()

    # ------------------------------------------------------------------ what the mode tells
    def call(self, name: str, args: Iterable[Any], result: Any) -> None:
        self.graph.note(name, args, result)

    def fused(self, what: str, operands: list[Tensor]) -> None:
        edges = [self.graph.edge(t) for t in operands if t.is_floating_point() and t.dim() >= 2]
        edges = [e for e in edges if e is not None and not self.graph.constant(e)]
        related = len(edges) > 1 and any(
            bool(self.graph.descends(f, [s])) for s in edges for f in edges if s != f
        )
        if related:
            self._unseen(what)

    def addition(self, addition: Addition, run: Callable[[], Tensor]) -> Tensor:
        left, right = self.graph.edge(addition.left), self.graph.edge(addition.right)
        relation = self.relater.relate(left, right)
        if relation is None:
            return self._not_residual(addition, left, right, run)
        if not torch.is_grad_enabled():
            self._unseen("no graph")
            return self._run(addition, run)
        if relation.shortcut == left:
            s, f = addition.left, addition.right
            factors = addition.left_factor, addition.right_factor
        else:
            s, f = addition.right, addition.left
            factors = addition.right_factor, addition.left_factor
        found = self._describe(relation, s, f, factors)
        return self._visit(found, addition, s, f, run)

    # ------------------------------------------------------------------ residual
    def _visit(
        self, found: Found, addition: Addition, s: Tensor, f: Tensor, run: Callable[[], Tensor]
    ) -> Tensor:
        kept = s.detach()  # taken before an in-place addition; x for a parallel branch to come
        version = s._version

        def add() -> Tensor:
            result = self._run(addition, run)
            found.sum_edge = self.graph.edge(result)
            return result

        result = add() if self._on_site is None else self._on_site(found, s, f, add)
        if found.sum_edge is not None:
            self._by_sum[found.sum_edge] = found
            self._by_number[found.sum_edge[0]] = found
            self.relater.sums[found.sum_edge[0]] = found.relation
        self.found.pop(found.key, None)  # a later forward replaces an earlier one, in order
        self.found[found.key] = found
        self._places.add(found.key[:2])
        self._last = (found, kept, version)
        return result

    def _describe(
        self, relation: Relation, s: Tensor, f: Tensor, factors: tuple[float, float]
    ) -> Found:
        previous, link, embedding_fed = self._previous(relation.source)
        inside = sums_inside(relation.branch, self.relater.sums)
        module, source = self.places.current, source_line()
        return Found(
            relation=relation,
            module=module,
            source=source,
            occurrence=self._occurrence(module, source, previous),
            alpha=factors[1],
            shortcut_factor=factors[0],
            broadcast=s.shape != f.shape,
            rewritten=self.places.was_rewritten(s, relation.shortcut),
            shape=tuple(torch.broadcast_shapes(s.shape, f.shape)),
            dtypes=(_dtype(s), _dtype(f)),
            parameters=self.graph.parameters_of(relation.branch),
            previous=previous,
            link=link,
            embedding_fed=embedding_fed,
            inside=[self._by_number[number] for number in inside],
            frozen=not (s.requires_grad or f.requires_grad),
        )

    def _previous(self, edge: Edge) -> tuple[Found | None, tuple[Op, ...], bool]:
        """The site whose sum `edge` leads back to, and what stands between."""
        link: tuple[Op, ...] = ()
        for _ in range(MAX_LINK_STEPS):
            known = self._by_sum.get(edge)
            if known is not None:
                return known, link, False
            step = self.graph.step_back(edge)
            if step is None:
                return None, link, Op.EMBEDDING in self.graph.origin_ops(edge)
            edge, between = step
            op = summary(between) or between[0].op
            if op not in PASSES:
                link = (op, *link)
        return None, link, False

    def _occurrence(self, module: str, source: str, previous: Found | None) -> int:
        """How many additions of this place the present one descends from."""
        if (module, source) not in self._places:
            return 0
        while previous is not None:
            for found in (previous, *previous.inside):
                if (found.module, found.source) == (module, source):
                    return found.occurrence + 1
            previous = previous.previous
        return 0

    # ------------------------------------------------------------------ not residual
    def _not_residual(
        self, addition: Addition, left: Edge | None, right: Edge | None, run: Callable[[], Tensor]
    ) -> Tensor:
        parallel = self._parallel(addition, left, right)
        if parallel is not None:
            found, x, a, f, factor = parallel
            # What was added to x so far, and the further branch: the sum of both is the branch.
            branch = (a.detach() - x) + factor * f.detach()
            return self._visit(found, addition, x, branch, run)
        if torch.is_grad_enabled():
            if self.relater.is_gate(left, right):
                self._unseen("gate")
            elif left and right and addition.left.shape != addition.right.shape:
                self._unseen("unrelated")
        return self._run(addition, run)

    def _parallel(
        self, addition: Addition, left: Edge | None, right: Edge | None
    ) -> tuple[Found, Tensor, Tensor, Tensor, float] | None:
        """`(x + a) + m` where m reads x, not x + a: one site whose branch is a + m."""
        if self._last is None or not torch.is_grad_enabled():
            return None
        last, x, version = self._last
        one = (left, right, addition.left, addition.right, addition.left_factor)
        other = (right, left, addition.right, addition.left, addition.right_factor)
        for (s, f, a, m, factor), (*_, further) in ((one, other), (other, one)):
            if s is None or s != last.sum_edge or factor != 1.0 or x._version != version:
                continue
            branch = self.relater.branch_between(last.relation.source, f)
            if branch is not None and a.shape == m.shape:
                return self._merge(last, branch), x, a, m, further
        return None

    def _merge(self, last: Found, branch: Branch) -> Found:
        nodes = {**last.relation.branch.nodes, **branch.nodes}
        relation = Relation(
            last.relation.shortcut,
            last.relation.source,
            last.relation.path,
            Branch(last.relation.source, nodes),
        )
        del self.found[last.key]
        names = dict.fromkeys((*last.parameters, *self.graph.parameters_of(branch)))
        return replace(last, relation=relation, parameters=tuple(names), parallel=True, alpha=1.0)

    def _run(self, addition: Addition, run: Callable[[], Tensor]) -> Tensor:
        result = run()
        self.graph.note("add", (addition.left, addition.right), result)
        return result

    def _unseen(self, what: str) -> None:
        self.observations.unseen[what, self.places.current, source_line()] += 1

    def _module_input(self, tensor: Tensor) -> Edge | None:
        self.graph.note_input(tensor)
        return self.graph.edge(tensor)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

