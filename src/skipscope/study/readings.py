"""What is read off a net at one step: gradients and updates along depth, and the features' rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

from skipscope.records import Site
from skipscope.restore import unchanged

#: So many samples of the training set make the fixed batch of the effective rank.
FIXED = 256


def effective_rank(features: Tensor) -> float | None:
    """The exponential of the entropy of the normalised singular values; None where not finite.

    p_i = s_i / sum(s), exp(-sum(p_i log p_i)). Features are taken as they are, not centred: that
    all samples point one way is the collapse that is looked for, and their mean is a part of it. It
    is 1 where they do, and the number of channels where all directions are equally strong.

    Shape: `features` (..., channels); all other axes count samples.

    Source: Roy and Vetterli, The effective rank: a measure of effective dimensionality, EUSIPCO
    2007.

    >>> round(effective_rank(torch.eye(4)), 6), round(effective_rank(torch.ones(5, 3)), 6)
    (4.0, 1.0)
    """
    rows = features.detach().reshape(-1, features.shape[-1]).double()
    if not torch.isfinite(rows).all():
        return None
    values = torch.linalg.svdvals(rows)
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(torch.exp(-(shares * shares.log()).sum())) if len(shares) else None


def norm(tensors: Sequence[Tensor]) -> float | None:
    """The Euclidean norm of all numbers together; None where there are none."""
    if not tensors:
        return None
    return float(torch.stack([t.detach().double().square().sum() for t in tensors]).sum().sqrt())


def gradient_norm(parameters: Sequence[nn.Parameter]) -> float | None:
    """The norm of the gradient of some parameters; None where none has one."""
    return norm([p.grad for p in parameters if p.grad is not None])


class Update:
    """||dW|| / ||W|| of some parameters in one optimizer step."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._before = [parameter.detach().clone() for parameter in parameters]

    def size(self) -> float | None:
        """After the step; None where there is nothing, or all was 0 before."""
        before = norm(self._before)
        moved = norm([p.detach() - b for p, b in zip(self._parameters, self._before, strict=True)])
        return moved / before if before and moved is not None else None


class Blocks:
    """The block-level sites of a residual model, along depth, and where its features are read.

    Args:
        model: as it is, with its shortcuts.
        sites: its block-level sites, in order.
        x: an example of its inputs.
    """

    def __init__(self, model: nn.Module, sites: Sequence[Site], x: Tensor) -> None:
        named = dict(model.named_parameters())
        self.branches = [[named[name] for name in site.parameters] for site in sites]
        self.first, self.last = self.branches[0], self.branches[-1]
        self._model = model
        self._place, self._before = _features_at(model, sites, x)
        self._channels = _channel_axis(model, self._place, None if self._before else sites[-1])

    def features(self, x: Tensor) -> Tensor:
        """What the head is given for some inputs; the model stays as it was."""
        seen: list[Any] = []
        if self._before:
            handle = self._place.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        else:
            handle = self._place.register_forward_hook(lambda _, args, out: seen.append(out))
        try:
            with unchanged(self._model), torch.no_grad():
                self._model(x)
        finally:
            handle.remove()
        features = next(leaf for leaf in tree_leaves(seen[-1]) if isinstance(leaf, Tensor))
        return features.movedim(self._channels, -1)


def _channel_axis(model: nn.Module, place: nn.Module, last: Site | None) -> int:
    """1 before a convolution, and after a block that holds one; otherwise the last axis."""
    near = [place]
    if last is not None:
        near += [model.get_submodule(name.rpartition(".")[0]) for name in last.parameters]
    return 1 if any(isinstance(module, _ConvNd) for module in near) else -1


def _features_at(model: nn.Module, sites: Sequence[Site], x: Tensor) -> tuple[nn.Module, bool]:
    """The head, whose input is wanted; without one the last block, whose output is.

    The head is the last module with a matrix of its own that is called, if no branch holds it.
    """
    in_branches = {name for site in sites for name in site.parameters}
    owners = {
        module: f"{path}." if path else ""
        for path, module in model.named_modules()
        if any(p.dim() >= 2 for p in module.parameters(recurse=False))
    }
    called: list[nn.Module] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, args: called.append(module) if args else 0)
        for module in owners
    ]
    try:
        with unchanged(model), torch.no_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    for module in called[-1:]:
        own = {owners[module] + name for name, _ in module.named_parameters(recurse=False)}
        if own.isdisjoint(in_branches):
            return module, True
    return model.get_submodule(sites[-1].module), False
