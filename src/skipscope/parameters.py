"""The parameter table: names, blocks, roles, optimizer groups."""

from __future__ import annotations

from collections.abc import Container, Sequence
from numbers import Real

from torch import nn
from torch.optim import Optimizer

from skipscope.find.paths import canonical, classes_of, whole_shapes
from skipscope.records import Group, Parameter, SiteMap


def parameter_table(
    model: nn.Module, optimizers: Sequence[Optimizer], sites: SiteMap
) -> tuple[tuple[Parameter, ...], tuple[Group, ...]]:
    """Describes every parameter of a model, and every optimizer group.

    A block is a repeated part that holds residual additions; a role is a parameter's place in it,
    equal for sibling blocks of one class.
    """
    groups, group_of = _groups(optimizers)
    classes = classes_of(model)
    shapes = whole_shapes(model)
    blocks = {block_of(site.module) for site in sites.sites}
    sites_of: dict[str, list[int]] = {}
    for site in sites.sites:
        for name in site.parameters:
            sites_of.setdefault(canonical(name), []).append(site.index)
    table = []
    for index, (raw, parameter) in enumerate(model.named_parameters()):
        name = canonical(raw)
        block = _block_around(name, blocks)
        inside = name.removeprefix(f"{block}.") if block else name
        table.append(
            Parameter(
                index=index,
                name=name,
                shape=shapes.get(name, tuple(parameter.shape)),
                dtype=str(parameter.dtype).removeprefix("torch."),
                trainable=parameter.requires_grad,
                group=group_of.get(id(parameter)),
                role=f"{classes.get(block, '')}.{inside}",
                block=block,
                sites=tuple(sites_of.get(name, ())),
                owner=classes.get(name.rpartition(".")[0], ""),
            )
        )
    return tuple(table), groups


def block_of(module: str) -> str:
    """The repeated part that a module path lies in: the path up to its last number.

    >>> block_of("encoder.layer.3.attention.output"), block_of("stem")
    ('encoder.layer.3', 'stem')
    """
    parts = module.split(".")
    numbers = [position for position, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[-1] + 1]) if numbers else module


def _block_around(name: str, blocks: Container[str]) -> str:
    """The innermost of the blocks that a parameter lies in; "" where it lies in none.

    >>> _block_around("layer.3.fc.weight", {"layer.3", "layer"})
    'layer.3'
    """
    around = name.rpartition(".")[0]
    while around and around not in blocks:
        around = around.rpartition(".")[0]
    return around


def _groups(optimizers: Sequence[Optimizer]) -> tuple[tuple[Group, ...], dict[int, int]]:
    groups: list[Group] = []
    group_of: dict[int, int] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            options = {key: value for key, value in group.items() if key != "params"}
            groups.append(Group(len(groups), type(optimizer).__name__, _plain(options)))
            for parameter in group["params"]:
                group_of.setdefault(id(parameter), len(groups) - 1)
    return tuple(groups), group_of


def _plain(options: dict[str, object]) -> dict[str, float | bool | str | None]:
    """Numbers, flags and strings; a pair of betas becomes beta1 and beta2."""
    plain: dict[str, float | bool | str | None] = {}
    for key, value in options.items():
        if isinstance(value, (bool, str)) or value is None:
            plain[key] = value
        elif isinstance(value, Real):
            plain[key] = float(value)
        elif isinstance(value, (tuple, list)) and all(isinstance(v, Real) for v in value):
            for position, v in enumerate(value, start=1):
                plain[f"{key.removesuffix('s')}{position}"] = float(v)
    return plain
