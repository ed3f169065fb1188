"""Counts everything that could be attached to a process, a model or an optimizer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers


def attached(model: nn.Module, stepping: Iterable[Optimizer] = ()) -> dict[str, object]:
    """What is attached now, by name; compare two of them."""
    found: dict[str, object] = {
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "stance": stance(),
        "grad mode": torch.is_grad_enabled(),
    }
    for name in dir(modules):
        if name.startswith("_global_") and name.endswith("hooks"):
            found[name] = len(getattr(modules, name))
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        found[name] = len(getattr(optimizers, name))
    for place, module in model.named_modules():
        found |= dicts_of_hooks(place, module)
    for place, tensor in (*model.named_parameters(), *model.named_buffers()):
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            found[f"{place} {name}"] = len(getattr(tensor, name, None) or ())
    for at, optimizer in enumerate(stepping):
        found |= dicts_of_hooks(f"optimizer {at}", optimizer)
    return found


def dicts_of_hooks(place: str, owner: object) -> dict[str, object]:
    """How many hooks an object holds, by kind."""
    return {
        f"{place} {name}": len(value)
        for name, value in vars(owner).items()
        if name.endswith("hooks") and isinstance(value, dict)
    }


def stance() -> str:
    from torch._dynamo import eval_frame

    return str(eval_frame._stance.stance)


def changes(
    before: dict[str, object], after: dict[str, object]
) -> dict[str, tuple[object, object]]:
    keys = before.keys() | after.keys()
    return {k: (before.get(k), after.get(k)) for k in keys if before.get(k) != after.get(k)}
