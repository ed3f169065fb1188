"""Paths and class names as the user wrote them, whatever the model was wrapped with."""

from __future__ import annotations

from typing import Any

from torch import nn

#: What wrappers put into module paths; stripped, so that names are those of the user's model.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")


def canonical(name: str) -> str:
    """A module or parameter path without the parts that wrappers add.

    >>> canonical("_orig_mod.blocks.0._checkpoint_wrapped_module.fc.weight")
    'blocks.0.fc.weight'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def class_name(module: nn.Module) -> str:
    """Name of a module's class as the user wrote it; whatever wraps it.

    >>> class_name(nn.Linear(1, 1))
    'Linear'
    """
    for wrapper in ("_orig_mod", "_fsdp_wrapped_module"):
        module = getattr(module, wrapper, module)
    kinds = type(module).__mro__
    wrapped = len(kinds) > 2 and kinds[1].__name__ == "FSDPModule"
    return kinds[2 if wrapped else 0].__name__


def classes_of(model: nn.Module) -> dict[str, str]:
    """The class name of each module, by path.

    >>> classes_of(nn.Sequential(nn.ReLU()))
    {'': 'Sequential', '0': 'ReLU'}
    """
    return {canonical(name): class_name(module) for name, module in model.named_modules()}


def sharded_parameters(
    model: nn.Module,
) -> dict[str, list[tuple[nn.Module, str, str]]]:
    """Of each module by its path: itself, and local and whole name of each of its parameters."""
    wrappers = ("FSDPModule", "FullyShardedDataParallel")
    if not any(kind.__name__ in wrappers for m in model.modules() for kind in type(m).__mro__):
        return {}
    found: dict[str, list[tuple[nn.Module, str, str]]] = {}
    for path, module in model.named_modules():
        for local, _ in module.named_parameters(recurse=False):
            name = f"{path}.{local}" if path else local
            found.setdefault(canonical(path), []).append((module, local, canonical(name)))
    return found


def whole_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes, by path, of the parameters that FSDP has made one flat one of, cut in shards."""
    found: dict[str, tuple[int, ...]] = {}
    for path, module in model.named_modules():
        flat: Any = getattr(module, "_flat_param", None)
        for name, shape in zip(
            getattr(flat, "_fqns", ()), getattr(flat, "_shapes", ()), strict=True
        ):
            found[canonical(f"{path}.{name}" if path else name)] = tuple(shape)
    return found
