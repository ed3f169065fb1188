"""One answer to which sites a name, path, pattern or class means, whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipscope import Monitor, ablate, intervene, remedies

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Block(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.fc = inner or nn.Identity(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc(self.inner(x).relu())


class Inner(Block):
    """A block inside another's branch: its site is nested."""


class Net(nn.Module):
    """Three blocks; the second holds another, the third has a container of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(Inner())])
        self.tail = nn.Sequential(Block())

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.tail(x)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def intervened(sites: Any) -> list[str]:
    model = net()
    with intervene(model, sites, shortcut=False) as found:
        model(X)
    return [site.name for site in found.sites]


def ablated(sites: Any) -> list[str]:
    model = net()
    return [row.where[0] for row in ablate(model, sites, lambda: model(X).sum()).sites]


def treated(sites: Any) -> list[str]:
    account = remedies.scale_branches(net(), X, alpha=0.5, sites=sites)
    return [change.site for change in account.changes]


def watched(sites: Any, model: nn.Module | None = None) -> list[str]:
    """What a monitor measures: nested sites too, for it changes nothing."""
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, optimizer, sites=[sites], report=[])
    with monitor.step():
        model(X).sum().backward()
        optimizer.step()
    names = [site.name for site in monitor.history.sites.sites]
    monitor.close()
    return names


ALL = {"blocks.0", "blocks.1", "tail.0"}
ACT = (intervened, ablated, treated)


@pytest.mark.parametrize("take", ACT)
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("blocks.*", {"blocks.0", "blocks.1"}),
        ("blocks.?", {"blocks.0", "blocks.1"}),
        ("*.0", {"blocks.0", "tail.0"}),
        ("*.inner", {"blocks.1.inner"}),  # fits nested sites only: these are meant
        ("Inner", {"blocks.1.inner"}),
        ("Block", ALL),
        ("Net", ALL),
        ("*", ALL),
        (["tail", "blocks.0"], {"tail.0", "blocks.0"}),
    ],
)
def test_names_patterns_and_classes(
    take: Callable[[Any], list[str]], wanted: Any, expected: set[str]
) -> None:
    assert set(take(wanted)) == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("blocks.*", {"blocks.0", "blocks.1", "blocks.1.inner"}),
        ("Inner", {"blocks.1.inner"}),
        ("tail", {"tail.0"}),
        ("Net", {*ALL, "blocks.1.inner"}),
    ],
)
def test_a_monitor_takes_the_same_names(wanted: str, expected: set[str]) -> None:
    assert set(watched(wanted)) == expected


class Paired(nn.Module):
    """Two sums of its own, and one in a part: sites `model/a`, `model/b` and `part`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.part = nn.Linear(4, 4), nn.Linear(4, 4), Block()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.a(x)
        x = self.part(x)
        return x + self.b(x)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        # Which of a module's sums is meant is not known before they are: all are measured.
        ("0/a", {"0/a", "0/b", "0.part"}),
        ("?/b", {"0/a", "0/b", "0.part"}),
        ("0.part", {"0.part"}),
    ],
)
def test_a_monitor_takes_names_of_sites(
    wanted: str, expected: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert set(watched(wanted, nn.Sequential(Paired()))) == expected
    assert "no module path" not in caplog.text


@pytest.mark.parametrize("wanted", ["model", "model/a"])
def test_a_monitor_takes_the_model_itself(wanted: str, caplog: pytest.LogCaptureFixture) -> None:
    assert set(watched(wanted, Paired())) == {"model/a", "model/b"}
    assert "no module path" not in caplog.text


@pytest.mark.parametrize("take", ACT)
@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("block.*", r"'block\.\*'.*did you mean .*blocks"),
        ("Blok", "'Blok'.*did you mean .*Block"),
        ("blocks.7", r"'blocks\.7'.*did you mean .*blocks\.0"),
    ],
)
def test_wrong_names_are_refused_with_what_comes_near(
    take: Callable[[Any], list[str]], wrong: str, near: str
) -> None:
    with pytest.raises(ValueError, match=f"no site .*{near}"):
        take(wrong)


def test_a_monitor_tells_the_same_of_a_wrong_name(caplog: pytest.LogCaptureFixture) -> None:
    watched("Blok")
    assert "sites names 'Blok'; did you mean Block" in caplog.text
    caplog.clear()
    watched("Net")
    assert "no module path" not in caplog.text


@pytest.mark.parametrize("take", ACT)
@pytest.mark.parametrize("empty", [[], ()])
def test_what_names_nothing_is_refused(take: Callable[[Any], list[str]], empty: Any) -> None:
    with pytest.raises(ValueError, match=r"^\w+: sites must name something, got .*None for all"):
        take(empty)


def test_the_additions_of_the_model_itself_are_those_of_model() -> None:
    """Two sites in the forward of the model: each has a name, and `model` stands for both."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.a(x)
            return x + self.b(x)

    bare = Bare()
    for wanted, expected in (
        ("model", ["model/a", "model/b"]),
        ("model/?", ["model/a", "model/b"]),
    ):
        with intervene(bare, wanted, shortcut=False) as found:
            bare(X)
        assert [site.name for site in found.sites] == expected
    with intervene(bare, "model/b", shortcut=False) as found:
        bare(X)
    assert [site.name for site in found.sites] == ["model/b"]
