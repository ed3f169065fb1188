"""One step of the shallowest nets before a study begins: what would fail after hours fails here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skipscope.evidence.store import StudyError
from skipscope.names import a_kind
from skipscope.study.arms import Arm
from skipscope.study.data import CHUNK, Batches
from skipscope.study.plan import Plan, named, one_thread, own_random_state, refused


def rehearse(plan: Plan, depths: Sequence[int], seed: int, lr: float) -> None:
    """Builds, evaluates and trains for one step what each factory makes, and throws it away.

    Raises:
        StudyError: the model, the loss, the error or the optimizer does not do what a study needs;
            the first word is the argument that it is about.
    """
    seen: list[Any] = []
    with own_random_state(), one_thread():
        for arm in plan.arms:
            factory, own = arm.factory or plan.factory, arm.at(depths)
            if own and not any(factory is other for other in seen):
                seen.append(factory)
                _follows_depth_and_seed(plan, arm, own, seed)
                model, _ = plan.build(arm, own[0], seed)
                _evaluated(plan, model)
                _stepped(plan, model, seed, lr)


# ------------------------------------------------------------------------ the factory
def _follows_depth_and_seed(plan: Plan, arm: Arm, depths: Sequence[int], seed: int) -> None:
    """A factory makes a new net each time, the same from one seed, another at another depth."""
    model, weights = plan.build(arm, depths[0], seed)
    again, same = plan.build(arm, depths[0], seed)
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    if any(id(tensor) in own for tensor in (*again.parameters(), *again.buffers())):
        raise StudyError(
            "factory: gives out the same weights each time, which one training would leave to the "
            "next: make a new model in each call, or give the model itself"
        )
    if weights != same:
        raise StudyError(
            "factory: makes other weights each time from one seed, so the arms would not start "
            "equal: draw from torch, numpy.random or random, which the study seeds"
        )
    first = {weights: depths[0]}
    for depth in depths[1:]:
        other = first.setdefault(plan.build(arm, depth, seed)[1], depth)
        # Blocks that share their weights make nets of any depth from the same ones.
        if other != depth and len({_sites(plan, arm, one, seed) for one in (depth, other)}) == 1:
            raise StudyError(
                f"factory: makes the same net at depth {other} and at depth {depth}; it must "
                "follow its argument, or depths leave one out"
            )


def _sites(plan: Plan, arm: Arm, depth: int, seed: int) -> int:
    return len(plan.sites(plan.build(arm, depth, seed)[0]))


# ------------------------------------------------------------------------ evaluation
def _evaluated(plan: Plan, model: nn.Module) -> None:
    """All samples once, as after each training."""
    model.eval()
    data = plan.data.to(plan.device)
    for part in ("train", "validation"):
        x, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
        for inputs, targets in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
            with torch.no_grad():
                outputs = _outputs(model, inputs, f"x_{part}")
                _loss(plan, outputs, targets, f"y_{part}")
                _missed(plan, outputs, targets, f"y_{part}")


def _outputs(model: nn.Module, inputs: Tensor, name: str) -> Any:
    try:
        return model(inputs)
    except Exception as error:
        raise StudyError(refused(model, name, inputs, error)) from error


def _loss(plan: Plan, outputs: Any, targets: Tensor, name: str) -> Tensor:
    what = f"loss_fn: cannot take {_kind(outputs)} as outputs with {name} ({_kind(targets)})"
    with named(what, _taken_otherwise(outputs)):
        loss: Any = plan.loss_fn(outputs, targets)  # of the user's own, so whatever it is
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise StudyError(f"loss_fn: gives {_kind(loss)}, and a mean loss is a tensor of one number")
    return loss


def _missed(plan: Plan, outputs: Any, targets: Tensor, name: str) -> None:
    what = f"wrong: cannot take {_kind(outputs)} as outputs with {name} ({_kind(targets)})"
    with named(what, _taken_otherwise(outputs)):
        missed: Any = plan.wrong(outputs, targets)
    fits = isinstance(missed, Tensor) and missed.shape[:1] == targets.shape[:1]
    if not fits or not bool(((missed == 0) | (missed == 1)).all()):
        raise StudyError(
            f"wrong: gives {_kind(missed)}, and is to give for each target whether it was missed: "
            "wrong=lambda outputs, targets: outputs.argmax(-1) != targets"
        )


def _taken_otherwise(outputs: Any) -> str:
    """What to do about outputs that are no tensor, as models of `transformers` give them."""
    if isinstance(outputs, Tensor):
        return ""
    if hasattr(outputs, "logits"):
        return (
            "; give a loss_fn and a wrong that read outputs.logits, or a factory whose model "
            "returns these alone"
        )
    return "; give a loss_fn and a wrong that take it, or a factory whose model returns a tensor"


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return a_kind(value)
    return f"{str(value.dtype)[6:]} {' x '.join(map(str, value.shape)) or 'scalar'}"


# ------------------------------------------------------------------------ one step
def _stepped(plan: Plan, model: nn.Module, seed: int, lr: float) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise StudyError("factory: no parameter of the model trains; requires_grad is False in all")
    with named("optimizer"):
        optimizer = plan.optimizer(trained, lr)
    if not isinstance(optimizer, Optimizer):
        raise StudyError(f"optimizer: made {a_kind(optimizer)}, not an Optimizer")
    data = plan.data.to(plan.device)
    samples = Batches(len(data.x_train), plan.batch_size, 1, seed).order[0]
    outputs = _outputs(model.train(), data.x_train[samples], "x_train")
    loss = _loss(plan, outputs, data.y_train[samples], "y_train")
    if not loss.requires_grad:
        raise StudyError("loss_fn: its loss has no gradient; compute it from the outputs in torch")
    with named("loss_fn: its backward"):
        loss.backward()
    with named(f"optimizer: step() of {type(optimizer).__name__}, which is called without closure"):
        optimizer.step()
