"""What a Trainer is asked, and what it is shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from skipscope.publish import say


def steps_now(trainer: Any) -> bool:
    """Whether the optimizer steps at the end of this batch."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    ready = progress.current.ready  # counts this batch; `batch_idx` is not reliable everywhere
    last = progress.is_last_batch or ready == trainer.num_training_batches
    return bool(last or ready % trainer.accumulate_grad_batches == 0)


def step_axis(trainer: Any) -> int:
    """The counter that Lightning's own loggers use; it differs from `global_step` with GANs."""
    loop = trainer.fit_loop.epoch_loop
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))


def loss_of(outputs: Any, trainer: Any, pl_module: Any) -> tuple[Any, float]:
    """The step's loss, and what to multiply it with: Lightning divides it by the micro-batches."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    if pl_module.automatic_optimization:
        return loss, float(trainer.accumulate_grad_batches)
    # Here it is the user's own tensor, which may be written to before its number is read.
    return (loss.detach().clone() if isinstance(loss, torch.Tensor) else loss), 1.0


def training_step(module: Any, batch: Any) -> Callable[[], Any]:
    """A module's loss on one batch, as its Trainer computes it."""
    plugin = module.trainer.precision_plugin
    moved = module.transfer_batch_to_device(plugin.convert_input(batch), module.device, 0)
    several = len(inspect.signature(module.training_step).parameters) > 1
    arguments = (moved, 0) if several else (moved,)

    def loss() -> Any:
        with plugin.train_step_context():
            output = module.training_step(*arguments)
        return output.get("loss") if isinstance(output, dict) else output

    return loss


@contextmanager
def without_logging(module: Any) -> Iterator[None]:
    """Outside of its loops Lightning refuses what `self.log` is given."""
    names = ("log", "log_dict")
    own = {name: vars(module)[name] for name in names if name in vars(module)}
    for name in names:
        setattr(module, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name in names:
            delattr(module, name)
        for name, value in own.items():
            setattr(module, name, value)


def run_directory(trainer: Any, log_dir: Any, name: str) -> str:
    """A folder of ours where this run's files lie, next to its checkpoints."""
    directory = log_dir or trainer.default_root_dir
    first = trainer.loggers[0] if trainer.loggers else None
    if first is not None and getattr(first, "log_dir", None) is None:
        # Its folder is that of all its runs; checkpoints go to a place of the run's own too.
        version = first.version if isinstance(first.version, str) else f"version_{first.version}"
        directory = Path(directory, str(first.name), version)
    return str(Path(directory, name))


def plain_optimizer(optimizer: Any) -> Any:
    """The torch optimizer inside Lightning's wrapper."""
    wrapped = type(optimizer).__name__.startswith("Lightning")
    return getattr(optimizer, "optimizer", optimizer) if wrapped else optimizer


def show(trainer: Any, text: str) -> None:
    """Prints without tearing the progress bar, where there is one."""
    bar = trainer.progress_bar_callback
    known = bar is not None and "TQDMProgressBar" in [kind.__name__ for kind in type(bar).__mro__]
    if bar is None or known or not bar.is_enabled:
        # The bar's own `print` is silent while no bar is open; this one clears any that is.
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        with tqdm.external_write_mode():
            say(text)
    else:
        bar.print(text)
