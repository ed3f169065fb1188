"""A controlled study: the same net with and without its shortcuts, over depths and seeds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from torch import nn

from skipscope.evidence.outcome import Cell, Evidence
from skipscope.evidence.reports import FILES
from skipscope.evidence.store import (
    Planned,
    load,
    load_outcome,
    save_plan,
)
from skipscope.intervention.arm import Projections
from skipscope.study import asked
from skipscope.study.arms import Arm, Factory, choose
from skipscope.study.checking import PlainStart, with_chance
from skipscope.study.data import Data
from skipscope.study.folder import Held, is_as_written
from skipscope.study.plan import (
    Loss,
    MakeOptimizer,
    Plan,
    Wrong,
    cross_entropy,
    misclassified,
    own_random_state,
    sgd,
)
from skipscope.study.pool import run_cells
from skipscope.study.progress import Progress
from skipscope.study.protocol import configuration, protocol
from skipscope.study.rehearsing import rehearse


class Study:
    """Trains a residual model and its own plain control under equal conditions, and writes it down.

    The arms differ in the shortcut only: same modules, same initial weights for a seed, same
    batches in the same order, same optimizer and steps. What they came to goes into a folder, which
    `skipscope.evidence` judges, and `skipscope study --report FOLDER` shows.

    Args:
        factory: depth -> model, or a model, which then is the only depth. What a factory draws
            follows from the seed; a model's weights are its own, and seeds change the batches only.
        data: (x_train, y_train, x_validation, y_validation), or two datasets; held in memory.
        arms: "plain" (no shortcuts), "residual" (the model as it is), "idle" (branches times 0), or
            an `Arm`, as `scaled(0.1)` makes one.
        depths: what the factory is called with; not for a model.
        seeds: their number, or they themselves.
        lr: learning rate of the comparison.
        rates: a grid of learning rates for the plain and the residual arm; none where empty.
        grid_depth: at which depth the grid is tried; None: the one in the middle.
        grid_seeds: their number, or they themselves; None: all of the study's.
        steps: optimizer steps.
        batch_size: samples in a batch; where there are fewer to train on, all of them.
        optimizer: (parameters, lr) -> optimizer; None: SGD with momentum 0.9.
        loss_fn: (outputs, targets) -> mean loss; None: cross-entropy.
        wrong: (outputs, targets) -> for each target, whether it was missed; None: by the likeliest
            class.
        projections: whether the plain arm keeps projections P(x) or has them "cut" too, which
            leaves P without a gradient.
        plain_start: what becomes of a plain arm whose start has no gradient without shortcuts:
            "refuse", "he" (its branches drawn anew), a function (model, x) that changes it, or
            "keep" it, with a note.
        device: where it trains.
        name: short, of the study.
        title: of its report.

    Raises:
        TypeError: `data` is nothing that can be trained on, or a function is none.
        ValueError: an argument is out of range, or says something that there is not.

    Example:
        >>> import tempfile, torch
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.fc = nn.Linear(8, 8)
        ...     def forward(self, x):
        ...         return x + self.fc(x.relu())
        >>> def net(depth):
        ...     blocks = [Block() for _ in range(depth)]
        ...     return nn.Sequential(nn.Linear(4, 8), *blocks, nn.Linear(8, 2))
        >>> x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        >>> y = (x[:, 0] > 0).long()
        >>> study = Study(net, (x, y, x, y), depths=(1, 2), seeds=1, steps=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     evidence = study.run(folder, progress=False)
        >>> [outcome.cell.key for outcome in evidence.outcomes][:2]
        ['plain-d001-s0-lr0.01', 'plain-d002-s0-lr0.01']
    """

    def __init__(
        self,
        factory: Factory | nn.Module,
        data: Any,
        *,
        arms: Sequence[str | Arm] = ("plain", "residual", "idle"),
        depths: Sequence[int] | None = None,
        seeds: int | Sequence[int] = 3,
        lr: float = 0.01,
        rates: Sequence[float] = (),
        grid_depth: int | None = None,
        grid_seeds: int | Sequence[int] | None = None,
        steps: int = 330,
        batch_size: int = 128,
        optimizer: MakeOptimizer | None = None,
        loss_fn: Loss | None = None,
        wrong: Wrong | None = None,
        projections: Projections = "keep",
        plain_start: PlainStart = "refuse",
        device: str = "cpu",
        name: str = "study",
        title: str = "",
    ) -> None:
        if projections not in ("keep", "cut"):
            raise ValueError(f"projections must be 'keep' or 'cut', got {projections!r}")
        if not callable(plain_start) and plain_start not in ("refuse", "he", "keep"):
            raise ValueError(
                "plain_start must be 'refuse', 'he', 'keep' or a function (model, x), got "
                f"{plain_start!r}"
            )
        asked.callables(factory=factory, loss_fn=loss_fn, wrong=wrong, optimizer=optimizer)
        self.seeds = asked.seeds("seeds", seeds)
        self.grid_seeds = (
            self.seeds if grid_seeds is None else asked.seeds("grid_seeds", grid_seeds)
        )
        self.lr = asked.rate("lr", lr)
        self.rates = asked.rates(rates, self.lr)
        self.name, self.title = str(name), str(title or name)
        self._plain_start = plain_start
        self._plan = Plan(
            factory, choose(arms), Data.of(data), loss_fn or cross_entropy,
            wrong or misclassified, optimizer or sgd, asked.number("steps", steps),
            asked.number("batch_size", batch_size), projections, asked.device(device),
        )  # fmt: skip
        self._check_targets(wrong)
        self.depths = self._depths(depths)
        self._check_arms()
        middle = self.depths[len(self.depths) // 2]
        self.grid_depth = middle if grid_depth is None else grid_depth
        if self.rates and self.grid_depth not in self.depths:
            raise ValueError(f"grid_depth must be one of {self.depths}, got {self.grid_depth}")

    def _depths(self, wanted: Sequence[int] | None) -> tuple[int, ...]:
        factory = self._plan.factory
        if isinstance(factory, nn.Module):
            if wanted is not None:
                raise ValueError("depths: a model has the depth it has; give a factory")
            with own_random_state():
                return (len(self._plan.sites(self._plan.build(self._plan.arms[0], 0, 0)[0])),)
        return asked.depths(wanted if wanted is not None else (10, 20, 50, 100))

    def _check_arms(self) -> None:
        for arm in self._plan.arms:
            if not arm.at(self.depths):
                raise ValueError(
                    f"arms: {arm.name!r} has depths {arm.depths}, none of which is one of the "
                    f"study's {self.depths}"
                )

    def _check_targets(self, wrong: Wrong | None) -> None:
        data = self._plan.data
        for name, targets in (("y_train", data.y_train), ("y_validation", data.y_validation)):
            if wrong is not None or not targets.numel():
                continue
            if targets.is_floating_point():
                raise ValueError(
                    f"wrong: {name} holds no classes, so say when one is missed: "
                    "wrong=lambda outputs, targets: (outputs - targets).abs() > 0.1"
                )
            if int(targets.min()) < 0:
                raise ValueError(
                    f"wrong: {name} holds class {int(targets.min())}, and classes count from 0; "
                    "where such targets are left out of the loss, give a wrong that does so too"
                )

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every training of the study, in the order of the report."""
        found: list[Cell] = []
        for arm in self._plan.arms:
            for depth in arm.at(self.depths):
                found += [Cell(arm.name, depth, seed, self.lr) for seed in self.seeds]
        for arm in self._plan.arms:
            if arm.on_grid and self.grid_depth in arm.at(self.depths):
                found += [
                    Cell(arm.name, self.grid_depth, seed, rate)
                    for rate in self.rates
                    for seed in self.grid_seeds
                ]
        return tuple(dict.fromkeys(found))

    def run(
        self, folder: str | os.PathLike[str], *, jobs: int = 1, progress: bool = True
    ) -> Evidence:
        """Trains what is not finished yet in a folder, and returns what is there then.

        A study that was stopped, however it was, goes on where it stood. One with more seeds or
        depths than are written in the folder, and all else the same, trains what is new and reports
        all. A verdict that was written before is removed once there is more to train: it would
        judge what it has not seen. Random state and threads of the caller stay as they were.

        Args:
            folder: where it is written; made where it is not there.
            jobs: processes that train, one thread each. More than one needs everything that the
                study is given to be importable, and a script's `if __name__ == "__main__":`.
            progress: whether a bar is shown on standard error.

        Raises:
            StudyError: the plain arm would be a straw man, one of the study's arguments does not do
                what it is for (it says which), or a training failed.
            StoreError: the folder holds another study (it says what differs), is in use, or cannot
                be written to.
            TypeError: it is no path.
            KeyboardInterrupt: Ctrl-C; what is finished is kept.
        """
        jobs = asked.number("jobs", jobs)
        try:
            with closing(Held(folder)) as held:
                return self._run(held.path, jobs, progress)
        except KeyboardInterrupt:  # where in a training it came tells nobody anything
            raise KeyboardInterrupt(
                f"stopped; what is finished is kept in {folder}, and the same call goes on"
            ) from None

    def _run(self, target: Path, jobs: int, progress: bool) -> Evidence:
        rehearse(self._plan, self.depths, self.seeds[0], self.lr)
        plan, notes = with_chance(self._plan, self.depths, self.seeds[0], self._plain_start)
        cells = self.cells
        self._take_up(target, plan, notes, cells)
        waiting = [cell for cell in cells if load_outcome(target, cell) is None]
        if waiting:
            self._train(plan, waiting, target, jobs, progress)
        return load(target)

    def _train(
        self, plan: Plan, waiting: Sequence[Cell], target: Path, jobs: int, progress: bool
    ) -> None:
        bar = Progress(self.name, sum(cell.depth for cell in waiting), shown=progress)
        with ExitStack() as stack:
            _remove_verdict(target)
            stack.callback(_remove_verdict, target)  # one that was written meanwhile
            stack.callback(bar.end)
            for outcome in stack.enter_context(closing(run_cells(plan, waiting, target, jobs))):
                bar.add(outcome.cell.depth, outcome.cell.key)

    def _take_up(
        self, folder: Path, plan: Plan, notes: dict[str, str], cells: tuple[Cell, ...]
    ) -> None:
        """Begins a folder, lets it grow, or sees to it that it is of this very study.

        Raises:
            StoreError: it is of another.
        """
        settings = configuration(plan, cells, self.seeds[0], self.lr)
        if is_as_written(folder, plan, cells, settings, self.lr):
            return
        facts = tuple(arm.facts for arm in plan.arms)
        said = {**protocol(plan, self.depths[0], self.seeds, settings), **notes}
        grid = tuple(sorted({self.lr, *self.rates})) if self.rates else ()
        evidence = Evidence(self.name, self.title, facts, (), self.lr, said, grid)
        save_plan(folder, Planned(evidence, cells, settings))


def _remove_verdict(folder: Path) -> None:
    """A verdict judges fewer trainings than there are, once others are added."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
