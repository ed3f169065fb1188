"""The studies that come with skipscope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from skipscope.evidence.outcome import ArmFacts
from skipscope.evidence.store import StudyError
from skipscope.study.arms import Arm
from skipscope.study.data import Data
from skipscope.study.nets import cnn, mlp, transformer
from skipscope.study.starts import depth_scaled, scaled_branches, zero_last
from skipscope.study.study import Study

DEEP = 50  #: from here on nets without norm need a start near the identity


def digits_data() -> Data:
    """Scikit-learn's 1,797 digits of 8 x 8 pixels; four fifths are trained on.

    All pixels together are standardised: over those of the training set mean 0 and deviation 1.

    Raises:
        StudyError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise StudyError(
            "the digits come with scikit-learn: pip install 'skipscope[demo]', or give your own "
            "data to skipscope.Study"
        ) from None
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    first, rest = order.tensor_split([len(x) * 4 // 5])
    x = (x - x[first].mean()) / x[first].std()
    return Data(x[first], y[first], x[rest], y[rest])


def _seeds(wanted: int | Sequence[int] | None, *, smoke: bool) -> int | Sequence[int]:
    return wanted if wanted is not None else 1 if smoke else 3


# ---------------------------------------------------------------------------------- digits
def digits(*, seeds: int | Sequence[int] | None = None, smoke: bool = False) -> Study:
    """A residual MLP: depth, norm, and how it starts; the default.

    Args:
        seeds: their number, or they themselves; None: 3, of a small one 1.
        smoke: depths 10 and 50, without BatchNorm and grid.
    """
    arms = [*_no_norm(), *([] if smoke else _batch_norm())]
    if smoke:
        arms = [arm for arm in arms if arm.facts.role in ("plain", "residual", "idle", "control")]
    return Study(
        mlp,
        digits_data(),
        arms=arms,
        depths=(10, DEEP) if smoke else (10, 20, DEEP, 100),
        seeds=_seeds(seeds, smoke=smoke),
        lr=0.01,
        rates=() if smoke else (0.0003, 0.001, 0.003, 0.03),
        grid_depth=DEEP,
        grid_seeds=None if smoke else 1,
        name="digits",
        title="Digits: a residual MLP of width 32, with and without its shortcuts",
    )


def digits_adam(*, seeds: int | Sequence[int] | None = None, smoke: bool = False) -> Study:
    """The same MLP without norm under Adam: does another optimizer make up for the shortcut?

    Args:
        seeds: their number, or they themselves; None: 3, of a small one 1.
        smoke: depths 4 and 10, 10 steps.
    """
    wanted = ("plain", "residual", "branches-scaled", "idle")
    arms = [replace(arm, depths=None) for arm in _no_norm() if arm.name in wanted]
    return Study(
        mlp,
        digits_data(),
        arms=arms,
        depths=(4, 10) if smoke else (10, 20, DEEP, 100),
        seeds=_seeds(seeds, smoke=smoke),
        lr=0.001,
        steps=10 if smoke else 330,
        optimizer=adam,
        name="adam",
        title="Adam: the residual MLP of width 32 without norm, by Adam instead of SGD",
    )


def _no_norm() -> list[Arm]:
    pair, deep = "no norm", (DEEP, 100)
    scale = "1/sqrt(N) on the last layer of each branch"
    residual = ArmFacts(
        "residual", "residual, He/sqrt(N), no norm", "residual", pair, f"shortcut, and {scale}",
        near_identity=True,
    )  # fmt: skip
    return [
        Arm(
            ArmFacts("plain", "plain, He, no norm", "plain", pair), shortcut=False, on_grid=True
        ),
        Arm(residual, start=depth_scaled, on_grid=True),
        Arm(
            ArmFacts("control", "residual, He, no norm (must fail)", "control", pair, "shortcut"),
            depths=deep,
        ),
        Arm(
            ArmFacts(
                "branches-scaled", "residual, branches times 1/sqrt(N), no norm", "start", pair,
                "shortcut, and branches times 1/sqrt(N)", near_identity=True,
            ),
            start=scaled_branches,
        ),
        Arm(
            ArmFacts(
                "zero-last", "residual, last layers 0, no norm", "start", pair,
                "shortcut, and last layer of each branch 0", near_identity=True, signal_from=1,
            ),
            start=zero_last,
        ),
        Arm(
            ArmFacts(
                "too-small", "residual, branches times 1e-4, no norm", "too-small", pair,
                "shortcut, and branches times 1e-4", near_identity=True,
            ),
            branch_scale=1e-4, depths=(DEEP,),
        ),
        Arm(
            ArmFacts(
                "idle", "residual, branches times 0, no norm", "idle", pair,
                "shortcut, and branches times 0",
            ),
            branch_scale=0.0, depths=deep,
        ),
    ]  # fmt: skip


def _batch_norm() -> list[Arm]:
    pair, factory = "batch norm", partial(mlp, norm=True)
    residual = ArmFacts("bn-residual", "residual, He, BatchNorm", "residual", pair, "shortcut")
    idle = ArmFacts(
        "bn-idle", "residual, branches times 0, BatchNorm", "idle", pair,
        "shortcut, and branches times 0",
    )  # fmt: skip
    plain = ArmFacts("bn-plain", "plain, He, BatchNorm", "plain", pair)
    return [
        Arm(plain, shortcut=False, factory=factory),
        Arm(residual, factory=factory),
        Arm(idle, branch_scale=0.0, factory=factory, depths=(100,)),
    ]


# ------------------------------------------------------------------------------- shortcuts
def shortcuts(*, seeds: int | Sequence[int] | None = None, smoke: bool = False) -> Study:
    """A small ResNet: identity shortcuts, projections between stages, projections everywhere.

    Args:
        seeds: their number, or they themselves; None: 3, of a small one 1.
        smoke: depths 8 and 14, 10 steps.
    """
    pair = "batch norm"
    names = {
        "identity": ("identity", "identity everywhere: every second pixel between stages"),
        "projections": ("all", "a projection at every block"),
    }
    others = [
        Arm(
            ArmFacts(name, title, "other", pair, f"shortcut: {title}"),
            factory=partial(cnn, shortcut=kind),  # type: ignore[arg-type]
        )
        for name, (kind, title) in names.items()
    ]
    boundaries = "identity, projections between stages"
    deepest = 14 if smoke else 110
    arms = [
        Arm(ArmFacts("plain", "plain between stages", "plain", pair), shortcut=False),
        Arm(ArmFacts("residual", boundaries, "residual", pair, "shortcut")),
        Arm(
            ArmFacts(
                "idle",
                f"{boundaries}, branches times 0",
                "idle",
                pair,
                "shortcut, and branches times 0",
            ),
            branch_scale=0.0,
            depths=(deepest,),
        ),
        *others,
    ]
    return Study(
        cnn,
        digits_data(),
        arms=arms,
        depths=(8, 14) if smoke else (8, 20, 56, 110),
        seeds=_seeds(seeds, smoke=smoke),
        lr=0.01,
        steps=10 if smoke else 150,
        name="shortcuts",
        title="Shortcuts: a CNN of width 8, with identity shortcuts and with projections",
    )


# ----------------------------------------------------------------------------------- norms
def adam(parameters: list[nn.Parameter], lr: float) -> Optimizer:
    """Adam without weight decay."""
    return torch.optim.Adam(parameters, lr=lr, fused=parameters[0].device.type == "cpu")


def norms(*, seeds: int | Sequence[int] | None = None, smoke: bool = False) -> Study:
    """A tiny transformer: the norm in the branch or behind the sum, with and without warm-up.

    Args:
        seeds: their number, or they themselves; None: 3, of a small one 1.
        smoke: 1 and 2 layers, 10 steps.
    """
    deepest = 2 if smoke else 24
    arms = [*_placed("pre", deepest), *_placed("post", deepest)]
    return Study(
        transformer,
        digits_data(),
        arms=arms,
        depths=(1, 2) if smoke else (4, 12, 24),
        seeds=_seeds(seeds, smoke=smoke),
        lr=0.003,
        steps=10 if smoke else 200,
        optimizer=adam,
        name="norms",
        title="Norms: a transformer of width 32 over the rows of digits, pre-norm and post-norm",
    )


def _placed(place: str, deepest: int) -> list[Arm]:
    """The arms of one norm placement."""
    pair, factory = f"{place}-norm", partial(transformer, post=place == "post")
    plain = Arm(
        ArmFacts(f"{place}-plain", f"plain, {pair}", "plain", pair),
        shortcut=False,
        factory=factory,
    )
    residual = Arm(
        ArmFacts(f"{place}-residual", f"residual, {pair}", "residual", pair, "shortcut"),
        factory=factory,
    )
    warmed = ArmFacts(
        f"{place}-warmup", f"residual, {pair}, warm-up", "other", pair, "shortcut, and warm-up"
    )
    idle = ArmFacts(
        f"{place}-idle", f"residual, {pair}, branches times 0", "idle", pair,
        "shortcut, and branches times 0",
    )  # fmt: skip
    return [
        plain,
        residual,
        replace(residual, facts=warmed, warmup=50),
        replace(residual, facts=idle, branch_scale=0.0, depths=(deepest,)),
    ]


NAMED: dict[str, Callable[..., Study]] = {
    "digits": digits,
    "adam": digits_adam,
    "shortcuts": shortcuts,
    "norms": norms,
}
