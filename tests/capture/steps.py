"""One training step, twice: by hand and under the monitor; and how far apart they are."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from skipscope.history import History
from skipscope.monitor import Monitor
from tests.capture.reference import (
    BACKWARD,
    BAR,
    FORWARD,
    Numbers,
    Walk,
    backward_numbers,
    gradients,
    norm,
)

PARAMETER = ("weight_norm", "gradient_norm", "update_norm", "update_ratio")


@dataclass
class Case:
    """A net, its data, and its walk. `walk(model, taps, *args)` returns what the model returns."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    walk: Callable[..., Any]
    call: Callable[..., Any] = lambda model, *args: model(*args)
    loss: Callable[[Any], Tensor] = lambda out: (out.float() * _weights(out)).sum()
    autocast: torch.dtype | None = None
    lr: float = 0.05
    excused: Mapping[str, str] = field(default_factory=dict)  #: measure -> why it is left out


def _weights(out: Tensor) -> Tensor:
    """A fixed direction, so that no gradient vanishes by symmetry (as a norm's mean does)."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(out.shape, generator=generator) / out.shape[0]


@dataclass
class Outcome:
    """What both forwards gave."""

    history: History
    walk: Walk
    loss: Tensor
    expected: list[Numbers]  #: one a tap
    parameters: dict[str, Numbers]


def run(case: Case, seed: int = 0) -> Outcome:
    """The walk on a copy, then one real training step under the monitor."""
    torch.manual_seed(seed)
    model = case.build().train()
    args = case.inputs()
    other, plain = copy.deepcopy(model), copy.deepcopy(model)
    walk = Walk()
    torch.manual_seed(seed + 1)
    with autocast(case):
        loss = case.loss(case.walk(other, walk, *copied(args)))
    walk.taps.sort(key=lambda tap: tap.nested)  # the registry counts the block level first
    optimizer = sgd(model, case)
    monitor = Monitor(model, optimizer, preset="debug", on_error="raise")
    before = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    with monitor.step():
        own = train(model, optimizer, case, args, seed)
    assert torch.allclose(own, loss, rtol=1e-6, equal_nan=True), "the walk is not the model"
    assert torch.equal(
        own.nan_to_num(), train(plain, sgd(plain, case), case, args, seed).nan_to_num()
    )
    for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=0, equal_nan=True), "the monitor changed the step"
    return Outcome(
        monitor.history,
        walk,
        loss,
        expected_numbers(walk, loss),
        parameter_numbers(model, other, before, loss),
    )


def sgd(model: nn.Module, case: Case) -> torch.optim.SGD:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=case.lr)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, case: Case, args: Sequence[Any], seed: int
) -> Tensor:
    """One training step; its loss."""
    torch.manual_seed(seed + 1)
    with autocast(case):
        loss = case.loss(case.call(model, *args))
    loss.backward()
    optimizer.step()
    return loss.detach()


def expected_numbers(walk: Walk, loss: Tensor) -> list[Numbers]:
    backward = backward_numbers(walk.taps, loss)
    return [{**tap.forward, **numbers} for tap, numbers in zip(walk.taps, backward, strict=True)]


def copied(args: Sequence[Any]) -> list[Any]:
    return [a.clone() if isinstance(a, Tensor) else a for a in args]


def autocast(case: Case) -> torch.autocast:
    return torch.autocast("cpu", dtype=case.autocast, enabled=case.autocast is not None)


def parameter_numbers(
    model: nn.Module, other: nn.Module, before: Mapping[str, Tensor], loss: Tensor
) -> dict[str, Numbers]:
    """Weights, gradients of the walk, and the real difference of the weights."""
    numbers: dict[str, Numbers] = {}
    arrived = gradients(loss, list(other.parameters()))
    for (name, p), gradient in zip(model.named_parameters(), arrived, strict=True):
        w = before[name]
        moved = norm(p.detach().double() - w)
        floor = 0.1 * math.sqrt(w.numel() / math.prod(w.shape[1:]))
        held = p.requires_grad  # else it is in no optimizer
        numbers[name] = {
            "weight_norm": norm(w) if held else None,
            "gradient_norm": None if gradient is None else norm(gradient),
            "update_norm": moved if held else None,
            "update_ratio": moved / max(norm(w), floor) if held else None,
        }
    return numbers


# ---------------------------------------------------------------------- comparing
def error(name: str, got: float, wanted: float, numbers: Numbers) -> float:
    """How far off, in units of the bar's own scale."""
    if not math.isfinite(wanted):
        return 0.0 if got == wanted or (math.isnan(got) and math.isnan(wanted)) else math.inf
    scale = abs(wanted)
    if name.startswith("mean_"):
        scale = numbers[name.replace("mean_", "rms_")] or 0.0
    elif name in ("cosine", "gradient_cosine", "row_alignment"):
        scale = 1.0
    if got == wanted:
        return 0.0
    return abs(got - wanted) / scale if scale else math.inf


def errors(outcome: Outcome, step: int = -1) -> dict[tuple[str, str], float]:
    """(measure, site or parameter) -> error; infinite where one has a number and the other none."""
    history = outcome.history
    sites = history.sites.sites
    assert len(sites) == len(outcome.walk.taps), f"found\n{history.sites}"
    for site, tap in zip(sites, outcome.walk.taps, strict=True):
        assert tap.module is None or site.module == tap.module, f"{site.module} is not {tap.module}"
        assert (site.kind, site.nested) == (tap.kind, tap.nested), site
    found: dict[tuple[str, str], float] = {}
    for name in (*FORWARD, *BACKWARD):
        table = history.table(name)
        for column, numbers in enumerate(outcome.expected):
            got = None if table.missing[step, column] else float(table.values[step, column])
            found[name, table.columns[column]] = _difference(name, got, numbers[name], numbers)
    for name in PARAMETER:
        table = history.table(name)
        for column, parameter in enumerate(table.columns):
            numbers = outcome.parameters[parameter]
            got = None if table.missing[step, column] else float(table.values[step, column])
            found[name, parameter] = _difference(name, got, numbers[name], numbers)
    return found


def _difference(name: str, got: float | None, wanted: float | None, numbers: Numbers) -> float:
    if got is None or wanted is None:
        return 0.0 if got is wanted else math.inf
    return error(name, got, wanted, numbers)


def check(case: Case, outcome: Outcome | None = None) -> Outcome:
    """Asserts that every measure of every site and parameter is within the bar."""
    outcome = run(case) if outcome is None else outcome
    off = {
        key: value
        for key, value in errors(outcome).items()
        if not value <= BAR and key[0] not in case.excused
    }
    assert not off, "\n".join(describe(outcome, *key, value) for key, value in off.items())
    return outcome


def describe(outcome: Outcome, name: str, column: str, value: float) -> str:
    table = outcome.history.table(name)
    at = table.columns.index(column)
    wanted = outcome.parameters[column][name] if name in PARAMETER else outcome.expected[at][name]
    got = "missing" if table.missing[-1, at] else table.values[-1, at]
    return f"{name} at {column}: {got}, should be {wanted} (error {value:.2g})"
