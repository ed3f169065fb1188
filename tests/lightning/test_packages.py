"""Both Lightning packages, YAML; copies of the callback."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import lightning.pytorch as lp
import pytest
import pytorch_lightning as pl
from lightning.pytorch.cli import LightningCLI as OtherCLI
from pytorch_lightning.cli import LightningCLI

import skipscope
from skipscope import ResidualMonitor
from tests.lightning import parts


def test_it_is_a_callback_of_both() -> None:
    assert issubclass(ResidualMonitor, pl.Callback)
    assert issubclass(ResidualMonitor, lp.Callback)


YAML = """
trainer:
  max_epochs: 1
  accelerator: cpu
  logger: false
  callbacks:
    - class_path: skipscope.ResidualMonitor
      init_args:
        every_n_steps: 5
        preset: debug
        sites: [body.blocks]
        thresholds: {RES101: {high: 4.0}}
        report: [markdown]
        updates: parameters
        name: mine
model:
  body: gpt
  optimizer: adamw
"""


@pytest.mark.filterwarnings("ignore:.*LightningCLI's args parameter.*")
@pytest.mark.parametrize(("cli", "net"), [(LightningCLI, parts.Net), (OtherCLI, parts.OtherNet)])
def test_yaml_of_the_command_line_interface(tmp_path: Path, cli: Any, net: Any) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(YAML.replace("high", _a_threshold("RES101")))
    made = cli(
        net,
        run=False,
        seed_everything_default=False,
        args=[f"--config={path}"],
        save_config_callback=None,
    )
    (callback,) = [c for c in made.trainer.callbacks if isinstance(c, ResidualMonitor)]
    options = callback.options
    assert (options.every_n_steps, options.preset, options.name) == (5, "debug", "mine")
    assert (list(options.sites), list(options.report)) == (["body.blocks"], ["markdown"])
    assert options.thresholds == {"RES101": {_a_threshold("RES101"): 4.0}}


@pytest.mark.filterwarnings("ignore:.*LightningCLI's args parameter.*")
@pytest.mark.parametrize(
    ("argument", "value"), [("every_n_steps", "often"), ("preset", "all"), ("report", "[html5]")]
)
def test_yaml_with_a_wrong_value(
    tmp_path: Path, argument: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "trainer: {callbacks: [{class_path: skipscope.ResidualMonitor, "
        f"init_args: {{{argument}: {value}}}}}]}}"
    )
    with pytest.raises(SystemExit):
        LightningCLI(parts.Net, run=False, args=[f"--config={path}"], save_config_callback=None)
    assert argument in capsys.readouterr().err


def _a_threshold(code: str) -> str:
    from skipscope.rules import RULES

    return next(iter(RULES[code].thresholds))


def test_the_callback_can_be_copied_after_fit(tmp_path: Path) -> None:
    net = parts.Net()
    fresh = len(pickle.dumps(ResidualMonitor()))
    callback = ResidualMonitor(report=[], on_error="raise", select=["RES901"])
    trainer = parts.trainer(tmp_path, callback)
    trainer.fit(net, parts.loader())
    for twin in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert twin.options == callback.options
        assert twin.state_key == callback.state_key
        parts.trainer(tmp_path, twin).fit(parts.Net(), parts.loader(batches=2))
        assert len(twin.history.capture_steps) == 2
    assert len(pickle.dumps(callback)) < fresh + 200
    assert len(callback.history.capture_steps) == 5


def test_nothing_recorded_yet() -> None:
    with pytest.raises(RuntimeError, match=r"call trainer\.fit first"):
        ResidualMonitor().report()
    assert not ResidualMonitor().state_dict()


def test_importing_the_package_imports_neither_torch_nor_lightning() -> None:
    import subprocess
    import sys

    code = "import skipscope, sys; print([m for m in ('torch', 'lightning') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert skipscope.__version__
