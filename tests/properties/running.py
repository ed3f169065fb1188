"""A program's training, once as it is and once watched, and what its taps expect."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from skipscope.history import History
from skipscope.monitor import Monitor
from skipscope.records import REASONS, Site
from tests.capture.attachments import attached, changes
from tests.capture.reference import BAR, norm, quotient
from tests.properties.programs import D, Net, Program
from tests.properties.taps import Deaf, Tap, Taps

NOT_CALLED = REASONS.index("not called in this step")
RATIOS = ("branch_ratio", "cosine", "growth", "rms_shortcut", "rms_branch", "rms_sum")
GRADIENTS = ("grad_sum_norm", "grad_input_norm")


@dataclass
class Trained:
    """What three steps left."""

    net: Net
    losses: list[Tensor] = field(default_factory=list)
    random: list[Tensor] = field(default_factory=list)
    expected: list[list[tuple[Tap, dict[str, float | None]]]] = field(default_factory=list)


def build(program: Program) -> Net:
    torch.manual_seed(program.seed)
    net = Net(program)
    if program.dtype not in ("float32", "autocast"):
        dtype = getattr(torch, program.dtype)
        net.to(dtype)
        for block in net.hidden:
            block.to(dtype)
    return net


def optimizer_of(net: Net) -> torch.optim.Optimizer:
    parameters = net.every_parameter()
    if net.program.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-3)
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)


def train(
    program: Program, watch: Callable[[Net, torch.optim.Optimizer], Any] | None = None
) -> Trained:
    """Trains for three steps; `watch` makes a monitor, without it the taps listen."""
    net = build(program)
    trained, optimizer = Trained(net), optimizer_of(net)
    monitor = watch(net, optimizer) if watch is not None else None
    for number in range(len(program.sizes)):
        torch.manual_seed(program.seed + number + 1)
        for place, block in enumerate(net.order):
            planted = program.poison is not None and program.poison[:2] == (number, place)
            block.poison = program.poison[2] if planted and program.poison else None
        taps = Deaf() if monitor is not None else Taps()
        step = _Step(net, optimizer, taps, number)
        with monitor.step() if monitor is not None else contextlib.nullcontext():
            trained.losses.append(step.run())
        trained.random.append(torch.get_rng_state())
        trained.expected.append(step.expected)
        if monitor is not None:
            monitor.after_step(number, taps)
    return trained


class _Step:
    """One optimizer step of a program."""

    def __init__(self, net: Net, optimizer: torch.optim.Optimizer, taps: Taps, number: int) -> None:
        self.net, self.optimizer, self.taps = net, optimizer, taps
        self.program = net.program
        self.size = self.program.sizes[number]
        self.expected: list[tuple[Tap, dict[str, float | None]]] = []

    def run(self) -> Tensor:
        self.optimizer.zero_grad()
        kind = self.program.step
        if kind == "teacher":
            self.teacher()
        total = self.forward()
        if kind == "teacher after":
            total = total + self.teacher()
        if kind == "two backwards":
            self.backward(total, keep=True)
            total = total * 3.0
        if kind == "micro-batches":
            self.backward(total)
            total = self.forward()
        if kind == "two forwards":
            total = total + self.forward()
        self.backward(total)
        self.optimizer.step()
        return total.detach()

    def teacher(self) -> Tensor:
        with torch.no_grad():
            return self.loss()

    def forward(self) -> Tensor:
        self.taps.found.clear()  # of several forwards the last one counts
        return self.loss()

    def loss(self) -> Tensor:
        batch, length = self.size
        shape = (batch, length, D) if self.program.axes == 3 else (batch, D)
        dtype = self.net.head.weight.dtype
        x, c = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.program.dtype == "autocast"):
            out = self.net(x, c, self.taps)
        return (out.float() * torch.randn(out.shape)).sum()

    def backward(self, loss: Tensor, keep: bool = False) -> None:
        if not loss.requires_grad:
            return
        listening, self.taps.listening = self.taps.listening, False
        if listening:
            self.expected = expectations(self.taps.found, loss)
        loss.backward(retain_graph=keep)
        self.taps.listening = listening


# ---------------------------------------------------------------------- the truth
def expectations(taps: list[Tap], loss: Tensor) -> list[tuple[Tap, dict[str, float | None]]]:
    edges = [edge for tap in taps for edge in (tap.y_edge, tap.x_edge)]
    held = [edge for edge in edges if edge is not None]
    found = torch.autograd.grad(loss, held, retain_graph=True, allow_unused=True) if held else ()
    arrived = iter(found)
    norms = [None if edge is None else _norm(next(arrived)) for edge in edges]
    return [
        (tap, {**ratios(tap), "grad_sum_norm": gy, "grad_input_norm": gx if gy is not None else gy})
        for tap, gy, gx in zip(taps, norms[::2], norms[1::2], strict=True)
    ]


def _norm(gradient: Tensor | None) -> float | None:
    return None if gradient is None else norm(gradient)


def ratios(tap: Tap) -> dict[str, float | None]:
    s, f = tap.s, tap.f
    y = s + f
    if not y.numel():
        return dict.fromkeys(RATIOS)
    return {
        "branch_ratio": quotient(norm(f), norm(s)),
        "cosine": quotient(float((s * f).sum()), norm(s) * norm(f)),
        "growth": quotient(norm(y), norm(s)),
        **{
            f"rms_{name}": float(t.square().mean().sqrt())
            for name, t in (("shortcut", s), ("branch", f), ("sum", y))
        },
    }


# ---------------------------------------------------------------------- under the monitor
class Watched:
    """A monitor, what was attached before it, and what lives on after a step."""

    def __init__(self, net: Net, optimizer: torch.optim.Optimizer) -> None:
        self.net, self.optimizer = net, optimizer
        self.before = attached(net, [optimizer])
        self.monitor = Monitor(net, optimizer, preset="debug", on_error="raise", report=[])
        self.step = self.monitor.step
        self.rows: list[list[tuple[Site, int]]] = []

    def after_step(self, number: int, taps: Taps) -> None:
        left = changes(self.before, attached(self.net, [self.optimizer]))
        assert not left, f"step {number} left {left}"
        if any(reference() is not None for reference in taps.seen):
            gc.collect()  # a checkpoint leaves cycles behind
        assert not any(reference() is not None for reference in taps.seen), "a tensor lives on"
        history = self.monitor.history
        self.rows.append(in_order(history))


def in_order(history: History) -> list[tuple[Site, int]]:
    """The sites that were passed in the last step, the block level first, and their columns."""
    called = [
        (site, column)
        for column, site in enumerate(history.sites.sites)
        if history.why[-1, column] != NOT_CALLED
    ]
    return sorted(
        called,
        key=lambda pair: (
            pair[0].nested,
            *((pair[0].stream, pair[0].depth) if not pair[0].nested else (0, 0)),
            pair[0].index,
        ),
    )


def disagreement(got: float | None, wanted: float | None, name: str) -> bool:
    if got is None or wanted is None:
        return got is not wanted
    if not math.isfinite(wanted):
        return not (got == wanted or (math.isnan(got) and math.isnan(wanted)))
    scale = 1.0 if name == "cosine" else abs(wanted)
    return not abs(got - wanted) <= BAR * scale
