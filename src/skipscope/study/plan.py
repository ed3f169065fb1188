"""What every training of a study is given; it can be sent to another process."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from skipscope.evidence.store import StudyError
from skipscope.find import find_residuals
from skipscope.intervention import Intervention, intervene
from skipscope.intervention.arm import Projections
from skipscope.names import a_kind
from skipscope.records import Site
from skipscope.study.arms import Arm, Factory
from skipscope.study.data import Data

Loss = Callable[[Any, Tensor], Tensor]  #: (outputs, targets) -> mean loss
Wrong = Callable[[Any, Tensor], Tensor]  #: (outputs, targets) -> of each target, whether missed
MakeOptimizer = Callable[[list[nn.Parameter], float], Optimizer]  #: (parameters, lr)

#: Added to the seed for what a training draws (dropout), so that starts may draw as they like.
TRAINING = 1_000_003


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Over classes on the last axis where all others are the targets'; else PyTorch's layout."""
    if outputs.shape[:-1] == targets.shape:
        return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))
    return F.cross_entropy(outputs, targets)


def misclassified(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the likeliest class is not the target's; true of outputs that are not finite."""
    axis = -1 if outputs.shape[:-1] == targets.shape else 1
    return (outputs.argmax(axis) != targets) | ~torch.isfinite(outputs).all(axis)


def sgd(parameters: list[nn.Parameter], lr: float) -> Optimizer:
    """SGD with momentum 0.9, without weight decay."""
    # Fused, a step over the two hundred tensors of a deep net takes half the time.
    return torch.optim.SGD(
        parameters, lr=lr, momentum=0.9, fused=parameters[0].device.type == "cpu"
    )


@dataclass(frozen=True)
class Plan:
    """What every training is given."""

    factory: Factory | nn.Module
    arms: tuple[Arm, ...]
    data: Data
    loss_fn: Loss
    wrong: Wrong
    optimizer: MakeOptimizer
    steps: int
    batch_size: int
    projections: Projections
    device: str

    def arm(self, name: str) -> Arm:
        """The arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def build(self, arm: Arm, depth: int, seed: int) -> tuple[nn.Module, str]:
        """The arm's model from a seed, and a hash of its weights before the arm's start."""
        factory = arm.factory or self.factory
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - what a user's factory may draw from
        with named(f"factory: at depth {depth}"):
            model = copy.deepcopy(factory) if isinstance(factory, nn.Module) else factory(depth)
            if not isinstance(model, nn.Module):
                raise StudyError(f"factory: made {a_kind(model)}, not an nn.Module")
            model.to(self.device)
            weights = fingerprint(model)
        if arm.start is not None:
            with named(f"arm {arm.name!r}: its start"):
                arm.start(model, self.example())
        torch.manual_seed(seed + TRAINING)
        return model, weights

    def intervened(self, arm: Arm, model: nn.Module) -> AbstractContextManager[Intervention]:
        """The arm's own sum at all sites of its model, while the context is open."""
        return intervene(
            model,
            shortcut=arm.shortcut,
            branch_scale=arm.branch_scale,
            projections=self.projections,
        )

    def example(self, samples: int = 8) -> Tensor:
        """The first inputs."""
        return self.data.x_train[:samples].to(self.device)

    def sites(self, model: nn.Module) -> list[Site]:
        """The block-level sites of a model, in the order in which they run.

        Raises:
            StudyError: there are none, or the model cannot take the inputs.
        """
        example = self.example()
        try:
            found = find_residuals(model, example)
        except ValueError as error:
            raise StudyError(
                refused(model, "x_train", example, error.__cause__ or error)
            ) from error
        sites = [site for site in found.sites if not site.nested]
        if not sites:
            unseen = "; ".join(f"{one.where or 'model'}: {one.reason}" for one in found.unseen[:3])
            raise StudyError(
                f"Study: {type(model).__name__} has no residual addition that could be left out"
                + (f" ({unseen})" if unseen else "")
            )
        return sites


def refused(model: nn.Module, name: str, x: Tensor, error: BaseException) -> str:
    """That a model cannot take its inputs, in words."""
    shape = " x ".join(map(str, x.shape))
    return (
        f"data: {type(model).__name__} failed on {name} ({str(x.dtype)[6:]}, {shape}): "
        f"{type(error).__name__}: {error}; give inputs of the type and shape that it takes"
    )


@contextmanager
def named(what: str, remedy: str = "") -> Iterator[None]:
    """An error of what a study was given begins with the argument, and ends with what to do.

    Raises:
        StudyError: there was one.
    """
    try:
        yield
    except StudyError:
        raise
    except Exception as error:
        raise StudyError(f"{what}: {type(error).__name__}: {error}{remedy}") from error


def fingerprint(model: nn.Module) -> str:
    """Of a model's parameters and buffers, 12 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
            values = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


@contextmanager
def own_random_state() -> Iterator[None]:
    """What is drawn inside changes nothing outside."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)  # noqa: NPY002


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: small nets gain nothing from more, and sums keep their order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
