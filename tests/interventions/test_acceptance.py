"""The remedy that a finding names, on a run with that finding: it is gone, and the net learns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from skipscope import Monitor, remedies
from skipscope.records import Diagnosis

WIDTH, BLOCKS, STEPS, LR = 32, 16, 60, 0.004  # at .006 the sick net diverges


class Block(nn.Module):
    """Two layers, each behind a ReLU, and no norm: with He's start each block grows the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        for layer in (self.first, self.last):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(torch.relu(self.first(torch.relu(x))))


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32)
    return (x - x.mean()) / x.std(), torch.tensor(data.target)


def run(remedy: Callable[..., remedies.Account] | None) -> tuple[Diagnosis, float]:
    """The diagnosis after some steps of training, and the loss on all of the data then."""
    torch.manual_seed(0)
    x, y = digits()
    net = nn.Sequential(
        nn.Linear(64, WIDTH), *(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, 10)
    )
    if remedy is not None:
        assert len(remedy(net, x[:4]).sites) == BLOCKS
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    monitor = Monitor(net, optimizer, report=[], updates="off", on_error="raise")
    for step in range(STEPS):
        batch = torch.randint(len(x), (128,), generator=torch.Generator().manual_seed(step))
        with monitor.step():
            optimizer.zero_grad()
            F.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        loss = F.cross_entropy(net(x), y)
    return monitor.diagnose(), float(loss)


@pytest.fixture(scope="module")
def sick() -> tuple[Diagnosis, float]:
    return run(None)


def codes(diagnosis: Diagnosis) -> set[str]:
    return {finding.code for finding in diagnosis.findings}


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        ("zero_init_branches", remedies.zero_init_branches),
        ("depth_scaled_init", remedies.depth_scaled_init),
        ("scale_branches", lambda net, x: remedies.scale_branches(net, x, alpha=BLOCKS**-0.5)),
    ],
)
def test_the_remedy_that_a_finding_names_clears_it(
    sick: tuple[Diagnosis, float], call: str, remedy: Callable[..., remedies.Account]
) -> None:
    diagnosis, before = sick
    found = [f for f in diagnosis.findings if f.code in ("RES105", "RES201")]
    assert {finding.code for finding in found} == {"RES105", "RES201"}
    assert all(f"skipscope.remedies.{call}(" in " ".join(f.advice) for f in found)
    after_diagnosis, after = run(remedy)
    assert not codes(after_diagnosis) & {"RES105", "RES201"}
    assert before < 2.4  # it neither diverged nor learned: chance is ln 10
    assert after < before / 2
