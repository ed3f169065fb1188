"""Per site a deeper net costs no more: lines that run, counted function by function."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import skipscope
from skipscope import Monitor, find_residuals, intervene, preflight, remedies
from skipscope.cli import main

OURS = str(Path(skipscope.__file__).parent)
SHALLOW, DEEP = 12, 48
#: Per site, deep against shallow: a loop within a loop would come to 4.
MOST = 1.5
#: Lines of one function over the whole of a deep net that are too few to tell.
FEW = 20 * DEEP


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(torch.relu(self.first(self.norm(x))))


def net(depth: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *(Block() for _ in range(depth)), nn.Linear(4, 2))


def lines_of(work: Callable[[], Any]) -> Counter[CodeType]:
    """How many lines of each function of ours run."""
    found: Counter[CodeType] = Counter()

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            return follow if frame.f_code.co_filename.startswith(OURS) else None
        if event == "line":
            found[frame.f_code] += 1
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        work()
    finally:
        sys.settrace(before)
    return found


def captured(model: nn.Module, x: Tensor, folder: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = Monitor(model, optimizer, preset="debug", dirpath=folder, report=[], on_error="raise")
    for _ in range(3):
        with monitor.step():
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    monitor.epoch_end()
    monitor.close()


def intervened(model: nn.Module, x: Tensor, _: Path) -> None:
    with intervene(model, branch_scale=0.5):
        model(x).sum().backward()
        model(x)


def without_folder(work: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    return lambda model, x, _: work(model, x, **settings)


WORK: dict[str, Callable[[nn.Module, Tensor, Path], Any]] = {
    "find": without_folder(find_residuals),
    "capture": captured,
    "preflight": without_folder(preflight),
    "intervene": intervened,
    "zero-init": without_folder(remedies.zero_init_branches),
    "depth-scaled": without_folder(remedies.depth_scaled_init),
    "scale": without_folder(remedies.scale_branches, alpha=0.5),
}


def grown(shallow: Counter[CodeType], deep: Counter[CodeType]) -> dict[str, float]:
    return {
        f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_name}": round(growth, 2)
        for code, lines in deep.items()
        if lines > FEW and (growth := lines / DEEP / max(shallow[code] / SHALLOW, 1.0)) > MOST
    }


@pytest.mark.parametrize("name", WORK)
def test_the_work_at_a_site_does_not_grow_with_depth(name: str, tmp_path: Path) -> None:
    x = torch.randn(3, 4)

    def lines_at(depth: int) -> Counter[CodeType]:
        return lines_of(lambda: WORK[name](net(depth), x, tmp_path / str(depth)))

    WORK[name](net(3), x, tmp_path)  # what is done once in a process
    assert not grown(lines_at(SHALLOW), lines_at(DEEP))


@pytest.mark.parametrize(
    "command", ["report", "report --format json", "check", "extrapolate", "compare"]
)
def test_reading_a_run_does_not_grow_with_depth_at_a_site(command: str, tmp_path: Path) -> None:
    def lines_at(depth: int) -> Counter[CodeType]:
        folder = tmp_path / str(depth)
        captured(net(depth), torch.randn(3, 4), folder)
        runs = [str(folder)] * (2 if command == "compare" else 1)
        codes: list[int] = []
        lines = lines_of(lambda: codes.append(main([*command.split(), *runs])))
        assert codes in ([0], [1])
        return lines

    lines_at(3)
    assert not grown(lines_at(SHALLOW), lines_at(DEEP))
