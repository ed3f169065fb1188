"""The autograd graph of one forward, read lazily, completed where autograd sees nothing.

Autograd's nodes carry a sequence number that grows with creation: an ancestor always has the
smaller one. That number is the node's name here. Tensors without a gradient (a raw input, frozen
layers, a `no_grad` region, `detach`) have no node; `Graph.note` gives each one of ours, with a
number between its neighbours', so that "does this descend from that?" has one answer everywhere.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from skipscope.find.node import Edge, Node, lacks_data, moves_last_axis, tensors_in
from skipscope.find.paths import canonical, sharded_parameters
from skipscope.find.vocabulary import Op, classify, makes_anew, takes_form

_TAKES_WEIGHTS = frozenset({Op.CONVOLUTION, Op.LINEAR, Op.ATTENTION, Op.NORM})
_MAKES_DATA = frozenset({Op.INPUT, Op.EMBEDDING, Op.CUSTOM})


class Graph:
    """The graph of one forward.

    It keeps autograd nodes alive, so `close` it when the forward's additions are all seen.
    """

    #: A parameter-made operand (weight standardisation, sigmoid of a gate) is smaller than this.
    CONSTANT_NODES = 48
    #: Nodes of one call that are looked at for where its data is missing.
    CALL_NODES = 1024
    #: Operations written out by hand (a norm, a GELU) come together again within so many nodes.
    REGION_NODES = 24

    def __init__(self, model: torch.nn.Module) -> None:
        self.names: dict[int, str] = {}
        self._buffers = {buffer.data_ptr() for buffer in model.buffers()}
        for name, parameter in model.named_parameters():
            self.names.setdefault(id(parameter), canonical(name))
            self._buffers.add(parameter.data_ptr())
        #: of a model in shards: what forwards see are whole copies, that its modules hold meanwhile
        self._copies = sharded_parameters(model)
        self.copy_names: dict[Edge, str] = {}
        self._nodes: dict[float, Node] = {}
        self._handles: dict[float, Any] = {}
        self._plain: dict[int, tuple[weakref.ref[Tensor], float]] = {}
        self._hidden: dict[float, Edge] = {}
        self._constant: dict[float, bool] = {}
        self._steps: dict[Edge, tuple[Edge, list[Node]] | None] = {}
        self._masks: set[float] = set()
        self._last = (0.0, 0)

    def close(self) -> None:
        """Let go of every autograd node."""
        self.copy_names.clear()
        for memory in (self._nodes, self._handles, self._plain, self._hidden, self._constant):
            memory.clear()
        self._steps.clear()
        self._masks.clear()

    # ------------------------------------------------------------------ tensors -> edges
    def edge(self, tensor: Tensor) -> Edge | None:
        """Where a tensor comes from; None for a constant that no data went into."""
        if not tensor.requires_grad:
            known = self._plain.get(id(tensor))
            return (known[1], 0) if known is not None and known[0]() is tensor else None
        if tensor.grad_fn is None:
            return self._leaf(tensor)
        return self._remember(tensor.grad_fn), tensor.output_nr

    def _leaf(self, tensor: Tensor) -> Edge:
        number = -float(id(tensor))
        if number not in self._nodes:
            # One that the model does not know of (a block in a plain list) is trained data no more.
            parameter = id(tensor) in self.names or isinstance(tensor, torch.nn.Parameter)
            op = Op.PARAMETER if parameter else Op.INPUT
            self._nodes[number] = Node(number, op, ())
        return number, 0

    def learn(self, path: str) -> None:
        """Names the whole copies of sharded parameters that a module holds as it begins to run."""
        for module, local, name in self._copies.get(path, ()):
            tensor = getattr(module, local, None)
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                edge = self.edge(tensor)
                if edge is not None:
                    self.copy_names[edge] = name

    def _remember(self, handle: Any) -> float:
        number = float(handle._sequence_nr())
        if number not in self._nodes:
            self._handles.setdefault(number, handle)
        return number

    def note_input(self, tensor: Tensor) -> None:
        """A module's input without gradient: data that enters the graph here."""
        if tensor.requires_grad or not tensor.is_floating_point() or self.edge(tensor) is not None:
            return
        self._add_plain(tensor, Op.INPUT, ())

    def note(self, name: str, args: Iterable[Any], result: Any) -> None:
        """Completes the graph after a call some of whose operands or results have no gradient."""
        outputs = [out for out in tensors_in((result,)) if out.is_floating_point()]
        if not outputs or makes_anew(name):
            return
        op = classify(name)
        operands = list(tensors_in(args))[: 1 if takes_form(name) else None]
        if (
            outputs[0].requires_grad
            and outputs[0].grad_fn is not None
            and self._masks_with(op, operands)
        ):
            self._masks.add(self._remember(outputs[0].grad_fn))
        sources = tuple(self._data_edges(operands, but_tracked=outputs[0].requires_grad))
        if not sources:
            return
        for output in outputs:
            if not output.requires_grad:
                self._add_plain(output, op, sources)
            elif output.grad_fn is not None:
                for number in self._without_data(self._remember(output.grad_fn), operands):
                    self._hide(number, op, sources)

    def _data_edges(self, tensors: Iterable[Tensor], *, but_tracked: bool) -> Iterator[Edge]:
        """Where tensors of data come from; without those that autograd itself knows."""
        for tensor in tensors:
            if tensor.requires_grad and but_tracked:
                continue
            edge = self.edge(tensor)
            if edge is not None and self.node(edge).op is not Op.PARAMETER:
                yield edge

    def _without_data(self, number: float, operands: Iterable[Tensor]) -> Iterable[float]:
        """The nodes of a call that its data is missing at; the last one where none shows.

        `linear` may be a view of a product, and an attention holds one for each of its inputs.

        Args:
            number: the node of the call's result.
            operands: of the call; what came before them is none of it.
        """
        tracked = [edge[0] for t in operands if t.requires_grad and (edge := self.edge(t))]
        before = max((one for one in tracked if one >= 0), default=-1.0)
        found: list[float] = []
        seen: set[float] = set()
        todo = [number]
        while todo and len(seen) < self.CALL_NODES:
            below = todo.pop()
            if below in seen or below <= before:  # parameters have numbers below 0
                continue
            seen.add(below)
            op, inputs, lacks = self._look(below)
            if op in _TAKES_WEIGHTS and lacks and all(map(self.constant, inputs)):
                found.append(below)
            todo.extend(edge[0] for edge in inputs)
        return found or [number]

    def _hide(self, number: float, op: Op, sources: tuple[Edge, ...]) -> None:
        """Gives an autograd node operands that autograd does not know of."""
        ours = self._number(number - 1)
        node = self._nodes[ours] = Node(ours, op, sources)
        self._refine(node)
        self._hidden[number] = (ours, 0)
        self._constant.pop(number, None)
        self._steps.pop((number, 0), None)
        if number in self._nodes:
            self._nodes[number].hidden = (ours, 0)

    def _masks_with(self, op: Op, operands: list[Tensor]) -> bool:
        """Whether a call multiplies by something that is neither a number nor the model's own.

        Told from the call and not from what autograd saved: reading that could start the
        recomputation of a checkpoint.
        """
        if op is Op.TRANSPARENT:
            return True  # of these, only dropout leaves a multiplication in the graph
        return (
            op is Op.MULTIPLY
            and any(self._varies(t) for t in operands)
            and any(t.requires_grad and not self._is_weight(t) for t in operands)
        )

    def _varies(self, tensor: Tensor) -> bool:
        """Whether a tensor without gradient is neither a number nor the model's own."""
        own = tensor.requires_grad or tensor.data_ptr() in self._buffers
        return not own and tensor.numel() > 1

    def _is_weight(self, tensor: Tensor) -> bool:
        """Whether parameters alone went in: then what it multiplies is the data, and no mask."""
        edge = self.edge(tensor)
        return edge is not None and self.constant(edge)

    def _add_plain(self, tensor: Tensor, op: Op, inputs: tuple[Edge | None, ...]) -> None:
        number = self._number(float(torch._C._autograd._get_sequence_nr()) - 1)
        node = self._nodes[number] = Node(number, op, inputs)
        self._refine(node)
        self._plain[id(tensor)] = (weakref.ref(tensor), number)

    def _number(self, base: float) -> float:
        """A fresh number above `base` and below `base + 1`."""
        count = self._last[1] + 1 if self._last[0] == base else 1
        self._last = (base, count)
        return base + count / (count + 1)

    # ------------------------------------------------------------------ edges -> nodes
    def node(self, edge: Edge) -> Node:
        """The node that made an edge."""
        number = edge[0]
        node = self._nodes.get(number)
        if node is None:
            node = self._read(number, self._handles.pop(number))
            self._nodes[number] = node
        return node

    def _read(self, number: float, handle: Any) -> Node:
        inputs: list[Edge | None] = []
        for function, output in handle.next_functions:
            if function is None:
                inputs.append(None)
            elif hasattr(function, "variable"):
                leaf = self._leaf(function.variable)
                self._nodes[leaf[0]].handle = function
                inputs.append(leaf)
            else:
                inputs.append((self._remember(function), output))
        op = classify(handle.name())
        node = Node(number, op, tuple(inputs), handle, self._hidden.get(number))
        self._refine(node)
        return node

    def _refine(self, node: Node) -> None:
        """Tells the meanings of a multiplication and an addition apart by their operands."""
        if node.op is Op.TRANSPARENT and moves_last_axis(node.handle):
            node.op = Op.TURN
        if node.op not in (Op.MULTIPLY, Op.ADD, Op.CONCATENATE):
            return
        data = self.data_inputs(node)
        if node.op is Op.MULTIPLY and len(data) < 2:
            node.op = Op.MASK if node.number in self._masks else Op.SCALE
        elif node.op is Op.ADD and len(data) < 2:
            node.op = Op.SHIFT
        elif node.op is Op.CONCATENATE and len(data) == 1:
            node.op = Op.PAD  # the other pieces are constants, zeros for instance

    def data_inputs(self, node: Node) -> list[Edge]:
        """The distinct operands that data went into.

        One that autograd does not know counts where there is no other: `x * mask` has one.
        """
        known = [e for e in node.inputs if e is not None and not self.constant(e)]
        if not known and node.hidden is not None:
            return [node.hidden]
        return list(dict.fromkeys(known))

    def constant(self, edge: Edge) -> bool:
        """Whether an operand is made of parameters only (a weight that is computed, say)."""
        known = self._constant.get(edge[0])
        if known is None:
            known = self._constant[edge[0]] = self._made_of_parameters(edge[0], set())
        return known

    def _made_of_parameters(self, number: float, seen: set[float]) -> bool:
        known = self._constant.get(number)
        if known is not None:
            return known
        seen.add(number)
        if len(seen) > self.CONSTANT_NODES:
            return False
        op, inputs, blank = self._look(number)
        # A weight product without data operand is how data without gradient enters the graph.
        enters = op in _TAKES_WEIGHTS and blank
        data = enters or not inputs or op in _MAKES_DATA or number in self._hidden
        made = op is Op.PARAMETER or (
            not data
            and all(self._made_of_parameters(e[0], seen) for e in inputs if e[0] not in seen)
        )
        if len(seen) <= self.CONSTANT_NODES:  # else it says nothing about those on the way
            self._constant[number] = made
        return made

    def _look(self, number: float) -> tuple[Op, list[Edge], bool]:
        """Operation and operands of a node without reading it, and whether its data has no edge."""
        node = self._nodes.get(number)
        if node is not None:
            edges = [edge for edge in node.inputs if edge is not None]
            return node.op, edges, lacks_data(node.op, [edge is None for edge in node.inputs])
        handle = self._handles[number]
        functions = handle.next_functions
        inputs = [self._peek(function, nr) for function, nr in functions if function is not None]
        op = classify(handle.name())
        return op, inputs, lacks_data(op, [function is None for function, _ in functions])

    def _peek(self, function: Any, output: int) -> Edge:
        if hasattr(function, "variable"):
            leaf = self._leaf(function.variable)
            self._nodes[leaf[0]].handle = function
            return leaf
        return self._remember(function), output

    # ------------------------------------------------------------------ walks
    def step_back(self, edge: Edge) -> tuple[Edge, list[Node]] | None:
        """The nearest earlier edge through which all data of this one came, and what lies between.

        Mostly one operation; several where one is written out by hand (a norm, a GELU, a gate).
        None at an origin, or where the paths do not come together again soon.
        """
        if edge not in self._steps:
            self._steps[edge] = self._step_back(edge)
        return self._steps[edge]

    def _step_back(self, edge: Edge) -> tuple[Edge, list[Node]] | None:
        frontier = {edge}
        between: list[Node] = []
        while len(between) < self.REGION_NODES:
            node = self.node(max(frontier))
            between.append(node)
            frontier = {e for e in frontier if e[0] != node.number}
            frontier.update(self.data_inputs(node))
            if len(frontier) == 1:
                return frontier.pop(), between
            if not frontier:
                return None
        return None
