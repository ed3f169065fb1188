"""What the monitor thinks of what it recorded: at each capture, and at the end of an epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from skipscope.diagnose import diagnose
from skipscope.history import History
from skipscope.loggers import Loggers
from skipscope.options import Options
from skipscope.publish import Outlet, announce, publish, summary
from skipscope.records import Diagnosis, Severity
from skipscope.rule import Rule

logger = logging.getLogger("skipscope")


class Judge:
    """Runs the rules as the options say, and remembers what was said already.

    Raises:
        ValueError: an unknown rule or threshold, told now and not in mid-run.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        #: the diagnosis of the last capture
        self.latest: Diagnosis | None = None
        self._announced: dict[tuple[str, str], Severity] = {}
        self._reported: Diagnosis | None = None
        self._failed: set[str] = set()
        self._outlet = Outlet()
        self._defects: set[tuple[type[Exception], object]] = set()
        self.diagnose(History())

    def diagnose(self, history: History) -> Diagnosis:
        """What the rules say; each finding's status is against the last report."""
        return diagnose(
            history,
            select=self.options.select,
            ignore=self.options.ignore,
            thresholds=self.options.thresholds,
            previous=self._reported,
            failed=None if self.options.on_error == "raise" else self._rule_failed,
        )

    def _rule_failed(self, rule: Rule, error: Exception) -> None:
        """A defect of one rule costs that rule, and not the measurements.

        One that several rules run into, in what they all read, is told once.
        """
        defect = type(error), _place(error)
        known = rule.code in self._failed or defect in self._defects
        self._failed.add(rule.code)
        self._defects.add(defect)
        if not known:
            logger.error(
                "skipscope: rule %s stopped with an error of its own and is left out; everything "
                "else goes on. Please report this traceback at the project's issue tracker.",
                rule.code,
                exc_info=error,
            )

    def at_capture(
        self, history: History, loggers: Loggers, step: int, facts: Mapping[str, float]
    ) -> None:
        """Warns of what is new, and writes the curves."""
        self.latest = self.diagnose(history)
        announce(self.latest, self._announced)
        if loggers.active:
            loggers.scalars(history, step, facts)

    def at_epoch(
        self,
        history: History,
        loggers: Loggers,
        show: Callable[[str], None],
        write: Callable[[str, str], None],
        *,
        step: int,
    ) -> None:
        """Reports: `show` takes a text for the console, `write` a file's name and its text."""
        diagnosis = self.diagnose(history)
        publish(
            history,
            diagnosis,
            self.options,
            loggers=loggers,
            show=show,
            write=write,
            step=step,
            outlet=self._outlet,
        )
        self._reported = diagnosis

    def summary(self, history: History) -> dict[str, float]:
        """Four numbers for checkpoints and early stopping to watch."""
        return summary(history, self.latest or Diagnosis(), self.options.name)


def _place(error: Exception) -> tuple[str, int] | None:
    """File and line where an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else None
