"""The part of the zoo's table that holds the traps: small nets of three blocks each."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo import trap_nets, traps
from tests.zoo.entry import Entry, Example, floats, pure, sequences, vectors, zero


def trap(name: str, step: traps.Step, kind: str = "identity", n: int = 3, **more: Any) -> Entry:
    counts = dict.fromkeys(("identity", "scaled", "projection"), 0) | {kind: n}
    return Entry(name, partial(traps.Net, step), sequences, n, **{**counts, "nested": 0, **more})


def no_site(name: str, step: traps.Step, **more: Any) -> Entry:
    return zero(name, partial(traps.Net, step), sequences, **more)


def either(name: str, step: traps.Step, example: Example = sequences) -> Entry:
    return Entry(name, partial(traps.Net, step), example, None, found_or_listed=3)


TRAPS = (
    trap("add_keywords", traps.keywords),
    trap("add_scaled_other", traps.scaled_other, "scaled", notes="alpha multiplies the shortcut"),
    trap("radd", traps.reflected),
    trap("add_method", traps.method),
    trap("in_place", traps.in_place),
    trap("in_place_on_view", traps.in_place_view),
    trap("builtin_sum", traps.builtin_sum, notes="(0 + x) + F(x)"),
    either("stack_sum", traps.stacked),
    either("addmm", traps.fused_matmul, vectors),
    either("addcmul", traps.fused_product),
    trap("sub_branch", traps.minus_branch),
    trap(
        "sub_shortcut",
        traps.minus_shortcut,
        identity=None,
        scaled=None,
        notes="F(x) - x: whether -x is scaled is open",
    ),
    trap("trailing_bias", traps.trailing_bias),
    trap("broadcast", traps.broadcast),
    trap("transparent", traps.transparent),
    trap("constant_scale", traps.constant_scale, "scaled"),
    trap("learned_scale", traps.learned_scale, "scaled"),
    no_site("gated", traps.gated),
    trap("projected", traps.projected, "projection"),
    trap("computed_weight", traps.computed_weight, "projection"),
    trap("normed_shortcut", traps.normed_shortcut, "projection"),
    trap("detached", traps.detached),
    trap("rewritten", traps.rewritten),
    trap("slice_of_x", traps.slice_of_x),
    no_site("sibling_slices", traps.sibling_slices),
    no_site("two_linear_maps", traps.two_linear_maps),
    no_site("two_branches", traps.two_branches),
    no_site("rotation", traps.rotation),
    trap("position_each_time", traps.position_each_time),
    trap("noise", traps.noise),
    trap("modulated", traps.modulated),
    trap("nested", traps.nested, nested=3, notes="D * h inside the branch"),
    trap(
        "no_grad_inside", traps.no_grad_inside, notes="x is a module input; its branch has no path"
    ),
    no_site("no_grad_around", traps.no_grad_around, notes="no graph, never 'missing'"),
    no_site("checkpoint_reentrant", traps.reentrant, notes="no graph in its forward"),
    trap("checkpoint_non_reentrant", traps.non_reentrant),
    pure("leaf_input", partial(traps.Net, traps.method, stem=False), sequences, 3),
    pure(
        "leaf_input_with_grad",
        partial(traps.Net, traps.method, stem=False),
        partial(floats, 2, 5, 8, grad=True),
        3,
    ),
    pure("shared_module", partial(traps.Net, traps.method, shared=True), sequences, 3),
    pure("add_module", trap_nets.AddModule, sequences, 3),
    pure(
        "residual_wrapper",
        lambda: nn.Sequential(
            nn.Linear(8, 8), *[trap_nets.Residual(traps.Branch()) for _ in range(3)]
        ),
        sequences,
        3,
    ),
    pure("dict_output", trap_nets.DictNet, sequences, 3),
    pure("skipped_block", partial(trap_nets.Skipping, traps.method), sequences, 2),
    pure("towers", trap_nets.Towers, sequences, 6, streams=2),
    pure(
        "frozen_prefix",
        trap_nets.FrozenPrefix,
        sequences,
        3,
        notes="the frozen block has no graph of its own: found by identity of its tensors",
    ),
    pure(
        "bfloat16",
        lambda: traps.Net(traps.method).bfloat16(),
        lambda: ((torch.randn(2, 5, 8, dtype=torch.bfloat16),), {}),
        3,
    ),
    pure("torch_encoder_post", partial(trap_nets.torch_encoder, False), sequences, 6, streams=1),
    pure("torch_encoder_pre", partial(trap_nets.torch_encoder, True), sequences, 6, streams=1),
    pure(
        "torch_transformer",
        trap_nets.TorchTransformer,
        lambda: ((torch.randn(2, 5, 8), torch.randn(2, 4, 8)), {}),
        10,
        streams=2,
    ),
)
