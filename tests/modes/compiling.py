"""Rows: `torch.compile` in its forms. Captured steps run without the compiled code."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.data import DataLoader

from tests.lightning import parts
from tests.modes.mode import Mode
from tests.modes.nets import Net, sgd

GROUP = "torch.compile"
EXACT = "everything, against a run that executes the captured steps eagerly"
FLEX = "flex_attention, which writes out all scores when it runs eagerly"
_row = partial(Mode, group=GROUP, exact=EXACT, compiled=True)


def whole(backend: str, **options: Any) -> Callable[[str], Any]:
    """The LightningModule itself, as `trainer.fit(torch.compile(module))`."""
    return lambda kind: torch.compile(Net(kind), backend=backend, **options)


def body(backend: str, *, dropout: bool = True, **options: Any) -> Callable[[str], Net]:
    def made(kind: str) -> Net:
        net = Net(kind)
        if not dropout:
            for module in net.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
        net.body = torch.compile(net.body, backend=backend, **options)
        return net

    return made


def blocks(backend: str, **options: Any) -> Callable[[str], Net]:
    def made(kind: str) -> Net:
        net = Net(kind)
        for block in net.body.blocks:
            block.compile(backend=backend, **options)
        return net

    return made


def of_several_sizes(kind: str, batches: int = 6) -> Any:
    """Every batch has another length: of the sequence, or of the image's sides."""
    data: list[list[Tensor]] = []
    for at, (inputs, targets) in enumerate(
        zip(*(t.split(4) for t in parts.samples(kind, 4 * batches)), strict=True)
    ):
        size = 3 + at % 4
        cut = inputs[:, :size] if kind == "gpt" else inputs[..., :size, :]
        data.append([cut, targets[:, :size] if kind == "gpt" else targets])
    return DataLoader(data, batch_size=None)


def a_compiler() -> str:
    return "" if shutil.which("g++") else "inductor needs a C++ compiler, which is not here"


def a_gpu() -> str:
    return (
        "" if torch.cuda.is_available() else "flex_attention has no backward on a CPU; no GPU here"
    )


class FlexBlock(parts.GptBlock):
    """The same block with compiled flex_attention; it needs a GPU."""

    attend = staticmethod(torch.compile(flex_attention))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unsqueeze(1).chunk(3, -1)
        x = x + self.drop(self.out(self.attend(q, k, v).squeeze(1)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class ForwardOnlyFlexBlock(parts.GptBlock):
    """Attends without a gradient, which a CPU can do."""

    attend = staticmethod(torch.compile(flex_attention, backend="eager"))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            q, k, v = self.qkv(self.norm1(x)).unsqueeze(1).chunk(3, -1)
            attended = self.attend(q, k, v).squeeze(1)
        x = x + self.drop(self.out(attended))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


def with_blocks(kind: type[nn.Module]) -> Callable[[str], Net]:
    def made(name: str) -> Net:
        net = Net(name, sgd)
        for block in net.body.blocks:
            block.__class__ = kind
        return net

    return made


NO_NUMBERS = ("bits", "endings", "growth", "copies")
MODES = [
    _row("whole module", module=whole("eager")),
    _row("whole module, aot_eager", module=whole("aot_eager"), slow=True),
    _row("a part, aot_eager", module=body("aot_eager"), slow=True),
    _row("per block", module=blocks("eager")),
    _row("per block, aot_eager", module=blocks("aot_eager"), slow=True),
    _row("fullgraph=True", module=body("eager", fullgraph=True), slow=True),
    _row(
        "dynamic=True, varying lengths",
        module=body("eager", dynamic=True),
        data=of_several_sizes,
        slow=True,
    ),
    _row("automatic dynamic shapes", module=body("eager"), data=of_several_sizes, slow=True),
    _row(
        "inductor",
        module=body("inductor", dropout=False),
        needs=a_compiler,
        slow=True,
        note="without dropout, whose draws differ under inductor",
    ),
    _row(
        "compiled flex_attention",
        exact="the run is not touched; update sizes are measured",
        module=with_blocks(ForwardOnlyFlexBlock),
        bodies=("gpt",),
        compiled=False,
        uncaptured=FLEX,
        checks=NO_NUMBERS,
        note="the default; the attention of this row is frozen, for a CPU has no backward of it",
    ),
    _row(
        "compiled flex_attention, on_compile='eager'",
        module=with_blocks(FlexBlock),
        bodies=("gpt",),
        options={"on_compile": "eager"},
        trainer=lambda: {"accelerator": "gpu"},
        needs=a_gpu,
        slow=True,
    ),
]
