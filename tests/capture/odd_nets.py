"""Nets with something unusual at the addition or around it, and their walks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.capture.nets import (
    D,
    Mlp,
    Residual,
    Sandwich,
    Stack,
    Unnormed,
    bf16,
    bf16_tokens,
    combined,
    ids,
    step_residual,
    step_sandwich,
    step_unnormed,
    tokens,
    walk_stack,
)
from tests.capture.reference import Walk
from tests.capture.steps import Case


def plain(k: int = 0) -> Residual:
    return Residual(torch.add)


class Auxiliary(nn.Module):
    """A second head, with a loss of its own, that reads the input of the second block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(D, D)
        self.blocks = nn.ModuleList(plain() for _ in range(3))
        self.head, self.auxiliary = nn.Linear(D, 5), nn.Linear(D, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        x = self.blocks[0](x)
        aside = self.auxiliary(x)
        return self.head(self.blocks[2](self.blocks[1](x))), aside


def walk_auxiliary(model: Auxiliary, taps: Walk, x: Tensor) -> tuple[Tensor, Tensor]:
    x = step_residual(model.blocks[0], "blocks.0", taps, model.stem(x))
    aside = model.auxiliary(x)
    for k in (1, 2):
        x = step_residual(model.blocks[k], f"blocks.{k}", taps, x)
    return model.head(x), aside


class LoRA(nn.Module):
    """A frozen linear map and a trained one of rank 2."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted() -> nn.Module:
    """Everything frozen but the adapters in the second and third block."""
    model = Stack(lambda k: Sandwich()).requires_grad_(False)
    for block in model.blocks[1:]:
        block.attention.q, block.attention.v = LoRA(block.attention.q), LoRA(block.attention.v)
        block.mlp.fc2 = LoRA(block.mlp.fc2)
    return model


def frozen_prefix() -> nn.Module:
    model = Stack(plain, 4)
    for part in (model.stem, *model.blocks[:2]):
        part.requires_grad_(False)
    return model


class Bare(nn.Module):
    """No stem: the first block adds to the data itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(plain() for _ in range(2))
        self.head = nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def walk_bare(model: Bare, taps: Walk, x: Tensor) -> Tensor:
    for k, block in enumerate(model.blocks):
        x = step_residual(block, f"blocks.{k}", taps, x)
    return model.head(x)


class Pooled(Residual):
    """The branch is one vector a sample and broadcast into the stream."""

    def branch(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(x).mean(1, keepdim=True))


class Rewriting(nn.Module):
    """Pre-activation with an in-place ReLU that rewrites the caller's x."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.fc1, self.fc2 = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.fc1(self.relu(x)))) + x


def step_rewriting(block: Rewriting, name: str, taps: Walk, x: Tensor) -> Tensor:
    x = F.relu(x)
    f = block.fc2(F.relu(block.fc1(x)))
    return taps.add(name, x, x, f, how=lambda s, f: f + s)


class Cut(Residual):
    """A no_grad in the middle of the branch."""

    def branch(self, x: Tensor) -> Tensor:
        h = F.gelu(self.mlp.fc1(self.norm(x)))
        with torch.no_grad():
            h = h / h.norm(dim=-1, keepdim=True)
        return self.mlp.fc2(h)


class OnView(nn.Module):
    """`v = x.view(...); v += F(v)`: the addition rewrites x through a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(D, D), nn.Linear(D, D)

    def branch(self, v: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(v)))

    def forward(self, x: Tensor) -> Tensor:
        v = x.view(-1, D)
        v += self.branch(v.clone())
        return x


def step_on_view(block: OnView, name: str, taps: Walk, x: Tensor) -> Tensor:
    v = x.view(-1, D)
    y = taps.add(name, v, v, block.branch(v), rows="sample")
    return y.view(x.shape)


class OnViewOfBranch(nn.Module):
    """`out = F(x).view(...); out += x`: in place on a view, x untouched."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(D, D), nn.Linear(D, D)

    def branch(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(x.flatten(0, 1)))).view(x.shape)

    def forward(self, x: Tensor) -> Tensor:
        out = self.branch(x)
        out += x
        return out


class Keywords(nn.Module):
    """Blocks called by keyword that return a dict with a tuple in it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(D, D), nn.Linear(D, 5)
        self.blocks = nn.ModuleList(KeywordBlock() for _ in range(3))

    def forward(self, *, batch: dict[str, Tensor]) -> dict[str, tuple[Tensor, None]]:
        state = {"hidden": (self.stem(batch["x"]), None)}
        for block in self.blocks:
            state = block(state=state, flag=True)
        return {"logits": (self.head(state["hidden"][0]), None)}


class KeywordBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(D), Mlp(D)

    def forward(self, *, state: dict[str, Any], flag: bool) -> dict[str, Any]:
        x, _ = state["hidden"]
        return {"hidden": (0.9 * x + self.mlp(self.norm(x)), None)}


def walk_keywords(model: Keywords, taps: Walk, x: Tensor) -> dict[str, Any]:
    x = model.stem(x)
    for k, block in enumerate(model.blocks):
        f = block.mlp(block.norm(x))
        x = taps.add(f"blocks.{k}", x, 0.9 * x, f, kind="scaled", scale=0.9)
    return {"logits": (model.head(x), None)}


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(D, D), nn.Linear(D, 5)
        self.blocks = nn.ModuleList(Sandwich() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def walk_checkpointed(model: Checkpointed, taps: Walk, x: Tensor) -> Tensor:
    x = model.stem(x)
    for k, block in enumerate(model.blocks):
        x = step_sandwich(block, f"blocks.{k}", taps, x)
    return model.head(x)


class Shifted(nn.Module):
    """Means a hundred times the standard deviation, in the stream and in the branch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(D), Mlp(D)
        with torch.no_grad():
            self.mlp.fc2.bias += 100 * self.mlp.fc2.weight.norm()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


def step_shifted(block: Shifted, name: str, taps: Walk, x: Tensor) -> Tensor:
    return taps.add(name, x, x, block.mlp(block.norm(x)))


def shifted() -> nn.Module:
    model = Stack(lambda k: Shifted())
    with torch.no_grad():
        model.stem.bias += 100.0
    return model


class Overflowing(nn.Module):
    """float16: 60,000 + 10,000 is beyond 65,504, both operands are finite."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(D, D), nn.Linear(D, D)
        with torch.no_grad():
            self.fc2.bias[0] = 10_000.0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(torch.tanh(self.fc1(x / 60_000)))


def step_overflowing(block: Overflowing, name: str, taps: Walk, x: Tensor) -> Tensor:
    return taps.add(name, x, x, block.fc2(torch.tanh(block.fc1(x / 60_000))))


class Small(nn.Module):
    """A stem that puts 60,000 into one channel, one block, a head that looks at the others."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(D, D)
        with torch.no_grad():
            self.stem.bias[0] = 60_000.0
        self.blocks = nn.ModuleList([Overflowing()])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](self.stem(x))[..., 1:]


def walk_small(model: Small, taps: Walk, x: Tensor) -> Tensor:
    return step_overflowing(model.blocks[0], "blocks.0", taps, model.stem(x))[..., 1:]


class TokenMixer(nn.Module):
    """MLP-Mixer: the branch's last weight acts on the tokens, not on the last axis."""

    def __init__(self, length: int = 6) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(D), Mlp(length)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x).transpose(1, 2)).transpose(1, 2)


def step_mixer(block: TokenMixer, name: str, taps: Walk, x: Tensor) -> Tensor:
    f = block.mlp(block.norm(x).transpose(1, 2)).transpose(1, 2)
    return taps.add(name, x, x, f, rows="sample")


def stacked(block: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return partial(Stack, lambda k: block())


CASES = [
    Case(
        "auxiliary head",
        Auxiliary,
        tokens(),
        walk_auxiliary,
        loss=lambda out: out[0].square().mean() + 3 * out[1].tanh().mean(),
    ),
    Case("LoRA, frozen base", adapted, tokens(), walk_stack(step_sandwich)),
    Case("frozen prefix", frozen_prefix, tokens(), walk_stack(step_residual)),
    Case("raw input", Bare, tokens(), walk_bare),
    Case(
        "raw input that asks for a gradient",
        Bare,
        lambda: (torch.randn(4, 6, D, requires_grad=True),),
        walk_bare,
    ),
    Case("broadcast", stacked(partial(Pooled, torch.add)), tokens(), walk_stack(step_residual)),
    combined(
        "detached shortcut",
        lambda x, f: x.detach() + f,
        shortcut=Tensor.detach,
    ),
    Case("rewritten shortcut", stacked(Rewriting), tokens(), walk_stack(step_rewriting)),
    Case(
        "no_grad in the branch",
        stacked(partial(Cut, torch.add)),
        tokens(),
        walk_stack(step_residual),
    ),
    Case("in place on a view of F", stacked(OnViewOfBranch), tokens(), walk_stack(step_residual)),
    Case(
        "keywords and containers",
        Keywords,
        tokens(),
        walk_keywords,
        call=lambda model, x: model(batch={"x": x}),
        loss=lambda out: (out["logits"][0] * torch.arange(5)).mean(),
    ),
    Case("non-reentrant checkpoint", Checkpointed, tokens(), walk_checkpointed),
    Case("means of 100 deviations", shifted, tokens(), walk_stack(step_shifted)),
    Case(
        "float16 overflow at the sum",
        lambda: Small().half(),
        lambda: (torch.randn(4, 6, D).half(),),
        walk_small,
    ),
    Case("three readers in bf16", bf16(stacked(Unnormed)), bf16_tokens, walk_stack(step_unnormed)),
]
__all__ = ["CASES", "OnView", "TokenMixer", "ids", "step_mixer", "step_on_view"]
