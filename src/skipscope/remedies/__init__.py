"""Remedies: what the findings advise, done to a model before it trains.

Each finds the sites by one forward with an example, as `preflight` does, refuses what would do harm
(all of it, with the reasons, and nothing is changed then), and returns an account of what it did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from skipscope.records import Site
from skipscope.remedies.factor import Learned
from skipscope.remedies.scaling import scale
from skipscope.remedies.treatment import Account, Change, Trained, Treatment
from skipscope.remedies.why import why_not_depth, why_not_factor, why_not_zero, why_zero_already

__all__ = ["Account", "Change", "depth_scaled_init", "scale_branches", "zero_init_branches"]


def zero_init_branches(
    model: nn.Module,
    *example: Any,
    sites: str | Sequence[str] | None = None,
    trained: Trained = "refuse",
    **kwargs: Any,
) -> Account:
    """Sets what each branch ends in to 0, so that the model starts as the identity along depth.

    That is the last matrix and its bias, or, where a norm or a trained factor comes behind it, that
    one's weight and bias (of weight_norm the factor g). Afterwards a forward and a backward prove
    that every branch is 0 and gets a gradient.

    Args:
        model: the model, before it trains.
        *example: what its forward takes.
        sites: names of sites, module paths (with `*` and `?`) or class names; None: all
            block-level sites.
        trained: "allow" to do it to weights that are trained or loaded, which it destroys.
        **kwargs: keyword arguments of the forward.

    Raises:
        ValueError: a branch would never wake up, or the change reaches further than the branch;
            each site is named with its reason.

    Example:
        >>> import torch
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.fc = nn.Linear(4, 4, bias=False)
        ...         nn.init.ones_(self.fc.weight)
        ...     def forward(self, x):
        ...         return x + self.fc(x)
        >>> print(zero_init_branches(nn.Sequential(Block(), Block()), torch.ones(2, 4)))
        zero_init_branches: 2 branches
          0  0.fc.weight  1 -> 0
          1  1.fc.weight  1 -> 0
    """
    work = Treatment("zero_init_branches", model, example, kwargs, sites, trained)
    for site, end in work.each():
        work.refuse(site, why_not_zero(work, site, end))
    work.stop_if_refused()
    account = work.multiply(lambda site: 0.0)
    work.prove_awake()
    return account


def depth_scaled_init(
    model: nn.Module,
    *example: Any,
    factor: float | None = None,
    sites: str | Sequence[str] | None = None,
    trained: Trained = "refuse",
    scaled: Literal["refuse", "allow"] = "refuse",
    **kwargs: Any,
) -> Account:
    """Multiplies what each branch ends in by 1/sqrt(N), N being the sites of its stream.

    For a model of L blocks with two additions each that is 1/sqrt(2L).

    Args:
        model: the model, before it trains.
        *example: what its forward takes.
        factor: instead of 1/sqrt(N).
        sites: names of sites, module paths (with `*` and `?`) or class names; None: all
            block-level sites.
        trained: "allow" to do it to weights that are trained or loaded, which changes the function.
        scaled: "allow" to do it to what is scaled already: by this remedy, by `scale_branches`, or
            by the model's own initialisation, which makes the last matrices of most branches about
            so much smaller than the others.
        **kwargs: keyword arguments of the forward.

    Raises:
        ValueError: the change would not be that of the branch's scale, would be none, or is made
            already; each site is named with its reason.

    Example:
        >>> import torch
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.fc = nn.Linear(4, 4, bias=False)
        ...         nn.init.ones_(self.fc.weight)
        ...     def forward(self, x):
        ...         return x + self.fc(x)
        >>> print(depth_scaled_init(nn.Sequential(*(Block() for _ in range(4))), torch.ones(2, 4)))
        depth_scaled_init: 4 branches
          0  0.fc.weight  1 -> 0.5
          1  1.fc.weight  1 -> 0.5
          2  2.fc.weight  1 -> 0.5
          3  3.fc.weight  1 -> 0.5
    """
    _check_scaled("depth_scaled_init", scaled)
    if factor is not None and not (_is_number(factor) and factor > 0):
        raise ValueError(
            f"depth_scaled_init: factor must be a finite number above 0, got {factor!r}; None "
            "stands for 1/sqrt(N)"
        )
    work = Treatment("depth_scaled_init", model, example, kwargs, sites, trained)
    for site, end in work.each():
        work.refuse(site, why_not_depth(work, end))
    work.stop_if_refused()
    count = {stream.index: len(stream.sites) for stream in work.ends.sites.streams}

    def by(site: Site) -> float:
        return factor or 1 / math.sqrt(count[site.stream])

    if scaled != "allow":
        small = work.made_small(by)
        for site, end in work.each():
            work.refuse(site, work.why_scaled(end) or small.get(site.name, ""))
        work.stop_if_refused()
    account = work.multiply(by)
    work.remember(by)
    return account


def scale_branches(
    model: nn.Module,
    *example: Any,
    alpha: float,
    learned: Learned = "scalar",
    sites: str | Sequence[str] | None = None,
    optimizer: Optimizer | None = None,
    trained: Trained = "refuse",
    scaled: Literal["refuse", "allow"] = "refuse",
    **kwargs: Any,
) -> Account:
    """Multiplies each branch by a factor: y = s + alpha F.

    The module that the branch ends in gets `branch_scale`, a parameter or, not learned, a buffer,
    and a hook that multiplies its output (of an `nn.MultiheadAttention`, the first of its outputs).
    State dicts have one key more; the others stay. With alpha = 0, learned, it is ReZero or
    SkipInit, with "channel" LayerScale. A forward in evaluation mode proves that each branch
    follows its factor. Call it before the optimizer is built, in Lightning before
    `configure_optimizers`.

    Args:
        model: the model.
        *example: what its forward takes.
        alpha: the factor at the start.
        learned: "scalar" (one factor a branch), "channel" (one for each channel), or "no".
        sites: names of sites, module paths (with `*` and `?`) or class names; None: all
            block-level sites.
        optimizer: refused, where there is one already: it cannot hold the new parameters. One that
            is not given here is not noticed.
        trained: "allow" to do it to weights that are trained or loaded; a learned alpha of 1 needs
            no leave, since it changes nothing.
        scaled: "allow" to make what `depth_scaled_init` has made smaller smaller still.
        **kwargs: keyword arguments of the forward.

    Raises:
        ValueError: alpha is no finite number, or 0 and not learned; an optimizer is given; or a
            branch cannot be scaled so, or did not follow the factor: each site is named with its
            reason, and the model is as it was.
    """
    remedy = "scale_branches"
    if learned not in ("no", "scalar", "channel"):
        raise ValueError(f'{remedy}: learned is "no", "scalar" or "channel", got {learned!r}')
    if not _is_number(alpha):
        raise ValueError(f"{remedy}: alpha is a finite number, got {alpha!r}")
    _check_scaled(remedy, scaled)
    if alpha == 0 and learned == "no":
        raise ValueError(f"{remedy}: alpha = 0 that is not learned switches the branches off")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ValueError(
            f"{remedy}: optimizer is a torch.optim.Optimizer that there is already, or None, got "
            f"{optimizer!r}"
        )
    if optimizer is not None and learned != "no":
        raise ValueError(
            f"{remedy}: the optimizer was built before and holds none of the new parameters, so "
            "they would never be trained; call it first and build the optimizer then"
        )
    leave: Trained = "allow" if alpha == 1 and learned != "no" else trained
    work = Treatment(remedy, model, example, kwargs, sites, leave)
    for site, end in work.each():
        work.refuse(site, why_not_factor(work, site, end, alpha, learned))
        if alpha == 0:
            work.refuse(site, why_zero_already(work, site, end))
        elif abs(alpha) < 1 and scaled != "allow" and not work.refused(site):
            work.refuse(site, work.why_scaled(end))
    work.stop_if_refused()
    return scale(work, alpha, learned)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _check_scaled(remedy: str, scaled: object) -> None:
    if scaled not in ("refuse", "allow"):
        raise ValueError(f'{remedy}: scaled is "refuse" or "allow", got {scaled!r}')
