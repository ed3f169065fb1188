"""Scalars, pictures and text for any Lightning logger or TensorBoard SummaryWriter.

Nothing here imports Lightning or TensorBoard: what a logger can do is asked of it. A logger is
somebody else's code, so one that fails is left out with one warning, and training goes on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from skipscope.curves import Curves

if TYPE_CHECKING:
    from skipscope.history import History
    from skipscope.records import Diagnosis

_log = logging.getLogger("skipscope.loggers")

#: Lightning's stand-ins (fast_dev_run, the tuner, ranks other than 0) say yes to every question.
STAND_INS = frozenset({"DummyLogger", "DummyExperiment", "_DummyExperiment"})


class Loggers:
    """Writes what a run shows to its loggers.

    Args:
        loggers: Lightning loggers, SummaryWriters, or a mix; stand-ins are left out.
        name: first part of the tags.
        budget: about how many scalars one captured step may write.
        parameters: write the update ratio of each weight matrix too.
        rank: only rank 0 writes.
    """

    def __init__(
        self,
        loggers: Iterable[object],
        *,
        name: str = "skipscope",
        budget: int = 200,
        parameters: bool = False,
        rank: int = 0,
    ) -> None:
        self.name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        self.budget = budget
        self.parameters = parameters
        self.active: list[Any] = [
            logger for logger in loggers if rank == 0 and not _stands_in(logger)
        ]
        self._curves: Curves | None = None

    def scalars(
        self, history: History, step: int, facts: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Write the scalars of the last capture: one call for each logger.

        Args:
            history: what was recorded.
            step: the captured step.
            facts: this step's own "loss" and "lr", which the history may not hold yet.

        Returns what was written, the same keys each time; NaN where nothing was measured.
        """
        if self._curves is None:
            self._curves = Curves(
                history, name=self.name, budget=self.budget, parameters=self.parameters
            )
        values = self._curves.values(history)
        for fact, value in (facts or {}).items():
            values[f"{self.name}/summary/{fact}"] = value
        known = {tag: value for tag, value in values.items() if value is not None}
        every = {tag: float("nan") if value is None else value for tag, value in values.items()}
        self._each(lambda logger: _write_scalars(logger, every, known, step))
        return every

    def pictures(self, history: History, diagnosis: Diagnosis | None, step: int) -> None:
        """Write the heat maps, where a logger takes pictures; nothing is drawn where none does."""
        takers: list[Any] = []
        self._each(lambda logger: takers.append(_picture_writer(logger)))
        if not any(takers):
            return
        from skipscope.pictures import pictures  # matplotlib and rich wait until one is drawn

        for measure, image in pictures(history, diagnosis).items():
            tag = f"{self.name}/picture/{measure}"
            self._each(partial(_picture, tag=tag, image=image, step=step))

    def text(self, text: str, step: int, *, tag: str = "report") -> None:
        """Write Markdown, where a logger takes text."""
        self._each(lambda logger: _text(logger, f"{self.name}/{tag}", text, step))

    def _each(self, write: Callable[[Any], None]) -> None:
        self.active = [logger for logger in self.active if _survives(logger, write)]


def _survives(logger: Any, write: Callable[[Any], None]) -> bool:
    try:
        write(logger)
    except Exception as problem:
        _log.warning(
            "%s failed and gets nothing more from skipscope: %s: %s",
            type(logger).__name__,
            type(problem).__name__,
            problem,
        )
        return False
    return True


def _stands_in(thing: object) -> bool:
    return any(kind.__name__ in STAND_INS for kind in type(thing).__mro__)


def _experiment(logger: Any) -> Any:
    """What a logger writes with: a SummaryWriter, a client, a run; None for a stand-in."""
    if hasattr(logger, "add_scalar") and not hasattr(logger, "log_metrics"):
        return logger
    experiment = getattr(logger, "experiment", None)
    return None if experiment is None or _stands_in(experiment) else experiment


def _write_scalars(
    logger: Any, every: Mapping[str, float], known: Mapping[str, float], step: int
) -> None:
    """TensorBoard gets what was measured; the others every key, for their tables grow no column."""
    if hasattr(logger, "log_metrics"):
        tensorboard = hasattr(_experiment(logger), "add_scalar")
        logger.log_metrics(metrics=dict(known if tensorboard else every), step=step)
        return
    for tag, value in known.items():
        logger.add_scalar(tag, value, step)


def _picture_writer(logger: Any) -> Callable[[str, Any, int], None] | None:
    """How this logger takes a picture, None where it does not."""
    experiment = _experiment(logger)
    if hasattr(experiment, "add_image"):  # TensorBoard
        return lambda tag, image, step: experiment.add_image(tag, image, step, dataformats="HWC")
    if hasattr(logger, "log_image"):  # W&B counts steps of its own
        return lambda tag, image, step: logger.log_image(key=tag, images=[image])
    if hasattr(experiment, "log_image") and hasattr(logger, "run_id"):  # MLflow
        return lambda tag, image, step: experiment.log_image(
            logger.run_id, image, artifact_file=f"{tag}-{step:08d}.png"
        )
    return None


def _picture(logger: Any, tag: str, image: Any, step: int) -> None:
    write = _picture_writer(logger)
    if write is not None:
        write(tag, image, step)


def _text(logger: Any, tag: str, text: str, step: int) -> None:
    experiment = _experiment(logger)
    if hasattr(experiment, "add_text"):  # TensorBoard
        experiment.add_text(tag, text, step)
    elif hasattr(logger, "log_text"):  # W&B
        logger.log_text(key=tag, columns=["step", "report"], data=[[step, text]])
    elif hasattr(experiment, "log_text") and hasattr(logger, "run_id"):  # MLflow
        experiment.log_text(logger.run_id, text, artifact_file=f"{tag}-{step:08d}.md")
