"""Parameters and modules by the names that the user's model gives them, whatever wraps it.

`torch.compile` and other wrappers put parts of their own into paths; sites and the parameters that
autograd's graph knows are named without these.
"""

from __future__ import annotations

from torch import nn

from skipscope.find.paths import canonical


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model, each once.

    >>> import torch
    >>> list(parameters_of(torch.compile(nn.Linear(1, 1), backend="eager")))
    ['weight', 'bias']
    """
    return {canonical(name): parameter for name, parameter in model.named_parameters()}


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model; of a wrapper and what it wraps the latter, which owns the weights.

    >>> import torch
    >>> [type(m).__name__ for m in modules_of(torch.compile(nn.ReLU(), backend="eager")).values()]
    ['ReLU']
    """
    return {canonical(path): module for path, module in model.named_modules()}
