"""A factor on the output of a module."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Learned = Literal["no", "scalar", "channel"]


class Factor:
    """`branch_scale` of a module, and the hook that multiplies its output by it.

    It is 1 and part of autograd's graph, learned or not, until it is settled.
    """

    def __init__(
        self, path: str, module: nn.Module, learned: Learned, output: tuple[int, ...]
    ) -> None:
        self.path = path
        self._module, self._learned = module, learned != "no"
        weight = next(module.parameters())
        shape = channels_of(module, output) if learned == "channel" else ()
        self.value = torch.ones(shape, dtype=weight.dtype, device=weight.device)
        if learned == "no":
            module.register_buffer("branch_scale", self.value.requires_grad_())
        else:
            self.value = module.branch_scale = nn.Parameter(self.value)
        self._hook: RemovableHandle = module.register_forward_hook(_times_branch_scale)

    def set(self, value: float) -> None:
        """Gives every entry this value."""
        with torch.no_grad():
            self.value.fill_(value)

    def settle(self, value: float) -> None:
        """Gives it the value that it starts from, or keeps."""
        self.set(value)
        self.value.requires_grad_(self._learned)

    def remove(self) -> None:
        """Leaves the module as it was, whatever has become of the value meanwhile."""
        self._hook.remove()
        if hasattr(self._module, "branch_scale"):
            del self._module.branch_scale


def channels_of(module: nn.Module, output: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one number for each channel of what a module returns."""
    if isinstance(module, nn.modules.conv._ConvNd):
        return (module.out_channels, *[1] * len(module.kernel_size))
    return output[-1:]


def scale_of(module: nn.Module) -> Tensor | None:
    """The `branch_scale` that a module's output is multiplied by, where there is one."""
    if _times_branch_scale in module._forward_hooks.values():
        scale: Tensor = module.branch_scale  # type: ignore[assignment]
        return scale
    return None


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
