"""A visitor that tells residual additions from all others while a forward runs."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from skipscope.additions import Addition, Passing
from skipscope.find.found import Found, Recent
from skipscope.find.graph import Graph
from skipscope.find.node import Branch, Edge, shape_of, tensors_in, version_of
from skipscope.find.places import Places, source_line
from skipscope.find.relate import Relater, Relation, summary, sums_inside
from skipscope.find.vocabulary import PASSES, Op
from skipscope.find.walk import origin_ops, parameters_of
from skipscope.guard import Guard
from skipscope.records import Key
from skipscope.reduce import in_transform, wide

#: How far back the previous sum of a stream is looked for.
MAX_LINK_STEPS = 32
#: So many sites may lie inside the second of two parallel branches.
RECENT = 4


@dataclass
class Observations:
    """What a forward showed besides residual additions: (what, module, source) -> how often."""

    unseen: Counter[tuple[str, str, str]] = field(default_factory=Counter)


class Discovery(Passing):
    """Finds the residual additions of one forward and hands each to `on_site`.

    `on_site(found, shortcut, branch, run)` gets the operands with their factors still to be applied
    (`found.shortcut_factor`, `found.alpha`) and returns the sum, normally `run()`.

    Args:
        model: the model whose forward runs.
        on_site: see above; None only finds.
        whole: modules to take as one site each where no addition shows inside.
        guard: takes errors of the module hooks.
    """

    def __init__(
        self,
        model: nn.Module,
        on_site: Callable[[Found, Tensor, Tensor, Callable[[], Tensor]], Tensor] | None = None,
        *,
        whole: frozenset[str] = frozenset(),
        guard: Guard | None = None,
    ) -> None:
        self.graph = Graph(model)
        self.places = Places(
            model,
            self._module_input,
            self._module_output,
            guard or Guard("raise"),
            self.graph.learn,
        )
        self._whole = whole
        self.relater = Relater(self.graph)
        self.found: dict[Key, Found] = {}
        self.observations = Observations()
        self._by_sum: dict[Edge, Found] = {}
        self._by_number: dict[float, Found] = {}
        self._passed: Counter[tuple[str, str]] = Counter()  # places of the present forward
        self._before: set[tuple[str, str]] = set()  # places of earlier forwards
        self._forward = 0
        self._on_site = on_site
        self._recent: deque[Recent] = deque(maxlen=RECENT)
        self._last_branch: Tensor | None = None  # mostly a temporary, which dies unless it is held

    def close(self) -> None:
        """Lets go of the graph and of every tensor."""
        self.graph.close()
        self.places.forget()
        self.relater.sums.clear()
        self._by_sum.clear()
        self._by_number.clear()
        self._recent.clear()
        self._last_branch = None
        for found in self.found.values():  # the structure stays, autograd's nodes go
            for node in found.relation.branch.nodes.values():
                node.handle = None
        self.found.clear()  # we and our callbacks hold each other: what we hold dies late

    # ------------------------------------------------------------------ what the mode tells
    def call(self, name: str, args: Iterable[Any], result: Any) -> None:
        """Completes the graph where autograd sees nothing."""
        self.graph.note(name, args, result)

    def fused(self, what: str, operands: list[Tensor]) -> None:
        """Lists a form of addition that cannot be measured, where its operands are related."""
        edges = [self.graph.edge(t) for t in operands if t.is_floating_point() and t.dim() >= 2]
        if self.relater.are_related(e for e in edges if e and not self.graph.constant(e)):
            self._unseen(what)

    def addition(self, addition: Addition, run: Callable[[], Tensor]) -> Tensor:
        """Tells whether it is residual; if so, `on_site` performs it."""
        left, right = self.graph.edge(addition.left), self.graph.edge(addition.right)
        relation = self.relater.relate(left, right)
        if relation is None or relation.kind == "projection":
            parallel = self._parallel(addition, left, right)
            if parallel is not None:
                found, x, branch = parallel
                return self._visit(found, x, branch, lambda: self._run(addition, run))
        if relation is None:
            return self._not_residual(addition, left, right, run)
        if not torch.is_grad_enabled() or in_transform():
            self._unseen("transform" if in_transform() else "no graph")
            return self._run(addition, run)
        if relation.shortcut == left:
            s, f = addition.left, addition.right
            factors = addition.left_factor, addition.right_factor
        else:
            s, f = addition.right, addition.left
            factors = addition.right_factor, addition.left_factor
        found = self._describe(relation, s, f, factors)
        if self.places.elsewhere and not found.parameters:
            return self._run(addition, run)  # another model's, which reads what this one made
        return self._visit(found, s, f, lambda: self._run(addition, run))

    # ------------------------------------------------------------------ residual
    def _visit(self, found: Found, s: Tensor, f: Tensor, run: Callable[[], Tensor]) -> Tensor:
        recent = Recent(found, weakref.ref(s), version_of(s), weakref.ref(f), version_of(f))
        self._last_branch = f

        def add() -> Tensor:
            result = run()
            found.sum_edge = self.graph.edge(result)
            return result

        result = add() if self._on_site is None else self._on_site(found, s, f, add)
        if found.sum_edge is not None:
            self._by_sum[found.sum_edge] = found
            self._by_number[found.sum_edge[0]] = found
            self.relater.sums[found.sum_edge[0]] = found.relation
        self.found.pop(found.key, None)  # a later forward replaces an earlier one, in order
        self.found[found.key] = found
        self._recent.append(recent)
        return result

    def _describe(
        self, relation: Relation, s: Tensor, f: Tensor, factors: tuple[float, float]
    ) -> Found:
        previous, link, embedding_fed = self._previous(relation.source)
        inside = self._inside(relation.branch)
        module, source = self.places.current, source_line()
        return Found(
            relation=relation,
            module=module,
            source=source,
            occurrence=self._occurrence((module, source), inside, previous),
            alpha=factors[1],
            shortcut_factor=factors[0],
            broadcast=shape_of(s) != shape_of(f),
            rewritten=self.places.was_rewritten(s, relation.shortcut),
            shape=_common_shape(s, f),
            dtypes=(_dtype(s), _dtype(f)),
            parameters=parameters_of(self.graph, relation.branch),
            previous=previous,
            link=link,
            embedding_fed=embedding_fed,
            inside=inside,
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
                return None, (), Op.EMBEDDING in origin_ops(self.graph, edge)
            edge, between = step
            op = summary(between) or between[0].op
            if op not in PASSES:
                link = (op, *link)
        return None, (), False

    def _occurrence(
        self, place: tuple[str, str], inside: list[Found], previous: Found | None
    ) -> int:
        """How often this place was passed before: in this forward, or along the stream.

        A loop may call one cell of the model again and again, each time a forward of its own: then
        what tells them apart is that the present addition descends from the earlier ones. Forwards
        that do not feed each other (two batches of a step) repeat the places of the first.
        """
        if self._forward != self.places.forwards:
            self._forward = self.places.forwards
            self._before |= self._passed.keys()
            self._passed.clear()
        count = self._passed[place]
        self._passed[place] += 1
        if place not in self._before:
            return count
        earlier = inside
        while True:
            counts = [found.occurrence for found in earlier if found.key[:2] == place]
            if counts:
                return max(max(counts) + 1, count)
            if previous is None:
                return count
            earlier, previous = [previous, *previous.inside], previous.previous

    # ------------------------------------------------------------------ not residual
    def _not_residual(
        self, addition: Addition, left: Edge | None, right: Edge | None, run: Callable[[], Tensor]
    ) -> Tensor:
        if torch.is_grad_enabled():
            if self.relater.is_gate(left, right):
                self._unseen("gate")
            elif left and right and not _same_shape(addition):
                self._unseen("unrelated")
        return self._run(addition, run)

    def _parallel(
        self, addition: Addition, left: Edge | None, right: Edge | None
    ) -> tuple[Found, Tensor, Tensor] | None:
        """`(x + a) + m` where m reads x, not x + a: one site, its x, and its branch a + m."""
        if not torch.is_grad_enabled() or in_transform() or not _same_shape(addition):
            return None
        one = (left, right, addition.left, addition.right, addition.left_factor)
        other = (right, left, addition.right, addition.left, addition.right_factor)
        for age, recent in enumerate(reversed(self._recent)):
            last, x = recent.found, recent.shortcut
            if x is None or (age and last.module != self.places.current):
                continue  # with other sites between, only the same code adds to the same x
            for (s, f, a, m, factor), (*_, further) in ((one, other), (other, one)):
                if s is None or s != last.sum_edge or factor != 1.0:
                    continue
                branch = self.relater.branch_between(last.relation.source, f)
                if branch is not None and s[0] not in branch.nodes:
                    return self._merge(last, branch), x, recent.branch_with(a, m, further)
        return None

    def _merge(self, last: Found, branch: Branch) -> Found:
        nodes = {**last.relation.branch.nodes, **branch.nodes}
        relation = Relation(
            last.relation.shortcut,
            last.relation.source,
            last.relation.path,
            Branch(last.relation.source, nodes),
        )
        self.found.pop(last.key, None)
        names = dict.fromkeys((*last.parameters, *parameters_of(self.graph, branch)))
        return replace(
            last,
            relation=relation,
            parameters=tuple(names),
            inside=self._inside(relation.branch),
            parallel=True,
            alpha=1.0,
        )

    def _inside(self, branch: Branch) -> list[Found]:
        return [self._by_number[number] for number in sums_inside(branch, self.relater.sums)]

    def _run(self, addition: Addition, run: Callable[[], Tensor]) -> Tensor:
        result = run()
        self.graph.note("add", (addition.left, addition.right), result)
        return result

    def _unseen(self, what: str) -> None:
        if self.places.elsewhere:
            return
        self.observations.unseen[what, self.places.current, source_line()] += 1

    def _module_output(self, name: str, call: tuple[Any, Any], output: Any) -> None:
        """A module to be taken whole: shortcut = its input, branch = output - input."""
        if name not in self._whole or self._found_inside(name):
            return
        if not torch.is_grad_enabled() or in_transform():
            return
        args, kwargs = call
        s = next((t for t in tensors_in((*args, *kwargs.values())) if t.is_floating_point()), None)
        y = next(
            (t for t in tensors_in((output,)) if s is not None and shape_of(t) == shape_of(s)), None
        )
        if s is None or y is None or self.places.was_rewritten(s, self.graph.edge(s)):
            self._unseen("not watched")
            return
        edge = self.graph.edge(s)
        if edge is None:
            self._unseen("not watched")
            return
        previous, link, embedding_fed = self._previous(edge)
        found = Found(
            relation=Relation(edge, edge, (), Branch(edge, {})),
            module=name,
            source="",
            occurrence=self._occurrence((name, ""), [], previous),
            alpha=1.0,
            shortcut_factor=1.0,
            broadcast=False,
            rewritten=False,
            shape=shape_of(y),
            dtypes=(_dtype(s), _dtype(y)),
            parameters=tuple(n for n in self.graph.names.values() if n.startswith(f"{name}.")),
            previous=previous,
            link=link,
            embedding_fed=embedding_fed,
            inside=[],
            watched="module",
        )
        with torch.no_grad():
            branch = y.to(wide(y.device)) - s.to(wide(s.device))
        self._visit(found, s, branch, lambda: y)
        # What was noticed inside and could not be measured is a part of it now.
        unseen = self.observations.unseen
        for key in [k for k in unseen if k[1] == name or k[1].startswith(f"{name}.")]:
            del unseen[key]

    def _found_inside(self, module: str) -> bool:
        return any(
            found.module == module or found.module.startswith(f"{module}.")
            for found in self.found.values()
        )

    def _module_input(self, tensor: Tensor) -> Edge | None:
        self.graph.note_input(tensor)
        return self.graph.edge(tensor)


def _common_shape(s: Tensor, f: Tensor) -> tuple[int, ...]:
    shapes = shape_of(s), shape_of(f)
    return shapes[0] if shapes[0] == shapes[1] else tuple(torch.broadcast_shapes(*shapes))


def _same_shape(addition: Addition) -> bool:
    return shape_of(addition.left) == shape_of(addition.right)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
