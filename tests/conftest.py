"""What every test starts from: one thread, one seed, no network."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import random

import numpy as np
import pytest
import torch

# The workers of pytest-xdist share the cores; one thread each keeps sums reproducible too.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same random numbers, alone or among others."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  the generator that third parties use
    torch.manual_seed(0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file of `tests/ranks` runs in one worker: its processes start once, for all of its tests.

    The mark `xdist_group` says the same, and pytest-xdist 3.8 does not see it under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0] if nodeid.startswith("tests/ranks/") else nodeid

    return ByFile(config, log) if config.getvalue("dist") == "load" else None
