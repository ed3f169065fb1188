"""Nets of the usual kinds, each with its forward written out once more by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.capture.reference import Walk
from tests.capture.steps import Case
from tests.zoo.parts import LayerScale, Mlp

D = 16


def tokens(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(*(shape or (4, 6, D))),)


def ids() -> tuple[Tensor, ...]:
    return (torch.randint(0, 12, (4, 6)),)


class Stack(nn.Module):
    """A stem, blocks one after the other, a head."""

    def __init__(self, block: Callable[[int], nn.Module], depth: int = 3, width: int = D) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.blocks = nn.ModuleList(block(k) for k in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def walk_stack(step: Callable[[nn.Module, str, Walk, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The walk of a `Stack` whose block is walked by `step`."""

    def walk(model: Stack, taps: Walk, x: Tensor) -> Tensor:
        x = model.stem(x)
        for k, block in enumerate(model.blocks):
            x = step(block, f"blocks.{k}", taps, x)
        return model.head(x)

    return walk


# ---------------------------------------------------------------------- transformers
class Encoder(nn.Module):
    """PyTorch's own encoder layers, dropout on."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.emb = nn.Embedding(12, D)
        layer = nn.TransformerEncoderLayer(
            D, 2, 2 * D, dropout=0.2, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(D, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.emb(tokens)))


def walk_encoder(model: Encoder, taps: Walk, tokens: Tensor) -> Tensor:
    x = model.emb(tokens)
    for k, layer in enumerate(model.encoder.layers):
        for norm, branch in ((layer.norm1, _attention), (layer.norm2, _feed_forward)):
            f = branch(layer, norm(x) if layer.norm_first else x)
            x = taps.add(f"encoder.layers.{k}", x, x, f)
            x = x if layer.norm_first else norm(x)
    return model.head(x)


def _attention(layer: nn.TransformerEncoderLayer, x: Tensor) -> Tensor:
    return layer.dropout1(layer.self_attn(x, x, x, need_weights=False)[0])


def _feed_forward(layer: nn.TransformerEncoderLayer, x: Tensor) -> Tensor:
    return layer.dropout2(layer.linear2(layer.dropout(F.relu(layer.linear1(x)))))


class Heads(nn.Module):
    """Self-attention with separate projections: x has three readers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (2, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Sandwich(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Heads(), Mlp(D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norms[1](self.attention(self.norms[0](x)))
        return x + self.norms[3](self.mlp(self.norms[2](x)))


def step_sandwich(block: Sandwich, name: str, taps: Walk, x: Tensor) -> Tensor:
    x = taps.add(name, x, x, block.norms[1](block.attention(block.norms[0](x))))
    return taps.add(name, x, x, block.norms[3](block.mlp(block.norms[2](x))))


class Unnormed(nn.Module):
    """Attention that reads x itself, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Heads()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)


def step_unnormed(block: Unnormed, name: str, taps: Walk, x: Tensor) -> Tensor:
    return taps.add(name, x, x, block.attention(x))


class Parallel(nn.Module):
    """Attention and MLP side by side, added in one order or the other."""

    def __init__(self, inner_first: bool, scale: float = 1.0) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(D), Heads(), Mlp(D)
        self.inner_first, self.scale = inner_first, scale

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.norm(x)
        return self.scale * self.attention(h), self.scale * self.mlp(h)

    def forward(self, x: Tensor) -> Tensor:
        a, m = self.parts(x)
        return x + (a + m) if self.inner_first else (x + a) + m


def step_parallel(block: Parallel, name: str, taps: Walk, x: Tensor) -> Tensor:
    a, m = block.parts(x)
    if block.inner_first:
        return taps.add(name, x, x, a + m)
    y = (x + a) + m
    copies = [x.detach().double(), x.detach().double(), a.detach().double() + m.detach().double()]
    taps.note(name, x, x, a + m, y, copies, (1.0, 1.0))
    return y


class Residual(nn.Module):
    """Pre-norm, one MLP; `combine(x, f)` says how."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor], norm: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D) if norm else nn.Identity()
        self.mlp = Mlp(D)
        self.combine = combine

    def branch(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(x, self.branch(x))


def step_residual(
    block: Residual,
    name: str,
    taps: Walk,
    x: Tensor,
    *,
    shortcut: Callable[[Tensor], Tensor] = lambda x: x,
    **tells: Any,
) -> Tensor:
    tells.setdefault("how", torch.add)
    return taps.add(name, x, shortcut(x), block.branch(x), **tells)


def combined(
    name: str, combine: Callable[[Tensor, Tensor], Tensor], *, norm: bool = True, **tells: Any
) -> Case:
    """A stack of `Residual`s with one way to add."""
    build = partial(Stack, lambda k: Residual(combine, norm))
    excused = tells.pop("excused", {})
    walk = walk_stack(partial(step_residual, **tells))
    return Case(name, build, tokens(), walk, excused=excused)


class Projected(nn.Module):
    """A linear shortcut although the shapes agree: x and s differ."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp, self.adapt = nn.LayerNorm(D), Mlp(D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.adapt(x) + self.mlp(self.norm(x))


def step_projected(block: Projected, name: str, taps: Walk, x: Tensor) -> Tensor:
    s = block.adapt(x)
    return taps.add(name, x, s, block.mlp(block.norm(x)), kind="projection")


class Shared(nn.Module):
    """ALBERT: one block, called over and over."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(D, D), Sandwich(), nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = self.block(x)
        return self.head(x)


def walk_shared(model: Shared, taps: Walk, x: Tensor) -> Tensor:
    x = model.stem(x)
    for _ in range(3):
        x = step_sandwich(model.block, "block", taps, x)
    return model.head(x)


class Dropped(nn.Module):
    """Stochastic depth: single samples, or the whole branch."""

    def __init__(self, rate: float, per_sample: bool) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(D), Mlp(D)
        self.rate, self.per_sample = rate, per_sample

    def branch(self, x: Tensor) -> Tensor:
        f = self.mlp(self.norm(x))
        keep = torch.rand(len(x) if self.per_sample else 1, 1, 1) >= self.rate
        return f * keep / (1 - self.rate)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def step_dropped(block: Dropped, name: str, taps: Walk, x: Tensor) -> Tensor:
    return taps.add(name, x, x, block.branch(x))


class Scaled(nn.Module):
    """Pre-norm attention and MLP behind LayerScale."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.scales = nn.ModuleList(LayerScale(D, value) for _ in range(2))
        self.attention, self.mlp = Heads(), Mlp(D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scales[0](self.attention(self.norms[0](x)))
        return x + self.scales[1](self.mlp(self.norms[1](x)))


def step_scaled(block: Scaled, name: str, taps: Walk, x: Tensor) -> Tensor:
    x = taps.add(name, x, x, block.scales[0](block.attention(block.norms[0](x))))
    return taps.add(name, x, x, block.scales[1](block.mlp(block.norms[1](x))))


def bf16(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: build().to(torch.bfloat16)


def bf16_tokens() -> tuple[Tensor, ...]:
    return (torch.randn(4, 6, D).bfloat16(),)


def sandwich() -> nn.Module:
    return Stack(lambda k: Sandwich())


CASES = [
    Case("pre-norm", partial(Encoder, True), ids, walk_encoder),
    Case("post-norm", partial(Encoder, False), ids, walk_encoder),
    Case("sandwich norm", sandwich, tokens(), walk_stack(step_sandwich)),
    Case("no norm", partial(Stack, lambda k: Unnormed()), tokens(), walk_stack(step_unnormed)),
    Case(
        "parallel (x+a)+m",
        partial(Stack, lambda k: Parallel(False)),
        tokens(),
        walk_stack(step_parallel),
    ),
    Case(
        "parallel x+(a+m)",
        partial(Stack, lambda k: Parallel(True)),
        tokens(),
        walk_stack(step_parallel),
    ),
    combined(
        "scaled shortcut",
        lambda x, f: 0.7 * x + f,
        shortcut=lambda x: 0.7 * x,
        kind="scaled",
        scale=0.7,
    ),
    combined(
        "scaled by the addition",
        lambda x, f: torch.add(f, x, alpha=0.7),
        how=lambda s, f: torch.add(f, s, alpha=0.7),
        factors=(0.7, 1.0),
        kind="scaled",
        scale=0.7,
    ),
    combined(
        "alpha= by keyword",
        lambda x, f: torch.add(input=x, other=f, alpha=0.3),
        how=lambda s, f: torch.add(s, f, alpha=0.3),
        factors=(1.0, 0.3),
    ),
    combined("x - F", lambda x, f: x - f, how=torch.sub, factors=(1.0, -1.0)),
    combined(
        "F - x",
        lambda x, f: f - x,
        how=lambda s, f: f - s,
        factors=(-1.0, 1.0),
        kind="scaled",
        scale=-1.0,
        excused={"shortcut_presence": "its sign is lost: a test of its own"},
    ),
    Case(
        "linear projection",
        partial(Stack, lambda k: Projected()),
        tokens(),
        walk_stack(step_projected),
    ),
    Case("ALBERT-shared", Shared, tokens(), walk_shared),
    Case(
        "stochastic depth",
        partial(Stack, lambda k: Dropped(0.5, k != 1), 4),
        tokens(),
        walk_stack(step_dropped),
    ),
    Case("bf16 weights", bf16(sandwich), bf16_tokens, walk_stack(step_sandwich)),
    Case("bf16 autocast", sandwich, tokens(), walk_stack(step_sandwich), autocast=torch.bfloat16),
    Case(
        "LayerScale 1e-6",
        partial(Stack, lambda k: Scaled(1e-6)),
        tokens(),
        walk_stack(step_scaled),
    ),
    Case(
        "LayerScale 1e-6 in bf16",
        bf16(partial(Stack, lambda k: Scaled(1e-6))),
        bf16_tokens,
        walk_stack(step_scaled),
    ),
]
