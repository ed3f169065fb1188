"""Nothing is attached on a step in neither schedule, and nothing is left, however a fit ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytorch_lightning as pl
import torch

from skipscope import ResidualMonitor
from tests.lightning import parts


class Watching(parts.Net):
    """Counts what is attached inside `training_step`, tensors of its own forward included."""

    def __init__(self, body: str = "cnn", **settings: Any) -> None:
        super().__init__(body, **settings)
        self.counts: list[dict[str, Any]] = []
        self.fail_at: int | None = None
        self.error: type[BaseException] = RuntimeError
        self.skip_at: int | None = None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == self.skip_at else None

    def training_step(self, batch: parts.Batch, batch_idx: int) -> torch.Tensor | None:
        tensors: list[torch.Tensor] = []
        handle = self.body.blocks[1].register_forward_hook(lambda m, a, out: tensors.append(out))
        loss = super().training_step(batch, batch_idx)
        handle.remove()
        self.counts.append(parts.attached(self, self.trainer.optimizers, tensors))
        if len(self.losses) - 1 == self.fail_at:
            raise self.error("planned")
        return loss


def _fit(root: Path, net: parts.Net, callback: ResidualMonitor, **settings: Any) -> Any:
    trainer = parts.trainer(root, callback, **settings)
    trainer.fit(net, parts.loader())
    return trainer


def test_only_scheduled_steps_have_anything_attached(tmp_path: Path) -> None:
    """Updates are measured in the first 50 steps; after these, on captures only."""
    net, bare = Watching(), parts.attached(Watching())
    callback = ResidualMonitor(every_n_steps=1000, report=[], on_error="raise")
    _fit(tmp_path, net, callback, max_epochs=7)
    assert len(net.counts) == 70
    captured = set(callback.history.capture_steps.tolist())
    updated = set(callback.history.update_steps.tolist())
    assert captured >= {0, 1, 2, 4, 8, 16, 32}
    assert updated == captured | set(range(50))
    for step, count in enumerate(net.counts):
        assert count["function modes"] == (step in captured), step
        assert (count["stance"][0] == "force_eager") == (step in captured), step
        assert count["optimizer hooks"] == 2 * (step in updated), step
        if step not in updated:
            assert count == bare, step
        assert (count["global module hooks"] > 0) == (step in captured)
        assert not count["module hooks"]
        assert not count["tensor hooks"]
        assert not count["global optimizer hooks"]


def test_a_step_in_neither_schedule_runs_no_tensor_operation(tmp_path: Path) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class Counting(ResidualMonitor):
        operations: ClassVar[list[list[str]]] = []

        def on_train_batch_start(self, *args: Any) -> None:
            with Count() as count:
                super().on_train_batch_start(*args)
            self.operations.append(count.seen)

        def on_train_batch_end(self, *args: Any) -> None:
            with Count() as count:
                super().on_train_batch_end(*args)
            self.operations[-1].extend(count.seen)

    callback = Counting(every_n_steps=1000, report=[], on_error="raise")
    _fit(tmp_path, parts.Net(), callback, max_epochs=7)
    scheduled = set(callback.history.update_steps.tolist())
    quiet = [step for step in range(70) if step not in scheduled]
    assert len(quiet) > 10
    assert [callback.operations[step] for step in quiet] == [[]] * len(quiet)
    assert all(callback.operations[step] for step in callback.history.capture_steps)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_was_recorded_before_an_error_stays(tmp_path: Path, error: Any) -> None:
    """In memory and on disk; the step that failed is no step."""
    net = Watching()
    net.fail_at, net.error = 8, error
    callback = ResidualMonitor(report=["json"], on_error="raise")
    ending = {RuntimeError: RuntimeError, KeyboardInterrupt: SystemExit}[error]
    trainer = parts.trainer(tmp_path, callback)
    with pytest.raises(ending):
        trainer.fit(net, parts.loader())
    assert net.counts[-1]["function modes"] == 1
    steps = list(range(8))
    assert callback.history.fact("step").tolist() == steps
    from skipscope import History

    assert History.load(tmp_path / "skipscope").fact("step").tolist() == steps


@pytest.mark.parametrize("skip_at", [0, 2, 4, 8])
def test_a_skipped_epoch_leaves_nothing(tmp_path: Path, skip_at: int) -> None:
    """`on_train_batch_start` returning -1: the batch has a start and no end."""

    class After(pl.Callback):
        counts: ClassVar[list[dict[str, Any]]] = []

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            count = parts.attached(pl_module, trainer.optimizers)
            self.counts.append({**count, "grad enabled": True})  # off while validating

        on_train_epoch_end = on_validation_start

    net = Watching()
    before = parts.attached(net)
    net.skip_at = skip_at
    callback = ResidualMonitor(report=["console"], on_error="raise")
    shown: list[str] = []
    trainer = parts.trainer(tmp_path, callback, After(), max_epochs=3)
    import skipscope.lightning.callback as ours

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "show", lambda trainer, text: shown.append(text))
        trainer.fit(net, parts.loader(), parts.loader(batches=2, shuffle=False))
    assert After.counts
    assert all(count == before for count in After.counts)
    After.counts.clear()
    assert parts.attached(net, trainer.optimizers) == before
    assert callback.monitor is not None
    assert len(net.losses) == 3 * skip_at
    assert len(shown) == (3 if skip_at else 0)  # an epoch without steps has no report
    if skip_at:
        facts = callback.history
        assert facts.fact("step").tolist() == list(range(3 * skip_at))
        assert facts.fact("epoch").tolist() == sorted([0, 1, 2] * skip_at)
