"""Other starts of a model that was just made: He's, near the identity, or at it.

Source: He et al., Delving Deep into Rectifiers, 2015 (`he`).
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from skipscope import remedies
from skipscope.find import find_residuals


def he(model: nn.Module, x: Tensor) -> None:
    """Draws the matrices of all branches anew after He; their norm weights and scales become 1.

    Biases become 0. Of a plain net it keeps the size of signal and gradient, which starts made for
    shortcuts (zero-init, 1/sqrt(N), ReZero, LayerScale) do not.
    """
    names = {name for site in find_residuals(model, x).sites for name in site.parameters}
    for name, parameter in model.named_parameters():
        if name not in names:
            continue
        if parameter.dim() >= 2:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
        elif name.rpartition(".")[2].endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.ones_(parameter)


def depth_scaled(model: nn.Module, x: Tensor) -> None:
    """What each branch ends in, times 1/sqrt(N), N being the sites of its stream."""
    remedies.depth_scaled_init(model, x)


def scaled_branches(model: nn.Module, x: Tensor) -> None:
    """Each branch times 1/sqrt(N) for good, N being the sites: y = s + F/sqrt(N).

    Other than by `depth_scaled` its gradients get the factor too, so it learns more slowly.
    """
    count = len(find_residuals(model, x).sites)
    remedies.scale_branches(model, x, alpha=1 / math.sqrt(count), learned="no")


def zero_last(model: nn.Module, x: Tensor) -> None:
    """What each branch ends in becomes 0."""
    remedies.zero_init_branches(model, x)
