"""What is loaded, and when: proven in fresh processes, and that the probe can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "pytorch_lightning", "lightning", "tensorboard", "matplotlib", "rich")


def loaded_by(code: str) -> set[str]:
    """The heavy packages that a fresh process has loaded after running some code."""
    probe = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_probe_can_fail() -> None:
    assert "torch" in loaded_by("import torch")


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import skipscope", set()),
        ("import skipscope; skipscope.History; skipscope.depth_multiplier(0.8, 20)", set()),
        ("import skipscope.cli; skipscope.cli.main(['explain', 'RES101'])", {"rich"}),
        ("import skipscope; skipscope.compare; skipscope.extrapolate", {"rich"}),
        ("import skipscope; skipscope.find_residuals", {"torch"}),
        ("import skipscope; skipscope.Monitor", {"torch"}),
    ],
)
def test_nothing_heavier_than_needed(code: str, allowed: set[str]) -> None:
    assert loaded_by(code) <= allowed


def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    from skipscope.history import HistoryWriter
    from tests.offline.builders import make_history

    history = make_history([[0.5, 0.4, 0.3]])
    writer = HistoryWriter(tmp_path, "run")
    writer.set_run(history.run)
    writer.set_sites(history.sites)
    writer.append_capture(0, history.sums[0], history.have[0], history.why[0])
    writer.close()
    code = f"from skipscope.cli import main\nassert main(['report', {str(tmp_path)!r}]) == 0"
    assert loaded_by(code) <= {"rich"}


def test_public_names() -> None:
    import skipscope

    for name in skipscope.__all__:
        assert getattr(skipscope, name) is not None
    assert skipscope.depth_multiplier(0.98, 20) == pytest.approx(0.668, abs=5e-4)
    assert isinstance(skipscope.__version__, str)
    with pytest.raises(AttributeError, match="no attribute 'residuals'"):
        skipscope.residuals  # noqa: B018


def test_the_package_runs_as_a_module() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "skipscope", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("explain", "RES101").stdout.startswith("RES101")
    unknown = run("explain", "NONE")
    assert (unknown.returncode, unknown.stdout) == (2, "")
