"""Both Lightning packages, in a list and bare, from YAML; copies of callback and model."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import lightning.pytorch as lp
import pytest
import pytorch_lightning as pl
import torch
from lightning.pytorch.cli import LightningCLI as OtherCLI
from pytorch_lightning.cli import LightningCLI

import skipscope
from skipscope import ResidualMonitor
from tests.lightning import parts


@pytest.mark.parametrize("package", parts.NAMESPACES)
@pytest.mark.parametrize("bare", [False, True])
def test_either_trainer_takes_it(tmp_path: Path, package: str, bare: bool) -> None:
    callback = ResidualMonitor(report=["markdown"], on_error="raise")
    callbacks: Any = callback if bare else [callback]
    trainer = parts.trainer(tmp_path, package=package, callbacks=callbacks)
    trainer.fit(parts.NETS[package](), parts.loader())
    assert callback.history.capture_steps.tolist() == [0, 1, 2, 4, 8]
    assert [site.module for site in callback.history.sites.sites] == [
        f"body.blocks.{block}" for block in range(3)
    ]
    assert "3 sites" in (tmp_path / "skipscope" / "report.md").read_text()
    assert "3 sites" in callback.report("markdown")


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


def test_callback_and_model_can_be_copied_after_fit(tmp_path: Path) -> None:
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

    inputs = parts.samples("cnn", 2)[0]
    expected = net.eval()(inputs)
    for model in (copy.deepcopy(net.body), pickle.loads(pickle.dumps(net.body))):
        assert torch.equal(model(inputs), expected)
    assert torch.equal(torch.jit.script(net.body)(inputs), expected)
    assert torch.equal(torch.jit.trace(net.body, inputs)(inputs), expected)


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
