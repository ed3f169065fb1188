"""Where branches end: the last weighted operation of each, and what comes behind it.

What a remedy changes is read from autograd's graph, not from module names: the operation whose
result the branch is, up to moves, dropout and factors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skipscope.additions import Operations
from skipscope.example import run_example
from skipscope.find import Found, SiteRegistry
from skipscope.find.node import Branch, Edge, Node
from skipscope.find.vocabulary import MATRIX, PASSES, Op, plain
from skipscope.find.walk import parameters_of
from skipscope.intervention.rehearsal import Rehearsal
from skipscope.records import Key, Site, SiteMap
from skipscope.remedies.behind import nodes_behind
from skipscope.remedies.named import modules_of
from skipscope.remedies.named import parameters_of as named
from skipscope.restore import unchanged

_FOLLOWED = frozenset({Op.SCALE, Op.ADD, Op.ACTIVATION, Op.CONCATENATE, Op.SLICE})
_WEIGHTED = frozenset({Op.LINEAR, Op.CONVOLUTION, Op.NORM})


@dataclass
class End:
    """How one branch ends."""

    #: what makes its last values: a matrix, a norm, a factor that is trained; "": none was found
    kinds: set[Literal["matrix", "norm", "scale"]] = field(default_factory=set)
    parameters: dict[str, None] = field(default_factory=dict)  #: of these operations, in order
    activations: list[str] = field(default_factory=list)  #: behind them
    gated: bool = False  #: the result is a product whose factors come from one weight
    sliced: bool = False  #: the result is a part of what they make
    bare_norm: bool = False  #: it ends in a norm without weight
    unclear: str = ""  #: an operation that cannot be followed
    convolved: bool = False  #: a matrix of them is that of a convolution
    alpha: float = 1.0  #: the addition's own factor
    #: parameters of a branch that is 0 which do not move it, to first order
    idle: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Ends:
    """The ends of a model's branches, by site."""

    sites: SiteMap
    ends: Mapping[Key, End]
    uses: Mapping[str, int]  #: how often the forward reads each parameter
    #: of each module that ran, by its path: the shape of the tensor that it returned, alone or as
    #: the first of a tuple; None where it returned something else
    outputs: Mapping[str, tuple[int, ...] | None]

    def at(self, site: Site) -> End:
        """The end of a site's branch."""
        return self.ends[site.key]

    def carrier(self, end: End) -> str:
        """The path of the module whose output holds what a branch ends in.

        That is the owner of its last weight or, where another module reads the weight and never
        calls the owner (an attention's `out_proj`), the nearest one around it that is called.
        """
        path = owner_of(next(iter(end.parameters)))
        while path and path not in self.outputs:
            path = path.rpartition(".")[0]
        return path


def owner_of(parameter: str) -> str:
    """The path of the module whose parameter it is, also where its weight is computed from it.

    >>> owner_of("fc.weight"), owner_of("fc.parametrizations.weight.original0")
    ('fc', 'fc')
    """
    module, computed, _ = parameter.partition(".parametrizations.")
    return module if computed else parameter.rpartition(".")[0]


def ends_of(
    remedy: str, model: nn.Module, example: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Ends:
    """Finds how branches end, by one forward in evaluation mode that changes nothing.

    In evaluation mode no branch is dropped at random.

    Raises:
        ValueError: the example does not fit; the model's own error is the cause.
    """
    with unchanged(model), torch.enable_grad(), all_trainable(model):
        model.eval()
        reading = _Reading(model)
        try:
            with reading.places, _outputs_of(model) as outputs, Operations(reading):
                output = run_example(remedy, model, example, kwargs)
            sites = SiteRegistry().site_map(
                reading.found.values(), reading.observations.unseen, reading.places.called
            )
            ends = {key: reading.end(found) for key, found in reading.found.items()}
            return Ends(sites, ends, _uses(model, output), outputs)
        finally:
            reading.close()


@contextmanager
def _outputs_of(model: nn.Module) -> Iterator[dict[str, tuple[int, ...] | None]]:
    """The shapes of what the modules return while the context is open, as `Ends.outputs`."""
    outputs: dict[str, tuple[int, ...] | None] = {}

    def hook(path: str) -> Callable[..., None]:
        def note(module: nn.Module, args: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            outputs[path] = tuple(first.shape) if isinstance(first, Tensor) else None

        return note

    handles = [m.register_forward_hook(hook(path)) for path, m in modules_of(model).items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def all_trainable(model: nn.Module) -> Iterator[None]:
    """Lets autograd see frozen weights, too."""
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


class _Reading(Rehearsal):
    """Keeps where each branch comes from, and follows it back."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._from: dict[Key, list[Edge | None]] = {}
        self._parameters = named(model)
        self._matrices = {name for name, weight in self._parameters.items() if weight.dim() > 1}
        self._zero: dict[Key, Tensor] = {}

    def _on_part(self, found: Found, s: Tensor, f: Tensor, run: Callable[[], Tensor]) -> Tensor:
        self._zero.pop(found.key, None)
        if f.requires_grad and not f.detach().any():
            self._zero[found.key] = f.clone()  # an addition in place overwrites it
        addition = self._addition
        if addition is None:
            return super()._on_part(found, s, f, run)
        edges = self.graph.edge(addition.left), self.graph.edge(addition.right)
        result = super()._on_part(found, s, f, run)
        part = self._part
        if part is not None:
            known = self._from.get(found.key, []) if part.further else []
            self._from[found.key] = [*known, edges[0 if part.branch_left else 1]]
        return result

    def end(self, found: Found) -> End:
        """How a site's branch ends."""
        end = End(alpha=found.alpha, idle=self._idle(found))
        for edge in self._from.get(found.key, []):
            self._follow(found.relation.branch, edge, end)
        return end

    def _idle(self, found: Found) -> frozenset[str]:
        branch = self._zero.get(found.key)
        names = [name for name in found.parameters if name in self._parameters]
        if branch is None or not names:
            return frozenset()
        tensors = [self._parameters[name] for name in names]
        along = torch.rand_like(branch)  # a constant one is blind to what a norm lets through
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
            [branch], tensors, [along], retain_graph=True, allow_unused=True
        )
        moved = zip(names, gradients, strict=True)
        return frozenset(name for name, g in moved if g is None or not g.any())

    def _follow(self, branch: Branch, edge: Edge | None, end: End) -> None:
        if edge is None or edge[0] not in branch.nodes:
            return  # x itself, or data from elsewhere: nothing of the branch
        node = branch.nodes[edge[0]]
        own = parameters_of(self.graph, Branch(branch.source, {node.number: node}))
        own = tuple(sorted(own, key=lambda name: name.endswith("bias")))  # autograd has it first
        if node.op in MATRIX and own and not self._matrices.intersection(own):
            end.unclear = f"{_name(node)} by a weight that is computed"
            end.parameters.update(dict.fromkeys(own))
        elif node.op in _WEIGHTED and own:
            self._take(end, "norm" if node.op is Op.NORM else "matrix", own)
            end.convolved |= node.op is Op.CONVOLUTION
        elif node.op in (Op.SCALE, Op.MASK) and own:  # with a cast behind it, it looks like a mask
            self._take(end, "scale", own)
        elif node.op is Op.NORM:
            end.bare_norm = True
        elif node.op is Op.MULTIPLY:
            self._follow_product(branch, node, end)
        elif node.op in PASSES or node.op in _FOLLOWED:
            if node.op is Op.ACTIVATION:
                end.activations.append(_name(node))
            end.sliced |= node.op is Op.SLICE
            end.parameters.update(dict.fromkeys(own))  # a bias that is added apart
            for before in self.graph.data_inputs(node):
                self._follow(branch, before, end)
        else:
            end.unclear = end.unclear or _name(node) or node.op.value

    @staticmethod
    def _take(end: End, kind: Literal["matrix", "norm", "scale"], own: Iterable[str]) -> None:
        end.kinds.add(kind)
        end.parameters.update(dict.fromkeys(own))

    def _follow_product(self, branch: Branch, node: Node, end: End) -> None:
        """Of a gate and a value it is the value that is changed: the factor without activation."""
        factors = []
        for edge in self.graph.data_inputs(node):
            factor = End()
            self._follow(branch, edge, factor)
            if factor.parameters or factor.unclear or factor.activations:
                factors.append(factor)
        common = [factor.parameters.keys() for factor in factors]
        if len(factors) > 1 and set.intersection(*map(set, common)):
            end.gated = True
        factors.sort(key=lambda factor: (bool(factor.unclear), len(factor.activations)))
        if not factors:
            end.unclear = end.unclear or "a product of data"
            return
        value = factors[0]
        end.kinds |= value.kinds
        end.parameters.update(value.parameters)
        end.activations += value.activations
        end.gated |= value.gated
        end.sliced |= value.sliced
        end.bare_norm |= value.bare_norm
        end.convolved |= value.convolved
        end.unclear = end.unclear or value.unclear


def _name(node: Node) -> str:
    return plain(node.handle.name()) if node.handle is not None else node.op.value


def _uses(model: nn.Module, output: Any) -> dict[str, int]:
    """How often each parameter is read, as the graph of the output tells."""
    names = {id(parameter): name for name, parameter in named(model).items()}
    counts: Counter[str] = Counter()
    leaves = tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    for node in nodes_behind(leaf for leaf in leaves if isinstance(leaf, Tensor)):
        for function, _ in node.next_functions:
            if hasattr(function, "variable"):
                counts[names.get(id(function.variable), "")] += 1
    return counts
