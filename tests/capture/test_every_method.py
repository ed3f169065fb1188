"""Every method of the monitor's own code fails once: the training does not notice.

The list is made from the code, so that a new method is tested from its first day, or has to be
named here as one that a short training never comes to.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipscope import judge as judge_module
from skipscope import pictures as pictures_module
from skipscope import publish as publish_module
from skipscope import recorder as recorder_module
from skipscope import stepping as stepping_module
from skipscope.additions import Additions, Operations
from skipscope.attendance import Attendance
from skipscope.capture import Capture, Captured
from skipscope.capture.slots import Slot
from skipscope.curves import Curves
from skipscope.find import Discovery, SiteRegistry
from skipscope.find.found import Found
from skipscope.find.graph import Graph
from skipscope.find.node import Branch
from skipscope.find.places import Places
from skipscope.find.relate import Relater, Relation
from skipscope.history import History, HistoryWriter
from skipscope.judge import Judge
from skipscope.loggers import Loggers
from skipscope.monitor import Monitor
from skipscope.ranks import Company
from skipscope.recorder import Recorder
from skipscope.sampling import Sampling
from skipscope.schedule import Schedule
from skipscope.stepping import Steps
from skipscope.together import Shards, Together
from skipscope.transfer import Transfer
from skipscope.updates import Rotation, Updates
from skipscope.watch import Watch
from tests.capture.attachments import attached, changes

D = 4
CLASSES = (
    Additions,
    Operations,
    Attendance,
    Branch,
    Capture,
    Captured,
    Company,
    Curves,
    Discovery,
    Found,
    Graph,
    History,
    HistoryWriter,
    Judge,
    Loggers,
    Monitor,
    Places,
    Recorder,
    Relater,
    Relation,
    Rotation,
    Sampling,
    Schedule,
    Shards,
    SiteRegistry,
    Slot,
    Steps,
    Together,
    Transfer,
    Updates,
    Watch,
)
#: What the training's code calls itself: these hold the guard, and what they call is tested.
CALLED_FROM_OUTSIDE = {
    "Monitor": "ablate close diagnose diagnosis epoch_end flush load_state_dict report state_dict "
    "step summary _repr_markdown_ from_options",
    "Steps": "abandon_step begin_step end_step gradients_ready history pause trained_as",
    "Capture": "close",
    "Updates": "_pre_hook _post_hook close",
    "Places": "_before _after",
    "Sampling": "close",
}
#: What two steps of a small net never come to.
NOT_REACHED = {
    "Attendance": "_parcel met_once",
    "Curves": "tags",
    "Graph": "_is_weight",
    "History": "load resume",
    "HistoryWriter": "_remove",
    "Judge": "_rule_failed",
    "Recorder": "_describe _part_ways _refused forget losses overdue set_losses",
    "Relater": "_by_weight _meets_others",
    "Schedule": "_extra",
    "Shards": "keep take",
    "SiteRegistry": "adopt",
    "Together": "_all_stop _not_met held meet news",
}
ERRORS = (RuntimeError, MemoryError, AttributeError, torch.OutOfMemoryError)


def methods() -> Iterator[tuple[type, str]]:
    for owner in CLASSES:
        for name, thing in vars(owner).items():
            written = isinstance(thing, (property, staticmethod, classmethod))
            written = written or inspect.isfunction(thing)
            outside = CALLED_FROM_OUTSIDE.get(owner.__name__, "").split()
            if written and not name.startswith("__") and name not in outside:
                yield owner, name


#: Functions through which what was recorded goes out.
FUNCTIONS = [
    (judge_module, "diagnose"),
    (judge_module, "announce"),
    (judge_module, "publish"),
    (judge_module, "summary"),
    (publish_module, "console_report"),
    (publish_module, "_made"),
    (pictures_module, "heat_map"),
    (recorder_module, "parameter_table"),
    (stepping_module, "describe_run"),
]
PLACES: list[tuple[Any, str]] = [*methods(), *FUNCTIONS]
IDS = [f"{owner.__name__.rpartition('.')[2]}.{name}" for owner, name in PLACES]


class Failing:
    """A method that raises whenever it is called, and remembers that it was."""

    def __init__(self, owner: Any, name: str, error: BaseException) -> None:
        self.owner, self.name, self.error = owner, name, error
        self.called = 0

    def __enter__(self) -> Failing:
        self.kept = thing = vars(self.owner)[self.name]

        def explode(*_: Any, **__: Any) -> Any:
            self.called += 1
            raise self.error

        if inspect.isfunction(thing):
            explode = functools.wraps(thing)(explode)
        kinds = (property, staticmethod, classmethod)
        kind = next((kind for kind in kinds if isinstance(thing, kind)), None)
        setattr(self.owner, self.name, explode if kind is None else kind(explode))
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.kept)


# ---------------------------------------------------------------------- a training that does all
class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return (x + self.down(torch.relu(self.up(h)))) + torch.tanh(self.up(h))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(D, D), nn.Sequential(Block(), Block())
        self.gate, self.head = nn.Linear(D, D), nn.Linear(D, 1)
        self.register_buffer("mask", torch.ones(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        t = torch.sigmoid(self.gate(x))
        x = t * torch.relu(self.gate(x)) + (1 - t) * x
        x = 0.5 * x + torch.tanh(self.gate(x))
        x = torch.cat([x, x], -1).unflatten(-1, (2, D)).sum(-2)
        x = torch.stack([x, torch.relu(self.gate(x))]).sum(0)
        return self.head(x)


class Board:
    """A logger that takes scalars and text."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        return None

    def log_text(self, key: str, columns: list[str], data: list[Any]) -> None:
        return None


class Gallery(Board):
    """One that takes pictures too: drawing takes more time than all the rest."""

    def log_image(self, key: str, images: list[Any]) -> None:
        return None


def train(
    net: nn.Module, optimizer: torch.optim.Optimizer, steps: Callable[[], Any]
) -> list[float]:
    """Two steps of the bare training; `steps` gives what encloses each."""
    losses = []
    for number in range(2):
        torch.manual_seed(number)
        with steps():
            optimizer.zero_grad()
            loss = net(torch.randn(2, 3, D)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses


class Watched:
    """A net, its optimizer, and all that a trainer may ask of its monitor."""

    def __init__(self, folder: Path, board: Board | None = None) -> None:
        torch.manual_seed(5)
        self.net = Net()
        self.plain = copy.deepcopy(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.monitor = Monitor(
            self.net,
            self.optimizer,
            preset="debug",
            loggers=[board or Board()],
            dirpath=str(folder),
            sites=["blocks.*", "Net"],
        )
        self.monitor.show = lambda text: None
        self.before = attached(self.net, [self.optimizer])

    def train(self) -> list[float]:
        monitor = self.monitor
        monitor.load_state_dict({"version": 1, "step": 0, "epoch": 0})
        losses = train(self.net, self.optimizer, monitor.step)
        monitor.begin_step()
        loss = self.net(torch.randn(2, 3, D)).sum()
        monitor.gradients_ready()
        monitor.end_step(loss)
        monitor.begin_step()
        monitor.pause()
        monitor.summary()
        monitor.epoch_end()
        monitor.state_dict()
        monitor.diagnose()
        monitor.report("json")
        monitor.close()
        return losses

    def is_as_without(self, losses: list[float]) -> bool:
        optimizer = torch.optim.SGD(self.plain.parameters(), lr=0.1, momentum=0.9)
        expected = train(self.plain, optimizer, torch.enable_grad)
        pairs = zip(self.plain.parameters(), self.net.parameters(), strict=True)
        return losses == expected and all(torch.equal(a, b) for a, b in pairs)

    def nothing_left(self) -> bool:
        self.monitor.close()  # a file that could not be closed, once more
        return changes(self.before, attached(self.net, [self.optimizer])) == {}


def board_for(place: tuple[Any, str]) -> Board:
    return Gallery() if place[0] is pictures_module else Board()


@pytest.mark.parametrize(("number", "place"), list(enumerate(PLACES)), ids=IDS)
def test_an_error_in_any_method(
    number: int, place: tuple[Any, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner, name = place
    error = ERRORS[number % len(ERRORS)]("injected")
    watched = Watched(tmp_path, board_for(place))
    with Failing(owner, name, error) as failing, caplog.at_level(logging.WARNING, "skipscope"):
        losses = watched.train()
    reached = name not in NOT_REACHED.get(owner.__name__, "").split()
    assert bool(failing.called) == reached, "NOT_REACHED is to be brought up to date"
    assert watched.is_as_without(losses)
    assert watched.nothing_left()
    if reached:
        told = [r for r in caplog.records if r.name == "skipscope" and r.levelno > 30]
        assert all(r.exc_info is not None and r.exc_info[1] is error for r in told)
        assert all("report this traceback" in r.getMessage() for r in told)
        stopped = sorted("stopped measuring" in r.getMessage() for r in told)
        assert stopped in ([True], [False], [False, True]), "once, and once more for rules"
        count = len(watched.monitor.history.capture_steps)
        train(watched.net, watched.optimizer, watched.monitor.step)
        more = len(watched.monitor.history.capture_steps) - count
        assert more == (0 if any(stopped) else 2), "it is off, unless rules alone were left out"
        assert watched.nothing_left()


#: What PyTorch calls: an interrupt there meets autograd, a module or an optimizer half-way.
HOOKS = (Additions, Operations, Capture, Discovery, Places, Slot, Updates, Sampling, Steps, Monitor)
INTERRUPTED = [
    pytest.param(place, id=name, marks=[] if place[0] in HOOKS else [pytest.mark.slow])
    for place, name in zip(PLACES, IDS, strict=True)
]


@pytest.mark.parametrize("place", INTERRUPTED)
def test_an_interrupt_in_any_method_passes(place: tuple[Any, str], tmp_path: Path) -> None:
    owner, name = place
    if name in NOT_REACHED.get(owner.__name__, "").split():
        return
    watched, error = Watched(tmp_path, board_for(place)), KeyboardInterrupt()
    with Failing(owner, name, error), pytest.raises(KeyboardInterrupt) as caught:
        watched.train()
    assert caught.value is error
    assert watched.nothing_left()
    train(watched.net, watched.optimizer, watched.monitor.step)  # it can go on
    assert watched.monitor.history.capture_steps.size
    assert watched.nothing_left()
