"""What a study cannot do with: the error names the argument, before anything trains."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skipscope.evidence.outcome import Evidence
from skipscope.study import Study, StudyError, scaled
from tests.study.nets import WIDTH, Block, data, net, normed, study

X, Y, X_VAL, Y_VAL = data()
PLAIN, RESIDUAL, IDLE = study()._plan.arms


# ------------------------------------------------------------------------ numbers and names
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"steps": 3.0}, "steps must be 1 or more, a whole number, got 3.0"),
        ({"batch_size": "8"}, "batch_size must be 1 or more, a whole number, got '8'"),
        ({"depths": 2}, r"depths must be .* got 2"),
        ({"depths": ("1", "2")}, r"depths must be .* got \('1', '2'\)"),
        ({"depths": (1.5,)}, r"depths must be .* got \(1.5,\)"),
        ({"seeds": 2.0}, r"seeds must be .* got 2.0"),
        ({"seeds": "3"}, r"seeds must be .* got '3'"),
        ({"seeds": 12345}, r"seeds: 12345 are too many; for this one seed give \[12345\]"),
        ({"seeds": [2**40]}, "the largest seed is 4294967295"),
        ({"rates": (0.1,), "grid_seeds": [-1]}, r"grid_seeds must be .* got \[-1\]"),
        ({"lr": math.nan}, "lr must be a finite number from 0 on, got nan"),
        ({"lr": -1}, "lr must be a finite number from 0 on, got -1"),
        ({"rates": 0.1}, r"rates must be .* got 0.1"),
        ({"rates": (0.01, -0.1)}, r"rates must be .* got -0.1"),
        ({"rates": (0.010000002,)}, "0.01 and 0.010000002 are the same in six digits"),
        ({"arms": "plain"}, r"arms must be a list .* got 'plain'"),
        ({"arms": ("plain", "residual", None)}, "no arm None"),
        (
            {"arms": ("plain", "residual", replace(scaled(0.5), depths=(7,)))},
            r"arms: 'scaled-0.5' has depths \(7,\), none of which is one of .* \(1, 2\)",
        ),
        (
            {"arms": (replace(PLAIN, shortcut=True), "residual")},
            r"arms: 'plain' has the role 'plain', and keeps its shortcuts: give Arm\(..., shortc",
        ),
        (
            {"arms": (replace(PLAIN, shortcut=True, factory=net), "residual")},
            "'plain' has the role 'plain', and keeps its shortcuts",
        ),
        (
            {"arms": ("plain", replace(RESIDUAL, shortcut=False))},
            r"'residual' has the role 'residual', and leaves out its shortcuts \(shortcut=False\)",
        ),
        (
            {"arms": ("plain", "residual", replace(IDLE, branch_scale=0.5))},
            "'idle' has the role 'idle', and its branches are added times 0.5: give branch_scale=0",
        ),
        (
            {"arms": ("plain", "residual", replace(IDLE, facts=replace(IDLE.facts, role="odd")))},
            "'idle' has the role 'odd', which is none of plain, residual, idle",
        ),
        ({"plain_start": "hee"}, "plain_start must be .* got 'hee'"),
        ({"device": "gpu"}, "device: nothing trains on 'gpu'"),
        ({"device": "meta"}, "device: nothing trains on 'meta'"),
    ],
)
def test_a_value_out_of_range(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        study(**changed)


@pytest.mark.parametrize("argument", ["loss_fn", "wrong", "optimizer"])
def test_what_is_no_function(argument: str) -> None:
    with pytest.raises(TypeError, match=f"{argument} must be a function, got a str"):
        study(**{argument: "mean"})
    with pytest.raises(TypeError, match="factory must be a function, got a str"):
        study("resnet")


def test_a_scale_that_is_no_number() -> None:
    with pytest.raises(ValueError, match="branch_scale must be a finite number, got nan"):
        scaled(math.nan)


def test_numbers_of_numpy_and_a_device_are_taken(tmp_path: Path) -> None:
    made = study(
        depths=np.array([2, 1, 2]), seeds=[np.int64(5)], steps=np.int64(1),
        lr=0.1 * 3, rates=(0.3,), grid_depth=2, device=torch.device("cpu"),
    )  # fmt: skip
    assert [cell.key for cell in made.cells if cell.arm == "plain"] == [
        "plain-d001-s5-lr0.3",
        "plain-d002-s5-lr0.3",  # once: 0.3 is 0.1 * 3 but for rounding
    ]
    assert len(made.run(tmp_path, progress=False).outcomes) == 6


# ------------------------------------------------------------------------ data
@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ((X, ["a"] * 45, X_VAL, Y_VAL), TypeError, "data: y_train is no tensor"),
        (([[1, 2], [1]], Y, X_VAL, Y_VAL), TypeError, "data: x_train is no tensor"),
        ((torch.tensor(1.0), Y, X_VAL, Y_VAL), TypeError, "data: x_train is one number"),
        ((iter([1]), iter([1])), TypeError, "data: a list_iterator is no dataset"),
        ((X[:0], Y[:0], X_VAL, Y_VAL), ValueError, "data: training has 0 inputs"),
        ((X[:1], Y[:2], X_VAL, Y_VAL), ValueError, "training has 1 input and 2 targets"),
        (
            (torch.tensor([[1.0, math.inf]]), Y[:1], X_VAL, Y_VAL),
            ValueError,
            "data: x_train holds 1 number that is not finite",
        ),
        ((X, Y, X_VAL.log(), Y_VAL), ValueError, r"data: x_validation holds \d+ numbers that are"),
        ((X, Y - 1, X_VAL, Y_VAL), ValueError, "wrong: y_train holds class -1"),
    ],
)
def test_data_that_is_none(given: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        Study(net, given)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({0: X.double()}, r"data: Sequential failed on x_train \(float64, 45 x 4\)"),
        ({0: X.long()}, r"data: Sequential failed on x_train \(int64, 45 x 4\)"),
        ({2: X_VAL[:, :3]}, r"data: Sequential failed on x_validation \(float32, 15 x 3\)"),
        ({1: Y + 5}, r"loss_fn: cannot take float32 45 x 3 as outputs with y_train \(int64 45\)"),
        ({3: Y_VAL + 5}, "loss_fn: .* y_validation .*out of bounds"),
        ({1: Y.int()}, r"loss_fn: .* y_train \(int32 45\)"),
        ({1: Y[:, None]}, r"loss_fn: .* y_train \(int64 45 x 1\)"),
    ],
)
def test_data_that_does_not_fit_the_model(
    tmp_path: Path, changed: dict[int, Tensor], told: str
) -> None:
    given = [changed.get(place, part) for place, part in enumerate((X, Y, X_VAL, Y_VAL))]
    with pytest.raises(StudyError, match=told):
        Study(net, given, depths=(1, 2), steps=2).run(tmp_path, progress=False)
    assert not (tmp_path / "cells").exists()


# ------------------------------------------------------------------------ loss, error, optimizer
def _vector(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"loss_fn": _vector}, "loss_fn: gives float32 45, and a mean loss is"),
        ({"loss_fn": lambda out, y: 0.5}, "loss_fn: gives a float"),
        ({"loss_fn": lambda out, y: F.cross_entropy(out, y).detach()}, "loss_fn: its loss has no"),
        ({"wrong": lambda out, y: 0.5}, "wrong: gives a float, and is to give for each target"),
        ({"wrong": lambda out, y: (out.argmax(1) != y).sum()}, "wrong: gives int64 scalar"),
        ({"wrong": lambda out, y: out}, "wrong: gives float32 45 x 3"),
        ({"optimizer": lambda own, lr: None}, "optimizer: made None"),
        ({"optimizer": lambda own, lr: torch.optim.SGD([], lr=lr)}, "optimizer: ValueError"),
        ({"optimizer": torch.optim.LBFGS}, r"optimizer: step\(\) of LBFGS.*closure"),
    ],
)
def test_functions_that_do_something_else(
    tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(StudyError, match=told):
        study(**changed).run(tmp_path, progress=False)
    assert not (tmp_path / "cells").exists()


def _matrices(own: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """An optimizer that looks at what it is given."""
    return torch.optim.SGD([p for p in own if p.dim() == 2], lr=lr, weight_decay=0.1)


def test_an_optimizer_that_chooses_its_parameters(tmp_path: Path) -> None:
    evidence = study(seeds=1, optimizer=_matrices).run(tmp_path, progress=False)
    assert {o.optimizer for o in evidence.outcomes} == {"SGD(weight_decay=0.1)"}
    assert evidence.protocol["optimizer"] == "SGD(weight_decay=0.1)"


# ------------------------------------------------------------------------ the factory
MODEL = net(2)
DRAWN = np.random.default_rng(1)


def _started(depth: int, draw: Callable[[], Any]) -> nn.Module:
    made = net(depth)
    with torch.no_grad():
        next(made.parameters()).fill_(draw())
    return made


class _Keyed(nn.Module):
    """A net whose outputs have a name."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = net(depth)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(x)}


def _frozen(depth: int) -> nn.Module:
    return net(depth).requires_grad_(False)


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        (lambda depth: MODEL, "factory: gives out the same weights each time"),
        (lambda depth: net(2), "factory: makes the same net at depth 1 and at depth 2"),
        (lambda depth: _started(depth, DRAWN.normal), "factory: makes other weights each time"),
        (lambda depth: None, "factory: made None, not an nn.Module"),
        (lambda: net(1), "factory: at depth 1: TypeError"),
        (lambda depth: net(depth // (2 - depth)), "factory: at depth 2: ZeroDivisionError"),
        (_frozen, "factory: no parameter of the model trains"),
        (_Keyed, "loss_fn: cannot take a dict as outputs with y_train"),
    ],
)
def test_factories_that_make_no_fair_study(tmp_path: Path, factory: Any, told: str) -> None:
    with pytest.raises(StudyError, match=told):
        study(factory).run(tmp_path, progress=False)
    assert not (tmp_path / "cells").exists()


def test_batch_norm_needs_more_than_one_sample(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"x_train \(float32, 1 x 4\).*more than 1 value"):
        study(normed, batch_size=1).run(tmp_path, progress=False)


# ------------------------------------------------------------------------ what is unusual, and fits
class _Half(Block):
    """A block whose branch is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class _Shared(nn.Module):
    """One block, run as often as the net is deep."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.stem, self.block, self.head = nn.Linear(4, WIDTH), Block(), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(self.depth):
            x = self.block(x)
        out: Tensor = self.head(x)
        return out


def _one_number(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets).reshape(1)


UNUSUAL: dict[str, dict[str, Any]] = {
    "numpy draws": {"factory": lambda depth: _started(depth, np.random.standard_normal)},
    "frozen branches": {"factory": functools.partial(net, block=_Half)},
    "one block": {"factory": _Shared},
    "a loss of shape (1,)": {"loss_fn": _one_number},
    "one step": {"steps": 1},
    "one seed": {"seeds": [5]},
    "a batch above all samples": {"batch_size": 1000},
    "rate 0": {"lr": 0},
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_the_unusual_is_trained(tmp_path: Path, name: str) -> None:
    made = {"seeds": 1, **UNUSUAL[name]}
    evidence = study(**made).run(tmp_path, progress=False)
    assert len(evidence.outcomes) == 6
    assert all(o.finite and o.history for o in evidence.outcomes)
    _arms_start_equal(evidence)


def _arms_start_equal(evidence: Evidence) -> None:
    for depth in {o.cell.depth for o in evidence.outcomes}:
        own = [o for o in evidence.outcomes if o.cell.depth == depth]
        assert len({o.weights for o in own}) == 1
        residual = [o.readings[0] for o in own if o.cell.arm == "residual"]
        assert all(reading.r_median is not None for reading in residual)


# ------------------------------------------------------------------------ the folder
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("file", "folder: .*file is a file; give one to write to"),
        ("file/below", "folder: .*below': Not a directory; give one to write to"),
        ("x" * 300, "folder: .*: File name too long; give one"),
        ("a\0b", "folder: .*: embedded null byte; give one"),
    ],
)
def test_a_folder_that_cannot_be(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StudyError, match=told):
        study().run(f"{tmp_path}/{name}", progress=False)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_is_no_path() -> None:
    with pytest.raises(TypeError, match="folder must be a path, got None"):
        study().run(None)  # type: ignore[arg-type]


# ------------------------------------------------------------------------ outputs
class Named:
    """What a model of transformers returns."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Wrapped(nn.Sequential):
    def __init__(self, wrap: Callable[[Tensor], Any], depth: int) -> None:
        super().__init__(*net(depth))
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(super().forward(x))


LOGITS = "give a loss_fn and a wrong that read outputs.logits, or a factory whose model returns"
OTHERS = "give a loss_fn and a wrong that take it, or a factory whose model returns a tensor"


@pytest.mark.parametrize(
    ("wrap", "changed", "told"),
    [
        (Named, {}, f"loss_fn: cannot take a Named as .* has no attribute 'shape'; {LOGITS}"),
        (
            Named,
            {"loss_fn": lambda out, y: F.cross_entropy(out.logits, y)},
            f"wrong: cannot take a Named as outputs.*; {LOGITS}",
        ),
        (lambda out: (out,), {}, f"loss_fn: cannot take a tuple as outputs.*; {OTHERS}"),
    ],
)
def test_outputs_that_are_no_tensor(
    tmp_path: Path, wrap: Callable[[Tensor], Any], changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(StudyError, match=told):
        study(functools.partial(Wrapped, wrap), **changed).run(tmp_path, progress=False)
