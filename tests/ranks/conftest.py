"""What the ranks of a file's `CALLS` came to, and the same training by one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipscope import History
from tests.ranks import nets
from tests.ranks.launch import Results, launch


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each call has a folder of its name."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(root: Path, request: pytest.FixtureRequest) -> dict[str, Results]:
    """Of each of the file's `CALLS`, what its ranks returned."""
    return launch(root, request.module.CALLS)


@pytest.fixture(scope="module")
def union() -> History:
    """The same training by one process, over the union batches."""
    net = nets.make()
    optimizer = nets.optimizer_of(net)
    monitor = nets.monitor_of(net, optimizer, None, report=[])
    nets.train(net, optimizer, monitor, nets.batches())
    monitor.flush()
    return monitor.history
