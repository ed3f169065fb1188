"""The facts about a run as a whole, found out when its first step begins."""

from __future__ import annotations

import importlib.metadata
import json
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from skipscope.acting import sharing
from skipscope.compiled import compiled_only, is_compiled
from skipscope.find.paths import canonical, class_name
from skipscope.options import Options
from skipscope.records import Run


def describe_run(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    options: Options,
    state: Mapping[str, Any],
    *,
    wrapped: nn.Module | None = None,
    ranks: int = 1,
) -> Run:
    """A run's record.

    Args:
        model: the model.
        optimizers: those that train it.
        options: the monitor's.
        state: that of the run it goes on with, empty for a fresh one.
        wrapped: the model as it is trained, where it is wrapped.
        ranks: processes of the run.
    """
    trained = model if wrapped is None else wrapped
    parameter = next(model.parameters(), None)
    return Run(
        run_id=state.get("run_id") or new_run_id(options.name),
        skipscope=_version(),
        torch=torch.__version__,
        model=class_name(model),
        preset=options.preset,
        every_n_steps=options.every_n_steps,
        ranks=ranks,
        device=str(parameter.device) if parameter is not None else "cpu",
        precision=str(parameter.dtype).removeprefix("torch.") if parameter is not None else "",
        compiled=is_compiled(trained),
        uncaptured=uncaptured(trained, options),
        intervention=_intervention(model),
        fresh=not state and not any(optimizer.state for optimizer in optimizers),
        rules={
            name: json.dumps(value)
            for name in ("select", "ignore", "thresholds")
            if (value := getattr(options, name)) is not None
        },
    )


def _intervention(model: nn.Module) -> str:
    """What is done to the sums of a model, or of a part of it; "" where they are its own.

    >>> from skipscope import intervene
    >>> net = nn.Sequential(nn.TransformerEncoderLayer(4, 1, 8), nn.ReLU())
    >>> with intervene(net[0], branch_scale=0.5):
    ...     __ = net(torch.randn(3, 2, 4))
    ...     _intervention(net), _intervention(net[0]), _intervention(net[1])
    ('y = s + 0.5 F in 0', 'y = s + 0.5 F', '')
    """
    paths = {id(module): canonical(path) for path, module in model.named_modules()}
    return "; ".join(
        f"{words} in {paths[id(other)]}" if paths.get(id(other)) else words
        for other, words in sharing(model)
    )


def _version() -> str:
    """Ours; unknown in a source tree that is not installed, or when no more files can be opened."""
    try:
        return importlib.metadata.version("skipscope")
    except (importlib.metadata.PackageNotFoundError, OSError):
        return ""


def new_run_id(name: str) -> str:
    """Sorts by time; unique without touching a random generator of the training."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{plain}-{uuid.uuid4().hex[:6]}"


def uncaptured(model: nn.Module, options: Options) -> str:
    """Why no step of a run is captured; "" where steps are."""
    if options.on_compile == "skip" and is_compiled(model):
        return "the model is compiled and on_compile='skip'"
    if options.on_compile == "auto" and (names := compiled_only(model)):
        return (
            f"{names} uses flex_attention, which writes out all scores when it runs eagerly; "
            "on_compile='eager' captures all the same"
        )
    return ""


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own model inside of DDP, compiled or not."""
    inner = getattr(model, "_orig_mod", model)
    return inner.module if isinstance(inner, DistributedDataParallel) else model
