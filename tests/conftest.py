"""What every test starts from: one thread, one seed, no network."""

from __future__ import annotations

import os

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
