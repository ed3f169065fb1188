"""Factors hung on the modules that branches end in: all of them, proven, or none."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import nn

from skipscope.records import Site
from skipscope.remedies.factor import Factor, Learned
from skipscope.remedies.proof import PROBE, Forward, Scaled
from skipscope.remedies.treatment import Account, Change, Treatment
from skipscope.remedies.why import instead

_Hung = tuple[Site, Factor]


def scale(work: Treatment, alpha: float, learned: Learned) -> Account:
    """Hangs a factor on the module that each branch ends in, and proves it; else undoes all."""
    before = Forward(*work.call)
    factors: list[_Hung] = []
    try:
        for site, end in work.each():
            path, module, output = work.carrier(end)
            factors.append((site, Factor(path, module, learned, output or ())))
        _prove(work, factors, before, alpha)
    except BaseException:
        for _, factor in factors:
            factor.remove()
        raise
    for _, factor in factors:
        factor.settle(alpha)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # code that was compiled before knows nothing of new hooks
    made = [factor.value for _, factor in factors if isinstance(factor.value, nn.Parameter)]
    changes = [
        Change(site.name, f"{factor.path}.branch_scale".lstrip("."), 1.0, alpha)
        for site, factor in factors
    ]
    return Account(work.remedy, tuple(changes), tuple(made))


def _prove(work: Treatment, factors: Sequence[_Hung], before: Forward, alpha: float) -> None:
    """Looks whether each branch follows its factor, and whether anything else does."""
    after = _scaled(work, before, factors)
    for site, factor in factors:
        why = after.why_not(site.key, factor.path or "the model")
        work.refuse(site, why and why + instead(work, site, alpha))
    work.stop_if_refused()
    if not after.further():
        return
    further = {s.name: _scaled(work, before, [(s, f)]).further() for s, f in factors}
    for site, factor in factors:
        why = further[site.name] if any(further.values()) else after.further()
        by = factor.path or "the model"
        work.refuse(site, why and f"a factor on the output of {by} also changes {why}")
    work.stop_if_refused()


def _scaled(work: Treatment, before: Forward, factors: Sequence[_Hung]) -> Scaled:
    """A forward in which these factors act alone."""
    for _, factor in factors:
        factor.set(PROBE)
    scaled = Scaled(*work.call, before, {site.key: factor.value for site, factor in factors})
    for _, factor in factors:
        factor.set(1.0)
    return scaled
