"""The proof of what factors on modules' outputs do: to their branches, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skipscope.additions import Operations
from skipscope.example import run_example
from skipscope.find import Discovery, Found
from skipscope.records import Key
from skipscope.reduce import wide
from skipscope.remedies.behind import nodes_behind
from skipscope.remedies.ends import all_trainable
from skipscope.restore import unchanged

#: Tried before alpha: unlike 1 it changes something, unlike 0 it keeps what it changes in sight.
PROBE = 0.5
#: What rounding in half precision may add up to, relative to the branch.
TOLERANCE = 0.01


class Forward:
    """Every branch of one forward in evaluation mode, which changes nothing.

    Args:
        remedy: who asks.
        model: the model.
        example: what its forward takes.
        kwargs: keyword arguments of the forward.
    """

    def __init__(
        self,
        remedy: str,
        model: nn.Module,
        example: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.branch: dict[Key, Tensor] = {}
        self.shortcut: dict[Key, Tensor] = {}
        #: the last sum of each site, and how many additions made it
        self.sums: dict[Key, tuple[int, Tensor]] = {}
        discovery = self._discovery = Discovery(model, self._on_site)
        try:
            with unchanged(model), torch.enable_grad(), all_trainable(model):
                model.eval()
                with discovery.places, Operations(discovery):
                    output = run_example(remedy, model, example, kwargs)
            leaves = tree_leaves(dict(output) if isinstance(output, Mapping) else output)
            self.outputs = [x.detach().clone() for x in leaves if isinstance(x, Tensor)]
        finally:
            discovery.close()

    def _on_site(self, found: Found, s: Tensor, f: Tensor, run: Callable[[], Tensor]) -> Tensor:
        key = found.key
        self.branch[key] = f.detach().clone()  # an addition in place overwrites it
        again = found.parallel and key in self.sums
        count = self.sums[key][0] + 1 if again else 1
        if not again:  # a further branch is added to the sum so far
            self.shortcut[key] = s.detach().clone()
        return self._sum(found, count, run())

    def _sum(self, found: Found, count: int, result: Tensor) -> Tensor:
        self.sums[found.key] = count, result.detach().clone()
        return result


class Scaled(Forward):
    """The same forward with factors, each `PROBE`, on what some branches end in.

    The sums are those of the forward before: each branch then reads what it read there, whatever
    became of the branches in front of it, and only what reads a factor past its sum differs.

    Args:
        remedy: who asks.
        model: the model.
        example: what its forward takes.
        kwargs: keyword arguments of the forward.
        before: the forward without factors.
        factors: by site.
    """

    def __init__(
        self,
        remedy: str,
        model: nn.Module,
        example: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        before: Forward,
        factors: Mapping[Key, Tensor],
    ) -> None:
        self._before, self._factors = before, factors
        self._reached: set[Key] = set()
        super().__init__(remedy, model, example, kwargs)

    def _on_site(self, found: Found, s: Tensor, f: Tensor, run: Callable[[], Tensor]) -> Tensor:
        factor, old = self._factors.get(found.key), self._before.branch.get(found.key)
        if factor is not None and old is not None and not old.any() and _reads(f, factor):
            self._reached.add(found.key)
        return super()._on_site(found, s, f, run)

    def _sum(self, found: Found, count: int, result: Tensor) -> Tensor:
        last, total = self._before.sums.get(found.key, (0, result))
        self.sums[found.key] = count, total
        if count == last:
            result.copy_(total)
            found.sum_edge = self._discovery.graph.edge(result)
        return result

    def why_not(self, key: Key, by: str) -> str:
        """Why a branch is not `PROBE` times what it was before; "" where it is."""
        if key not in self._before.branch or key not in self.branch:
            return f"with a factor on the output of {by} its addition is not seen again"
        old, new = _wide(self._before.branch[key]), _wide(self.branch[key])
        finite = old.isfinite() & new.isfinite()
        if not finite.any():
            return "its branch holds no finite number in the example: give another one"
        old, new = old[finite], new[finite]
        size = old.norm()
        if size == 0:
            return self._why_zero(key, by)
        if (new - PROBE * old).norm() <= TOLERANCE * size:
            return ""
        times = float((new * old).sum() / size.square())
        return (
            f"a factor of {PROBE:g} on the output of {by} makes it {times:.3g} times what it was, "
            "as a forward shows: the branch is not that output times something"
        )

    def _why_zero(self, key: Key, by: str) -> str:
        """Numbers tell nothing of a branch that is 0; autograd's graph tells what it is made of."""
        if key in self._reached:
            return ""
        return (
            f"it is 0 in the example and does not read the output of {by}, so a factor there would "
            "scale something else"
        )

    def further(self) -> str:
        """What the factors change beside their branches; "" where nothing."""
        for key, old in self._before.shortcut.items():
            if key in self.shortcut and _differ(old, self.shortcut[key]):
                return f"the shortcut of {_at(key)}"
        for key, old in self._before.branch.items():
            if key in self.branch and key not in self._factors and _differ(old, self.branch[key]):
                return f"the branch of {_at(key)}"
        pairs = zip(self._before.outputs, self.outputs, strict=False)
        return "what the model returns" if any(_differ(*pair) for pair in pairs) else ""


def _at(key: Key) -> str:
    return f"the addition at {key[1]} in {key[0] or 'the model'}"


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(wide(tensor.device))


def _differ(old: Tensor, new: Tensor) -> bool:
    """Whether two tensors differ by more than their precision; half of its digits may be noise."""
    if old.shape != new.shape:
        return True
    if not old.is_floating_point():
        return False
    noise = torch.finfo(old.dtype).eps ** 0.5
    old, new = _wide(old), _wide(new)
    finite = old.isfinite() & new.isfinite()
    old, new = old[finite], new[finite]
    return bool((new - old).norm() > noise * old.norm())


def _reads(tensor: Tensor, leaf: Tensor) -> bool:
    """Whether a tensor is computed from a leaf, as autograd's graph has it."""
    return any(getattr(node, "variable", None) is leaf for node in nodes_behind([tensor]))
