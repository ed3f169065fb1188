"""A study's folder: begun, gone on with, or grown by seeds and depths; another study is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skipscope.evidence.outcome import Cell
from skipscope.evidence.store import CELLS, OUTCOME, STUDY, StoreError, load_plan
from skipscope.history import HistoryInUseError
from skipscope.history.appending import Appending
from skipscope.names import a_kind, counted
from skipscope.study.differing import differences
from skipscope.study.plan import Plan
from skipscope.study.protocol import configuration

LOCK = ".running"  #: a file that is locked while a process runs the study

#: What more seeds and depths change in a study's configuration, and nothing else does.
GROWS = ("cells", "depths", "seeds")


class Held:
    """A folder that one process writes to; made where it is not there.

    Raises:
        TypeError: it is no path.
        StoreError: another process has it, or it cannot be written to.
    """

    def __init__(self, folder: Any) -> None:
        try:
            self.path = Path(folder)
        except TypeError:
            raise TypeError(f"folder must be a path, got {a_kind(folder)}") from None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._file = Appending(self.path / LOCK)
        except HistoryInUseError:
            raise StoreError(f"{folder}: another process runs this study") from None
        except (OSError, ValueError) as error:  # the second: a name that no system takes
            raise StoreError(f"folder: {self._why_not(error)}; give one to write to") from error

    def _why_not(self, error: Exception) -> str:
        if isinstance(error, FileExistsError):
            return f"{self.path} is a file"
        return f"{str(self.path)!r}: {getattr(error, 'strerror', None) or error}"

    def close(self) -> None:
        """Gives it free."""
        self._file.close()


def is_as_written(
    folder: Path, plan: Plan, cells: Sequence[Cell], settings: dict[str, str], lr: float
) -> bool:
    """Whether a folder is of this very study; False where it is new, or is to grow.

    It grows where the study has more seeds or depths than the one that is written there, and all
    else is the same: then what was trained stays, and is no other for the new neighbours.

    Args:
        folder: of the study.
        plan: what every training is given.
        cells: those that there are to be.
        settings: the study's `configuration`.
        lr: learning rate of the comparison.

    Raises:
        StoreError: it is of another study.
    """
    if not (folder / STUDY).exists():
        if any(folder.glob(f"{CELLS}/*/{OUTCOME}")):
            raise StoreError(
                f"{folder} holds trainings but no {STUDY} that says of which study: give "
                "another folder, or remove this one"
            )
        return False
    there = load_plan(folder)
    found = there.configuration
    if found == settings:
        return True
    wanted = _told_alike(plan, there.cells, settings, lr)
    left = [cell.key for cell in there.cells if cell not in cells]
    differing = {key for key in (*found, *wanted) if found.get(key) != wanted.get(key)}
    if not left and differing <= set(GROWS):
        return False
    says = f"; it leaves out {counted(len(left), 'training')} of it, as {left[0]}" if left else ""
    raise StoreError(
        f"{folder} holds another study ({differences(found, wanted)}{says}): give another folder, "
        "or remove this one. More seeds and depths are taken up where all else is the same (a grid "
        "of learning rates stays at its depth by grid_depth)"
    )


def _told_alike(
    plan: Plan, there: Sequence[Cell], settings: dict[str, str], lr: float
) -> dict[str, str]:
    """A study's configuration, as it would be told with the trainings that are there.

    Some texts are of the first seed and the smallest depth alone: with other seeds and depths they
    are others, and the study is the same.
    """
    names = {arm.name for arm in plan.arms}
    cells = [cell for cell in there if cell.arm in names]
    if not cells:
        return settings
    sizes = {key: settings[key] for key in (*GROWS, "learning rates")}
    return {**configuration(plan, cells, cells[0].seed, lr), **sizes}
