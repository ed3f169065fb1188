"""What a caller gives to be looked at: a model, and an example of what its forward takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from skipscope.names import a_kind


def check_module(caller: str, model: object) -> None:
    """Whether a model is one at all.

    Raises:
        TypeError: it is no `nn.Module`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: model must be an nn.Module, got {a_kind(model)}")


def check_model(caller: str, model: object) -> None:
    """Whether a model is one whose additions Python can see.

    Raises:
        TypeError: it is no `nn.Module`, or a TorchScript module.
    """
    check_module(caller, model)
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"{caller}: {type(model).__name__} is a TorchScript module, whose additions Python "
            "never sees; pass the nn.Module it was scripted from"
        )


def run_example(
    caller: str, model: nn.Module, example: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The output of one forward.

    Raises:
        ValueError: the forward failed, with its own error as the cause.
    """
    try:
        return model(*example, **kwargs)
    except Exception as error:
        raise ValueError(
            f"{caller}: the forward of {type(model).__name__} failed with the given example "
            f"({type(error).__name__}: {error}); pass what the model's forward takes, as in a "
            "training step"
        ) from error
