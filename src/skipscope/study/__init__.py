"""The controlled study: does depth cost this net, and do its shortcuts repay it?

`Study` trains a model and its own plain control; `run_named` the studies that come along. What
they come to is judged by `skipscope.evidence`, without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from skipscope.evidence.outcome import ArmFacts, Evidence
from skipscope.evidence.store import StudyError
from skipscope.study.arms import Arm, scaled
from skipscope.study.data import Data
from skipscope.study.named import NAMED
from skipscope.study.study import Study

__all__ = ["Arm", "ArmFacts", "Data", "Study", "StudyError", "run_named", "scaled"]


def run_named(
    name: str,
    folder: Path,
    *,
    jobs: int = 1,
    seeds: int | Sequence[int] | None = None,
    smoke: bool = False,
) -> Evidence:
    """Runs one of the studies that come along, or goes on with it, as the command line does.

    Raises:
        StudyError: it needs a package that is not there, or a training failed.
        StoreError: the folder holds another study.
    """
    return NAMED[name](seeds=seeds, smoke=smoke).run(folder, jobs=jobs)
