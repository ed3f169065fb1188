"""History: everything recorded of a run, in arrays; the hinge between torch and the rest.

The file behind it is described in `history.file`; measures turn its sums into tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import numpy.typing as npt

from skipscope.history.file import (
    Bits,
    Floats,
    HistoryWriter,
    Sink,
    count_captures,
    replay,
)
from skipscope.history.format import HistoryError, HistoryInUseError, HistoryVersionError
from skipscope.history.places import history_paths, run_files
from skipscope.history.rows import Rows, Steps
from skipscope.names import counted
from skipscope.records import FACTS, PARAMETER_SUMS, SUMS, Group, Parameter, Run, SiteMap

__all__ = [
    "History",
    "HistoryError",
    "HistoryInUseError",
    "HistoryVersionError",
    "HistoryWriter",
    "Sink",
    "Table",
    "check_history",
    "history_paths",
    "register_tables",
]

_SUM_AT = {field.name: position for position, field in enumerate(SUMS)}
_FACT_AT = {field.name: position for position, field in enumerate(FACTS)}


@dataclass(frozen=True, eq=False)
class Table:
    """One measure over time.

    Shape: `steps` (rows,), `values` and `missing` (rows, columns).
    """

    name: str
    unit: str
    label: str
    steps: Steps
    columns: tuple[str, ...]  #: names of sites, parameters, blocks; "stream 0", "lr.0", "loss" ...
    values: Floats  #: NaN and infinity are results where `missing` is False
    missing: npt.NDArray[np.bool_]  #: not measured, or undefined (0/0); the value there is NaN


_tables: list[Callable[[History, str], Table]] = []


def register_tables(build: Callable[[History, str], Table]) -> None:
    """Tell `History.table` who computes tables.

    The measures stand above the history and know it; the history knows none of them.
    """
    _tables[:] = [build]


class History:
    """Everything recorded of a run, in memory.

    Args:
        window: keep only the first and the last so many captures (a running monitor's view), and
            correspondingly many update rows and step facts; None keeps all.

    Column k of every site array belongs to the site with index k, column k of every parameter
    array to the parameter with index k. A site found late is padded: NaN, with nothing measured.

    >>> history = History()
    >>> history.append_facts([0, 0, 0, 2.3, 1, 0, 1, 0.1, 5.0])
    >>> history.fact("loss")
    array([2.3])
    """

    def __init__(self, run: Run | None = None, *, window: tuple[int, int] | None = None) -> None:
        self.run = run or Run()
        self.sites = SiteMap()
        self.parameters: tuple[Parameter, ...] = ()
        self.groups: tuple[Group, ...] = ()
        of_updates = (window[0] + 50, window[1]) if window else None
        of_facts = (512, 4096) if window else None
        self._captures = Rows(window, (len(SUMS),), (), ())
        self._updates = Rows(of_updates, (len(PARAMETER_SUMS),), ())
        self._facts = Rows(of_facts, ())
        self._cache: dict[str, Table] = {}

    def __repr__(self) -> str:
        """What it is of, and how much it holds."""
        steps = self.capture_steps
        until = f", step {steps[0]}" if len(steps) == 1 else ""
        until = f", steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else until
        held = f"{counted(len(self.sites.sites), 'site')}, {counted(len(steps), 'capture')}{until}"
        return f"<History of {self.run.model or 'no model'}: {held}>"

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, window: tuple[int, int] | None = None
    ) -> History:
        """Read a history file, or the newest one of a directory or of `skipscope/` in it.

        A directory may hold several runs (`history_paths` lists them): give the file of another.

        Raises:
            FileNotFoundError: nothing there.
            HistoryError: the file is no history.
            HistoryVersionError: the file comes from a newer release.
        """
        source = run_files(Path(path))[0]
        history = cls(window=window)
        if window is None:
            history._captures.reserve(count_captures(source))
        replay(source, history)
        return history

    def set_run(self, run: Run) -> None:
        """Set the facts about the run."""
        self.run = run
        self._cache.clear()

    def set_sites(self, sites: SiteMap) -> None:
        """Set the site map; indices stay, later sites get the next ones.

        Raises:
            ValueError: indices are not 0, 1, 2 ..., or sites that have captures are gone.
        """
        _check_indices("sites", [site.index for site in sites.sites], self._captures.width)
        self.sites = sites
        self._cache.clear()

    def set_parameters(self, parameters: Sequence[Parameter], groups: Sequence[Group] = ()) -> None:
        """Set the parameter table and the optimizer groups.

        Raises:
            ValueError: indices are not 0, 1, 2 ..., or parameters that have updates are gone.
        """
        indices = [parameter.index for parameter in parameters]
        _check_indices("parameters", indices, self._updates.width)
        self.parameters, self.groups = tuple(parameters), tuple(groups)
        self._cache.clear()

    def append_capture(
        self, step: int, sums: npt.ArrayLike, have: npt.ArrayLike, why: npt.ArrayLike
    ) -> None:
        """Append one capture.

        Shape: `sums` (sites, len(SUMS)), `have` and `why` (sites,).

        Raises:
            ValueError: the shapes disagree, or the site map has fewer sites.
        """
        self._append(self._captures, "sites", len(self.sites.sites), step, sums, have, why)

    def append_updates(self, step: int, sums: npt.ArrayLike, have: npt.ArrayLike) -> None:
        """Append the parameter sums of one optimizer step.

        Shape: `sums` (parameters, len(PARAMETER_SUMS)), `have` (parameters,).

        Raises:
            ValueError: the shapes disagree, or the parameter table is shorter.
        """
        self._append(self._updates, "parameters", len(self.parameters), step, sums, have)

    def append_facts(self, rows: npt.ArrayLike) -> None:
        """Append step facts; NaN where unknown.

        Shape: (steps, len(FACTS) + groups), or one row.

        Raises:
            ValueError: a row is shorter than FACTS.
        """
        facts = np.atleast_2d(np.asarray(rows, dtype=np.float64))
        if facts.shape[1] < len(FACTS):
            raise ValueError(f"step facts have {facts.shape[1]} columns, not {len(FACTS)} or more")
        self._facts.append(facts[:, 0].astype(np.int64), facts)
        self._cache.clear()

    def resume(self, step: int) -> None:
        """Forget what is held of `step` and later ones: training goes on from there."""
        for log in (self._captures, self._updates, self._facts):
            log.drop_from(step)
        self._cache.clear()

    def _append(
        self, log: Rows, what: str, known: int, step: int, sums: npt.ArrayLike, *bits: npt.ArrayLike
    ) -> None:
        numbers = np.asarray(sums, dtype=np.float64)
        masks = [np.asarray(mask, dtype=np.uint8) for mask in bits]
        if numbers.shape[1:] != log.tails[0] or any(m.shape != numbers.shape[:1] for m in masks):
            shapes = [numbers.shape, *(mask.shape for mask in masks)]
            raise ValueError(f"arrays of shapes {shapes} for {log.tails[0]} sums of {what}")
        if len(numbers) > known:
            raise ValueError(f"numbers of {len(numbers)} {what}, but only {known} are declared")
        log.append(np.array([step], np.int64), numbers[None], *(mask[None] for mask in masks))
        self._cache.clear()

    @property
    def capture_steps(self) -> Steps:
        """Step of each capture. Shape: (captures,)."""
        return self._captures.steps()

    @property
    def sums(self) -> Floats:
        """Sums of each site. Shape: (captures, sites, len(SUMS))."""
        return self._captures.array(0, len(self.sites.sites))

    @property
    def have(self) -> Bits:
        """HAVE_FORWARD ... bits of each site. Shape: (captures, sites)."""
        return self._captures.array(1, len(self.sites.sites))

    @property
    def why(self) -> Bits:
        """Position in REASONS of why something is missing. Shape: (captures, sites)."""
        return self._captures.array(2, len(self.sites.sites))

    @property
    def update_steps(self) -> Steps:
        """Step of each row of `updates`. Shape: (rows,)."""
        return self._updates.steps()

    @property
    def updates(self) -> Floats:
        """Sums of each parameter. Shape: (rows, parameters, len(PARAMETER_SUMS))."""
        return self._updates.array(0, len(self.parameters))

    @property
    def update_have(self) -> Bits:
        """HAVE_WEIGHT ... bits of each parameter. Shape: (rows, parameters)."""
        return self._updates.array(1, len(self.parameters))

    @property
    def facts(self) -> Floats:
        """Step facts, then one lr a group. Shape: (steps, len(FACTS) + groups)."""
        return self._facts.array(0, len(FACTS) + len(self.groups))

    def field(self, name: str) -> Floats:
        """One of SUMS as captured, unmasked. Shape: (captures, sites).

        Raises:
            KeyError: no such field.
        """
        values: Floats = self.sums[:, :, _SUM_AT[name]]
        return values

    def fact(self, name: str) -> Floats:
        """One of FACTS. Shape: (steps,).

        Raises:
            KeyError: no such fact.
        """
        values: Floats = self.facts[:, _FACT_AT[name]]
        return values

    def table(self, name: str) -> Table:
        """The measure `name` over time, computed once until something is added.

        Raises:
            ValueError: no measure has this name.
        """
        if not _tables:
            import_module("skipscope.measures")  # tells us, by `register_tables`
        if name not in self._cache:
            self._cache[name] = _tables[0](self, name)
        return self._cache[name]


def check_history(caller: str, name: str, given: object) -> None:
    """Whether what a function was given is a history.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(given, History):
        raise TypeError(
            f"{caller}: {name} must be a History, got {given!r}; give monitor.history, or "
            "History.load(path) of a finished run"
        )


def _check_indices(what: str, indices: Sequence[int], held: int) -> None:
    if list(indices) != list(range(len(indices))):
        raise ValueError(f"{what} must stand in the order of their indices 0, 1, 2 ...: {indices}")
    if len(indices) < held:
        raise ValueError(f"{len(indices)} {what}, but numbers of {held} are held")
