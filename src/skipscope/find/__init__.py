"""Finding residual additions: `find_residuals`, and what capture uses of it on every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from skipscope.additions import Operations
from skipscope.example import check_model, run_example
from skipscope.find.discover import Discovery
from skipscope.find.found import Found
from skipscope.find.sitemap import SiteRegistry
from skipscope.records import SiteMap
from skipscope.restore import unchanged

__all__ = ["Discovery", "Found", "SiteRegistry", "find_residuals"]


def find_residuals(model: nn.Module, *args: Any, **kwargs: Any) -> SiteMap:
    """Finds the residual additions of a model by one forward with an example input.

    The forward runs in the model's present mode (train or eval), with gradients enabled and without
    `torch.compile`. Random state, buffers and `.grad` are afterwards as they were before.

    Args:
        model: any module.
        *args: what the model's forward takes; no labels or loss are needed.
        **kwargs: its keyword arguments.

    Returns:
        The site map; `print` shows it as a table. Block-level sites are those not `nested`.

    Raises:
        TypeError: `model` is no `nn.Module`, or a TorchScript module, whose operations are hidden.
        ValueError: the example inputs do not fit; the model's own error is the cause.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.fc = nn.Linear(8, 8)
        ...     def forward(self, x):
        ...         return x + self.fc(x).relu()
        >>> net = nn.Sequential(nn.Linear(4, 8), Block(), Block())
        >>> [(site.name, site.kind) for site in find_residuals(net, torch.ones(2, 4)).sites]
        [('1', 'identity'), ('2', 'identity')]
    """
    check_model("find_residuals", model)
    discovery = Discovery(model)
    with unchanged(model), discovery.places, torch.enable_grad(), Operations(discovery):
        run_example("find_residuals", model, args, kwargs)
    site_map = SiteRegistry().site_map(
        discovery.found.values(), discovery.observations.unseen, discovery.places.called
    )
    discovery.close()
    return site_map
