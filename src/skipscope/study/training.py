"""One training of a study: an arm at one depth, from one seed, at one learning rate."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skipscope.evidence.outcome import Cell, Outcome, Reading
from skipscope.evidence.store import CELLS, StudyError, cell_folder
from skipscope.history import History, history_paths
from skipscope.names import a_kind
from skipscope.records import Diagnosis
from skipscope.study.arms import Arm
from skipscope.study.data import Batches, Data
from skipscope.study.plan import Plan, one_thread, own_random_state
from skipscope.study.readings import FIXED, Blocks, Update, effective_rank, gradient_norm
from skipscope.study.scoring import Score, score
from skipscope.study.watching import CellMonitor, read_steps

#: The training error of so many last batches decides whether 9 of 10 are right.
RECENT = 5


def train(plan: Plan, cell: Cell, folder: Path) -> Outcome:
    """Trains one cell and writes its history into its folder.

    The caller's random state, threads and log stay as they were. A history of an earlier try, which
    was stopped, is thrown away.
    """
    own = cell_folder(folder, cell)
    own.mkdir(parents=True, exist_ok=True)
    for old in history_paths(own):
        old.unlink()
    with own_random_state(), one_thread(), _quiet():
        outcome = Training(plan, cell, own).run()
    written = history_paths(own)  # none where the disk took none, which the log tells
    return replace(outcome, history=f"{CELLS}/{cell.key}/{written[0].name}" if written else "")


@contextmanager
def _quiet() -> Iterator[None]:
    """Findings are in the outcome: while the cells train, only errors are told."""
    logger = logging.getLogger("skipscope")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass
class _Course:
    """What came of the steps so far."""

    steps: int = 0
    finite: bool = True
    steps_to_90: int | None = None
    readings: list[Reading] = field(default_factory=list)
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, loss: float, error: float) -> None:
        self.finite = self.finite and math.isfinite(loss)
        self.errors.append(error)
        full = len(self.errors) == RECENT
        if self.steps_to_90 is None and full and sum(self.errors) <= 0.1 * RECENT:
            self.steps_to_90 = self.steps
        self.steps += 1

    def to_90(self) -> float | None:
        """The first step at which 9 of 10 were right; None where there were too few to tell."""
        told = self.steps_to_90 is not None or (self.finite and len(self.errors) < RECENT)
        return self.steps_to_90 if told else math.inf


class Training:
    """One cell: the model of its arm, its batches, its optimizer."""

    def __init__(self, plan: Plan, cell: Cell, folder: Path) -> None:
        self.plan, self.cell = plan, cell
        self.arm: Arm = plan.arm(cell.arm)
        self.model, self.weights = plan.build(self.arm, cell.depth, cell.seed)
        self.data: Data = plan.data.to(plan.device)
        self.batches = Batches(len(self.data.x_train), plan.batch_size, plan.steps, cell.seed)
        self.blocks = Blocks(self.model, plan.sites(self.model), plan.example())
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer: Optimizer = plan.optimizer(trained, cell.lr)
        self.described = describe_optimizer(self.optimizer)
        self.read = read_steps(plan.steps)
        self.monitor = CellMonitor(self.model, self.optimizer, folder, self.read)
        self.received: set[int] = set()
        self.course = _Course()
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def run(self) -> Outcome:
        """Trains, and says what came of it."""
        started = time.perf_counter()
        with ExitStack() as stack:
            stack.callback(self.monitor.close)
            if self.arm.intervenes:
                stack.enter_context(self.plan.intervened(self.arm, self.model))
            self.model.train()
            for step, samples in enumerate(self.batches.order.to(self.plan.device)):
                self._step(step, samples)
                if not self.course.finite:
                    break
            scores = self._scores()
            diagnosis = self.monitor.diagnose()
        return self._outcome(scores, diagnosis, time.perf_counter() - started)

    # ------------------------------------------------------------------ one step
    def _step(self, step: int, samples: Tensor) -> None:
        inputs, targets = self.data.x_train[samples], self.data.y_train[samples]
        if self.arm.warmup:
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * min(1.0, (step + 1) / self.arm.warmup)
        read = step in self.read
        rank = effective_rank(self.blocks.features(self.data.x_train[:FIXED])) if read else None
        self.monitor.begin_step(step=step)
        self.optimizer.zero_grad()
        outputs = self.model(inputs)
        loss = self.plan.loss_fn(outputs, targets)
        loss.backward()
        if read:
            reading = self._before_update(step, rank)
            first, last = Update(self.blocks.first), Update(self.blocks.last)
        self.optimizer.step()
        self.monitor.end_step(loss.detach())
        value = float(loss.detach())
        if read:
            reading = replace(reading, update_first=first.size(), update_last=last.size())
            self.course.readings.append(replace(reading, loss=value))
        with torch.no_grad():
            self.course.add(value, float(self.plan.wrong(outputs, targets).float().mean()))

    def _before_update(self, step: int, rank: float | None) -> Reading:
        for index, parameter in enumerate(self.model.parameters()):
            if index in self.received or parameter.grad is None:
                continue
            if bool(parameter.grad.any()):
                self.received.add(index)
        return Reading(
            step,
            gradient_first=gradient_norm(self.blocks.first),
            gradient_last=gradient_norm(self.blocks.last),
            effective_rank=rank,
        )

    # ------------------------------------------------------------------ the end
    def _scores(self) -> tuple[Score, Score, Score | None]:
        """On the training set, on the validation set, and on the former by batch statistics."""
        weights = all(bool(torch.isfinite(p).all()) for p in self.model.parameters())
        self.course.finite = self.course.finite and weights
        plan, data = self.plan, self.data
        normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules())
        if not self.course.finite:
            worst = Score(math.inf, 1.0)
            return worst, worst, worst if normed else None
        by_batch = score(plan, self.model, data.x_train, data.y_train, by_batch=True)
        return (
            score(plan, self.model, data.x_train, data.y_train),
            score(plan, self.model, data.x_validation, data.y_validation),
            by_batch if normed else None,
        )

    def _outcome(
        self,
        scores: tuple[Score, Score, Score | None],
        diagnosis: Diagnosis,
        seconds: float,
    ) -> Outcome:
        parameters = list(self.model.parameters())
        training, validation, by_batch = scores
        return Outcome(
            cell=self.cell,
            parameters=sum(p.numel() for p in parameters),
            parameters_with_gradient=sum(parameters[i].numel() for i in self.received),
            steps=self.course.steps,
            batches=self.batches.fingerprint,
            optimizer=self.described,
            train_loss=training.loss,
            train_error=training.error,
            validation_loss=validation.loss,
            validation_error=validation.error,
            finite=self.course.finite,
            seconds=round(seconds, 3),
            train_loss_batch=by_batch.loss if by_batch else None,
            train_error_batch=by_batch.error if by_batch else None,
            steps_to_90=self.course.to_90(),
            readings=with_ratios(self.course.readings, self.monitor.history),
            findings=tuple((f.code, f.severity) for f in diagnosis.standing),
            weights=self.weights,
        )


def with_ratios(readings: list[Reading], history: History) -> tuple[Reading, ...]:
    """The readings with r of all block-level sites, as the history has it."""
    table = history.table("branch_ratio")
    outer = [site.index for site in history.sites.sites if not site.nested]
    found = []
    for reading in readings:
        rows = np.flatnonzero(table.steps == reading.step)
        if len(rows) and outer:
            values = table.values[rows[-1], outer][~table.missing[rows[-1], outer]]
            if len(values):
                reading = replace(
                    reading,
                    r_median=float(np.median(values)),
                    r_smallest=float(np.min(values)),
                    r_largest=float(np.max(values)),
                )
        found.append(reading)
    return tuple(found)


def describe_optimizer(optimizer: Any) -> str:
    """Its class and the settings that are in force in each group, without the learning rate.

    Raises:
        StudyError: what was made is no optimizer.

    >>> describe_optimizer(torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9))
    'SGD(momentum=0.9)'
    >>> groups = [{"params": [torch.zeros(1)], "weight_decay": 0.1}, {"params": [torch.ones(1)]}]
    >>> describe_optimizer(torch.optim.SGD(groups, lr=0.1))
    'SGD(weight_decay=0.1) and ()'
    """
    if not isinstance(optimizer, Optimizer):
        raise StudyError(f"optimizer: made {a_kind(optimizer)}, not an Optimizer")
    groups = dict.fromkeys(_settings(group) for group in optimizer.param_groups)
    return " and ".join([f"{type(optimizer).__name__}{next(iter(groups))}", *list(groups)[1:]])


def _settings(group: dict[str, Any]) -> str:
    settings = (
        f"{name}={value}"
        for name, value in sorted(group.items())
        if name not in ("params", "lr", "initial_lr") and value not in (None, False, 0)
    )
    return f"({', '.join(settings)})"
