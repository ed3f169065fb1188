"""Tiny models of `transformers`; the walk is the model's own code with hooks of ours on submodules.

A hook on the module that reads the stream gives x, one on the module that ends a branch gives F,
and the reader behind gives the sum as it stands in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.capture.reference import Walk
from tests.capture.steps import Case
from tests.zoo.hf import FAMILIES
from tests.zoo.hf_options import L

#: paths: of the module that adds, of what reads x, of what gives F, of what reads the sum
Place = tuple[str, str, str, str]


def gpt2(layers: int) -> Iterator[Place]:
    for k in range(layers):
        after = f"h.{k + 1}.ln_1" if k + 1 < layers else "ln_f"
        yield f"h.{k}", f"h.{k}.ln_1", f"h.{k}.attn", f"h.{k}.ln_2"
        yield f"h.{k}", f"h.{k}.ln_2", f"h.{k}.mlp", after


def llama(layers: int) -> Iterator[Place]:
    for k in range(layers):
        block = f"layers.{k}"
        after = f"layers.{k + 1}.input_layernorm" if k + 1 < layers else "norm"
        middle = f"{block}.post_attention_layernorm"
        yield block, f"{block}.input_layernorm", f"{block}.self_attn", middle
        yield block, middle, f"{block}.mlp", after


def bert(layers: int) -> Iterator[Place]:
    for k in range(layers):
        block = f"encoder.layer.{k}"
        attention, output = f"{block}.attention.output", f"{block}.output"
        yield (
            attention,
            f"{block}.attention.self.query",
            f"{attention}.dropout",
            f"{attention}.LayerNorm",
        )
        yield output, f"{block}.intermediate.dense", f"{output}.dropout", f"{output}.LayerNorm"


def t5(layers: int) -> Iterator[Place]:
    for stack, parts in (("encoder", 2), ("decoder", 3)):
        places = [f"{stack}.block.{k}.layer.{i}" for k in range(layers) for i in range(parts)]
        readers = [f"{place}.layer_norm" for place in places] + [f"{stack}.final_layer_norm"]
        for place, reader, after in zip(places, readers[:-1], readers[1:], strict=True):
            yield place, reader, f"{place}.dropout", after


@contextmanager
def recorded(model: nn.Module, names: set[str]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Path -> (first input, first output) of the modules that ran."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given = args[0] if args else kwargs["hidden_states"]
        seen[name] = given, output[0] if isinstance(output, tuple) else output

    handles = [
        module.register_forward_hook(partial(hook, name), with_kwargs=True)
        for name, module in model.named_modules()
        if name in names
    ]
    yield seen
    for handle in handles:
        handle.remove()


def walk_by_hooks(places: Callable[[int], Iterator[Place]], layers: int) -> Callable[..., Any]:
    def walk(model: nn.Module, taps: Walk, options: dict[str, Tensor]) -> Any:
        chain = list(places(layers))
        with recorded(model, {name for place in chain for name in place[1:]}) as seen:
            out = model(**options)
        for module, reader, branch, after in chain:
            x, f, y = seen[reader][0], seen[branch][1], seen[after][0]
            taps.add(module, x, x, f, y=y)
        return out

    return walk


def family(name: str, places: Callable[[int], Iterator[Place]]) -> Case:
    found = next(family for family in FAMILIES if family.name == name)

    def loss(out: Any) -> Tensor:
        hidden = out.last_hidden_state
        return (hidden * torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)).sum()

    return Case(
        name,
        found.build,
        lambda: (found.example(),),
        walk_by_hooks(places, L),
        call=lambda model, options: model(**options),
        loss=loss,
        lr=0.01,
    )


def cases() -> list[Case]:
    return [family("gpt2", gpt2), family("llama", llama), family("bert", bert), family("t5", t5)]
