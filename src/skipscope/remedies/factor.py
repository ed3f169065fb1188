"""A factor on a module's output, and the proof of what it does to the branches of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from skipscope.additions import Additions
from skipscope.example import run_example
from skipscope.find import Discovery, Found
from skipscope.intervention.rehearsal import Key
from skipscope.reduce import wide
from skipscope.remedies.ends import all_trainable
from skipscope.restore import unchanged

Learned = Literal["no", "scalar", "channel"]

#: Tried before alpha: unlike 1 it changes something, unlike 0 it keeps what it changes in sight.
PROBE = 0.5
#: What rounding in half precision may add up to, relative to the branch.
TOLERANCE = 0.01


class Factor:
    """`branch_scale` of a module, and the hook that multiplies its output by it."""

    def __init__(
        self, path: str, module: nn.Module, learned: Learned, output: tuple[int, ...]
    ) -> None:
        self.path = path
        self._module = module
        weight = next(module.parameters())
        shape = channels_of(module, output) if learned == "channel" else ()
        self.value = torch.ones(shape, dtype=weight.dtype, device=weight.device)
        if learned == "no":
            module.register_buffer("branch_scale", self.value)
        else:
            self.value = module.branch_scale = nn.Parameter(self.value)
        self._hook: RemovableHandle = module.register_forward_hook(_times_branch_scale)

    def set(self, value: float) -> None:
        """Gives every entry this value."""
        with torch.no_grad():
            self.value.fill_(value)

    def remove(self) -> None:
        """Leaves the module as it was."""
        self._hook.remove()
        del self._module.branch_scale


def channels_of(module: nn.Module, output: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one number for each channel of what a module returns."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return (module.out_channels, *[1] * len(module.kernel_size))
    return output[-1:]


def instead(alpha: float) -> str:
    """What does the same to the weights, where no module's output can be multiplied.

    >>> instead(0.5)
    '; depth_scaled_init(..., factor=0.5) multiplies its last weights instead'
    """
    if alpha == 0:
        return "; zero_init_branches sets its last weights to 0 instead"
    if alpha < 0:
        return ""
    return f"; depth_scaled_init(..., factor={alpha:g}) multiplies its last weights instead"


def _times_branch_scale(module: nn.Module, args: object, output: Any) -> Any:
    """A hook of the module's own: copies and pickles take it along.

    An attention returns its weights as well, which are none of the branch.

    Raises:
        TypeError: it returns something else than in the forward that proved the factor.
    """
    scale: Tensor = module.branch_scale  # type: ignore[assignment]
    if isinstance(output, Tensor):
        return output * scale
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return (output[0] * scale, *output[1:])
    raise TypeError(
        f"branch_scale multiplies a tensor, or the first of a tuple, and {type(module).__name__} "
        f"returned {type(output).__name__}"
    )


class Branches:
    """Every branch of one forward in evaluation mode, which changes nothing.

    Args:
        remedy: who asks.
        model: the model.
        example: what its forward takes.
        kwargs: keyword arguments of the forward.
        before: an earlier forward, whose sums are put in the place of this one's: each branch then
            reads what it read before, whatever became of the branches in front of it.
    """

    def __init__(
        self,
        remedy: str,
        model: nn.Module,
        example: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        before: Branches | None = None,
    ) -> None:
        self._before = before
        self._branch: dict[Key, Tensor] = {}
        #: the last sum of each site, and how many additions made it
        self._sums: dict[Key, tuple[int, Tensor]] = {}
        discovery = self._discovery = Discovery(model, self._on_site)
        try:
            with unchanged(model), torch.enable_grad(), all_trainable(model):
                model.eval()
                with discovery.places, Additions(discovery):
                    run_example(remedy, model, example, kwargs)
        finally:
            discovery.close()

    def _on_site(self, found: Found, s: Tensor, f: Tensor, run: Callable[[], Tensor]) -> Tensor:
        key = found.key
        self._branch[key] = f.detach().clone()  # an addition in place overwrites it
        result = run()
        count = self._sums[key][0] + 1 if found.parallel and key in self._sums else 1
        if self._before is None:
            self._sums[key] = count, result.detach().clone()
            return result
        last, total = self._before._sums.get(key, (0, result))
        self._sums[key] = count, total
        if count == last:
            result.copy_(total)
            found.sum_edge = self._discovery.graph.edge(result)
        return result

    def why_not(self, key: Key, factor: float, by: str) -> str:
        """Why a branch is not `factor` times what it was before; "" where it is."""
        if self._before is None or key not in self._before._branch or key not in self._branch:
            return f"with a factor on the output of {by} its addition is not seen again"
        old, new = self._before._branch[key], self._branch[key]
        old, new = old.to(wide(old.device)), new.to(wide(new.device))
        finite = old.isfinite() & new.isfinite()
        old, new = old[finite], new[finite]
        size = old.norm()
        if (new - factor * old).norm() <= TOLERANCE * size:
            return ""
        times = float((new * old).sum() / size.square())
        return (
            f"a factor of {factor:g} on the output of {by} makes it {times:.3g} times what it was, "
            "as a forward shows: the branch is not that output times something"
        )
