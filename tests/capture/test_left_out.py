"""What `sites=` and `exclude=` leave out is not missing, and a name that fits nothing is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipscope.monitor import Monitor


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.fc1(x).tanh())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.Sequential(*(Block() for _ in range(5)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.stem(x))
        return out


def watched(**options: Any) -> Monitor:
    """A monitor that saw four steps of a net of five blocks."""
    torch.manual_seed(0)
    net = Net()
    monitor = Monitor(net, preset="debug", on_error="raise", report=[], **options)
    for _ in range(4):
        with monitor.step():
            net(torch.randn(3, 4)).square().mean().backward()
    return monitor


@pytest.mark.parametrize(
    ("options", "left", "severities"),
    [
        ({"sites": ["blokcs"]}, 5, ["info"]),
        ({"sites": ["stem"]}, 5, ["info"]),
        ({"exclude": ["Block"]}, 5, ["info"]),
        ({"exclude": ["blocks.1"]}, 1, []),
        ({"exclude": ["blocks.1", "blocks.3"]}, 2, []),
        ({"sites": ["blocks.[0-2]"]}, 2, []),
        ({}, 0, []),
    ],
)
def test_what_is_left_out_is_not_missing(
    options: dict[str, Any], left: int, severities: list[str]
) -> None:
    monitor = watched(**options)
    unseen = monitor.history.sites.unseen
    assert sum(one.count for one in unseen if one.what == "left out") == left
    assert len(monitor.history.sites.sites) == 5 - left
    found = {finding.code: finding.severity for finding in monitor.diagnose().findings}
    assert "RES503" not in found
    assert [found[code] for code in found if code == "RES901"] == severities


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sites": ["blokcs"]}, ["sites names 'blokcs'; did you mean blocks"]),
        ({"sites": ["Blok", "stem"]}, ["sites names 'Blok'; did you mean Block"]),
        ({"exclude": ["zzz"]}, ["exclude names 'zzz'; known: Block, Linear, Net,"]),
        (
            {"sites": ["layers.*"], "exclude": ["blocks.9"]},
            ["sites names 'layers.*'", "exclude names 'blocks.9'; did you mean blocks."],
        ),
        ({"sites": ["blocks.*"], "exclude": ["Linear", "blocks.?.fc1"]}, []),
        ({"sites": ["Net"]}, []),
    ],
)
def test_a_name_that_fits_no_module_is_told_once(
    options: dict[str, Any], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "skipscope"):
        watched(**options)
    said = [r.getMessage() for r in caplog.records if "no module path" in r.getMessage()]
    assert len(said) == bool(told)
    assert all(clause in said[0] for clause in told)


@pytest.mark.parametrize("model", ["net", None, Net])
def test_what_is_no_model_is_refused_at_once(model: Any) -> None:
    with pytest.raises(TypeError, match=r"^Monitor: model must be an nn\.Module, got "):
        Monitor(model)
