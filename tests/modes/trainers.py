"""Rows: the Trainer's packages, settings, stages and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pytorch_lightning.cli import LightningCLI
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from skipscope import History, ResidualMonitor
from skipscope.options import Options
from tests.lightning import parts
from tests.modes.mode import Mode
from tests.modes.nets import Net, OtherNet

GROUP = "Lightning"
_row = partial(Mode, group=GROUP)
NOT_TRAINED = "nothing is trained"


def set_to(**settings: Any) -> Callable[[], dict[str, Any]]:
    return lambda: dict(settings)


def ten(kind: str) -> Any:
    return parts.loader(kind, 10)


def in_order(kind: str) -> Any:
    return parts.loader(kind, 10, shuffle=False)


def endless(kind: str) -> Any:
    """A stream whose length nobody knows."""
    return parts.DataLoader(parts.Stream(6, kind), batch_size=None)


def with_validation(trainer: Any, module: Any, data: Any, root: Path) -> None:
    trainer.fit(module, data, parts.loader(module.kind, 2, shuffle=False))


def only(stage: str) -> Callable[[Any, Any, Any, Path], None]:
    def run(trainer: Any, module: Any, data: Any, root: Path) -> None:
        settings = {"verbose": False} if stage != "predict" else {}
        getattr(trainer, stage)(module, parts.loader(module.kind, 2, shuffle=False), **settings)

    return run


def through_the_cli(trainer: Any, module: Any, data: Any, root: Path) -> Any:
    """The monitor comes from YAML, the other callbacks as the CLI's defaults."""
    ours = [c for c in trainer.callbacks if isinstance(c, ResidualMonitor)]
    given = [
        {
            "class_path": "skipscope.ResidualMonitor",
            "init_args": {
                field.name: value
                for field in fields(Options)
                if (value := getattr(callback.options, field.name)) is not None
            },
        }
        for callback in ours
    ]
    settings = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "max_epochs": 1,
        "default_root_dir": str(root),
        "callbacks": given,
    }
    config = root / "config.yaml"
    config.write_text(yaml.safe_dump({"trainer": settings, "model": {"kind": module.kind}}))
    kept = [c for c in trainer.callbacks if type(c).__module__.startswith("tests.")]
    cli = LightningCLI(
        Net,
        run=False,
        seed_everything_default=False,
        args=[f"--config={config}"],
        save_config_callback=None,
        trainer_defaults={"callbacks": kept},
    )
    if "on_train_batch_start" in vars(module):  # of a row's bad end
        cli.model.on_train_batch_start = module.on_train_batch_start
    cli.trainer.fit(cli.model, data)
    return cli.trainer


def resumed(trainer: Any, module: Any, data: Any, root: Path) -> None:
    """An epoch of three steps with one Trainer, another with the next."""
    ours = [c for c in trainer.callbacks if isinstance(c, ResidualMonitor)]
    first = [ResidualMonitor(**_settings(c.options)) for c in ours]
    before = parts.trainer(root, *first)
    before.fit(type(module)(module.kind), data)
    before.save_checkpoint(root / "saved.ckpt")
    trainer.fit(module, data, ckpt_path=root / "saved.ckpt")
    for _ in ours:
        history = History.load(root / "skipscope")
        assert history.fact("step").tolist() == list(range(len(history.facts)))
        assert history.capture_steps.tolist() == sorted(set(history.capture_steps.tolist()))
        assert len(list((root / "skipscope").glob("history-*.skip"))) == 1


def _settings(options: Options) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in fields(Options)}


def second() -> list[Any]:
    return [ResidualMonitor(name="second", preset="debug", report=[], on_error="raise")]


STAGE = {
    "off": NOT_TRAINED,
    "steps": 0,
    "exact": "nothing is attached or written",
    "checks": ("bits", "endings", "copies"),
}
MODES = [
    _row("pytorch_lightning, bare callback", bare=True),
    _row("lightning.pytorch, in a list", slow=True, module=OtherNet),
    _row("lightning.pytorch, bare callback", module=OtherNet, bare=True),
    _row(
        "LightningCLI",
        fit=through_the_cli,
        checks=("bits", "numbers", "growth", "copies", "exports"),
        note="the callback and its settings come from YAML",
    ),
    _row("fast_dev_run", trainer=set_to(fast_dev_run=6), note="no file is written"),
    _row(
        "barebones",
        exact="nothing is attached",
        trainer=set_to(
            barebones=True,
            enable_checkpointing=None,
            logger=None,
            enable_progress_bar=None,
            enable_model_summary=None,
        ),
        off="it asks for no overhead at all",
        checks=("bits", "endings", "growth", "copies"),
    ),
    _row("logger=True", trainer=set_to(logger=TensorBoardLogger)),
    _row(
        "several loggers",
        slow=True,
        trainer=set_to(logger=lambda root: [TensorBoardLogger(root), CSVLogger(root)]),
    ),
    _row("sanity check", trainer=set_to(num_sanity_val_steps=2), fit=with_validation),
    _row("validation inside an epoch", trainer=set_to(val_check_interval=2), fit=with_validation),
    _row("limit_train_batches", slow=True, trainer=set_to(limit_train_batches=6), data=ten),
    _row("overfit_batches", trainer=set_to(overfit_batches=6), data=in_order),
    _row("IterableDataset", data=endless),
    _row("max_steps", trainer=set_to(max_steps=6), data=ten),
    _row("max_time", slow=True, trainer=set_to(max_time="00:01:00:00")),
    _row("validate only", fit=only("validate"), **STAGE),
    _row("test only", fit=only("test"), **STAGE),
    _row("predict only", fit=only("predict"), **STAGE),
    _row(
        "resume from a checkpoint",
        fit=resumed,
        trainer=set_to(max_epochs=2),
        data=lambda kind: parts.loader(kind, 3),
        start=3,
        looked=(3, 4),
        note="in the old file, without gap or double",
    ),
    _row("two monitors at once", beside=second),
]
