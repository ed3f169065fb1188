"""Rows: activation checkpointing, and additions that Python does not see."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.capture.reference import BACKWARD, Walk
from tests.lightning import parts
from tests.modes.mode import ALL, Mode
from tests.modes.nets import WALKS, Net, walk_cnn_block, walk_gpt_block, without_dropout

GROUP = "Checkpointing and hidden code"
_row = partial(Mode, group=GROUP)
EAGERLY = "everything, against a run that executes the captured steps eagerly"
TWICE = (
    "a GPT without dropout; PyTorch updates a batch norm's statistics twice in an eager "
    "checkpointed step and once in a compiled one, so with batch norm they differ"
)
WHOLE = "watched as a whole module: its two paths cannot be told apart"
SPLIT = tuple(name for name in BACKWARD if name.partition("_")[0] in ("branch", "identity"))
SPLIT += ("gradient_branch_ratio", "gradient_cosine")


class Checkpointed(nn.Module):
    """A block whose forward runs once more in the backward."""

    def __init__(self, block: nn.Module, *, reentrant: bool) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = block
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        block = self._checkpoint_wrapped_module
        return checkpoint(block, x, use_reentrant=self.reentrant)


def walk_inside(net: Any, taps: Walk, inputs: Tensor) -> Tensor:
    """The walk of a net whose blocks are wrapped, without what wraps them."""

    net = getattr(net, "_orig_mod", net)
    parts_of = dict(net.named_children())
    parts_of["blocks"] = [getattr(b, "_checkpoint_wrapped_module", b) for b in net.blocks]
    kind = "gpt" if hasattr(net, "tokens") else "cnn"
    return WALKS[kind](SimpleNamespace(**parts_of), taps, inputs)


def checkpointed(*, reentrant: bool, backend: str = "") -> Callable[[str], Net]:
    def made(kind: str) -> Net:
        net = Net(kind)
        net.walk = walk_inside
        wrapped = [Checkpointed(block, reentrant=reentrant) for block in net.body.blocks]
        net.body.blocks = type(net.body.blocks)(*([wrapped] if kind == "gpt" else wrapped))
        if backend:  # without dropout: its draws differ where a checkpoint is compiled
            net.body = torch.compile(without_dropout(net.body), backend=backend)
        return net

    return made


# ------------------------------------------------------------------ hidden additions
class Add(torch.autograd.Function):
    """An addition that autograd knows as one piece."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Tensor) -> Tensor:
        return x + f

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient


class HiddenConvBlock(parts.ConvBlock):
    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        return self.relu(Add.apply(x, self.drop(self.norm2(self.conv2(out)))))


class HiddenGptBlock(parts.GptBlock):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unsqueeze(1).chunk(3, -1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        x = Add.apply(x, self.drop(self.out(attended)))
        return Add.apply(x, self.drop(self.down(F.gelu(self.up(self.norm2(x))))))


HIDDEN = {"cnn": HiddenConvBlock, "gpt": HiddenGptBlock}


def hiding(kind: str) -> Net:
    net = Net(kind)
    for block in net.body.blocks:
        block.__class__ = HIDDEN[kind]
    return net


def walk_whole(net: Any, taps: Walk, inputs: Tensor) -> Tensor:
    """Blocks as one site each: F = output - input."""
    gpt = hasattr(net, "tokens")
    x = net.tokens(inputs) if gpt else net.stem(inputs)
    for k, block in enumerate(net.blocks):
        step = walk_gpt_block if gpt else walk_cnn_block
        y = step(block, "", Walk(), x)
        copies = [t.detach().double() for t in (x, x, y)]
        copies[2] = copies[2] - copies[1]
        taps.note(f"body.blocks.{k}", x, x, y - x, y, copies, (1.0, 1.0), rows="sample")
        x = y
    return net.head(net.norm(x)) if gpt else net.head(x.mean((2, 3)))


def watched_whole(kind: str) -> Net:
    net = hiding(kind)
    net.walk = walk_whole
    return net


def scripted(kind: str) -> Net:
    net = Net(kind)
    net.body.blocks[1] = torch.jit.script(net.body.blocks[1])
    return net


MODES = [
    _row("non-reentrant checkpointing", module=checkpointed(reentrant=False)),
    _row(
        "reentrant checkpointing",
        module=checkpointed(reentrant=True),
        hidden=("body.blocks.*",),
        unseen=("no graph",),
        note="the forward that is captured runs without a graph",
    ),
    _row(
        "non-reentrant checkpointing in a compiled net",
        exact=EAGERLY,
        module=checkpointed(reentrant=False, backend="aot_eager"),
        bodies=("gpt",),
        note=TWICE,
        compiled=True,
        slow=True,
    ),
    _row(
        "reentrant checkpointing in a compiled net",
        exact=EAGERLY,
        module=checkpointed(reentrant=True, backend="eager"),
        bodies=("gpt",),
        note=TWICE,
        compiled=True,
        hidden=("body.blocks.*",),
        unseen=("no graph",),
        slow=True,
    ),
    _row(
        "TorchScript submodule",
        slow=True,
        module=scripted,
        hidden=("body.blocks.1",),
        checks=tuple(check for check in ALL if check != "copies"),
        note="PyTorch itself does not pickle it",
    ),
    _row(
        "custom autograd.Function",
        module=hiding,
        hidden=("body.blocks.*",),
        unseen=("no graph",),
    ),
    _row(
        "custom autograd.Function, its block named in sites=",
        module=watched_whole,
        options={"sites": ["body.blocks.?"]},
        blind=SPLIT,
        missing={"the gradient's split": WHOLE},
    ),
]
