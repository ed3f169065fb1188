"""Studies written by hand. Losses are those of the study of digits, medians of three seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from skipscope.evidence.outcome import ArmFacts, Cell, Evidence, Outcome, Reading

DEPTHS = (10, 20, 50, 100)
SEEDS = (0, 1, 2)
STEPS = 330

#: Final training loss at depth 10, 20, 50, 100.
LOSSES: Mapping[str, tuple[float, ...]] = {
    "plain": (0.009, 0.195, 1.42, 2.30),
    "sqrt": (0.019, 0.012, 0.009, 0.010),
    "zero-last": (0.021, 0.003, 0.0005, 0.0002),
    "he": (0.003, 0.015, math.inf, math.nan),
    "idle": (0.1037, 0.1037, 0.1037, 0.1037),
    "too-small": (0.1038, 0.1038, 0.1038, 0.1038),
    "bn-plain": (0.021, 0.14, 1.96, 2.32),
    "bn-residual": (0.044, 0.034, 0.024, 0.023),
}
#: Training errors that go with such losses; at 2.30 a net of ten classes guesses.
ERRORS: Mapping[str, tuple[float, ...]] = {
    "plain": (0.0, 0.04, 0.45, 0.90),
    "bn-plain": (0.0, 0.03, 0.70, 0.90),
    "he": (0.0, 0.0, 1.0, 1.0),
}
#: Decades between the gradients of first and last block, and effective rank, in the first steps.
EARLY: Mapping[str, tuple[float, float]] = {
    "plain": (0.0, 1.2),
    "sqrt": (0.0, 12.2),
    "bn-plain": (3.9, 10.0),
    "bn-residual": (0.5, 12.0),
}
R: Mapping[str, float] = {"sqrt": 0.14, "zero-last": 0.02, "bn-residual": 0.3, "too-small": 1e-4}

ARMS = (
    ArmFacts("plain", "plain, He, no norm", "plain", "no norm"),
    ArmFacts(
        "sqrt",
        "residual, He/sqrt(N), no norm",
        "residual",
        "no norm",
        "shortcut and last-layer scale",
        near_identity=True,
    ),
    ArmFacts(
        "zero-last",
        "residual, last layer 0, no norm",
        "start",
        "no norm",
        "shortcut and last-layer scale",
        near_identity=True,
        signal_from=1,
    ),
    ArmFacts("he", "residual, He, no norm", "control", "no norm", "shortcut"),
    ArmFacts("idle", "residual, alpha = 0", "idle", "no norm", "shortcut and alpha"),
    ArmFacts("too-small", "residual, alpha = 1e-4", "too-small", "no norm", "shortcut and alpha"),
    ArmFacts("bn-plain", "plain, He, BatchNorm", "plain", "batch norm"),
    ArmFacts("bn-residual", "residual, He, BatchNorm", "residual", "batch norm", "shortcut"),
)


def readings(arm: str, end: float) -> tuple[Reading, ...]:
    """What is read at the steps of the protocol; r where there are shortcuts."""
    decades, rank = EARLY.get(arm, (0.5, 11.0))
    r = R.get(arm)
    return tuple(
        Reading(
            step,
            loss=end if step == STEPS - 1 else 2.3 + (end - 2.3) * share,
            gradient_first=10**-decades,
            gradient_last=1.0,
            update_first=3e-3 * 10**-decades,
            effective_rank=rank,
            r_median=r,
            r_smallest=None if r is None else r / 2,
            r_largest=None if r is None else r * 2,
        )
        for step, share in ((0, 0.0), (1, 0.05), (10, 0.3), (30, 0.6), (100, 0.9), (STEPS - 1, 1.0))
    )


def run(
    arm: str,
    depth: int = 10,
    seed: int = 0,
    loss: float = 0.01,
    error: float = 0.0,
    *,
    lr: float = 0.01,
    **other: Any,
) -> Outcome:
    """One cell; a loss that is not finite makes it a run that is not."""
    finite = math.isfinite(loss)
    facts: dict[str, Any] = {
        "parameters": 1000 * depth,
        "parameters_with_gradient": 1000 * depth,
        "steps": STEPS,
        "batches": f"order {seed}",
        "optimizer": "SGD",
        "weights": f"drawn {depth} {seed}",
        "train_loss": loss,
        "train_error": error if finite else 1.0,
        "validation_loss": loss * 1.2,
        "validation_error": min(error + 0.03, 1.0) if finite else 1.0,
        "finite": finite,
        "seconds": 2.0,
        "steps_to_90": 90 if error < 0.1 and finite else math.inf,
        "readings": readings(arm, loss if finite else 9.0),
    }
    return Outcome(cell=Cell(arm, depth, seed, lr), **{**facts, **other})


def seeds(arm: str, depth: int, loss: float, error: float, **other: Any) -> list[Outcome]:
    """Three seeds around a median: 4 % below and above it in loss, half a point in error."""
    return [
        run(arm, depth, seed, loss * factor, max(error + shift, 0.0), **other)
        for seed, factor, shift in zip(SEEDS, (0.96, 1.0, 1.04), (-0.005, 0.0, 0.005), strict=True)
    ]


def digits() -> Evidence:
    """The study of digits, with a learning rate grid at depth 50: 1.41 and .0008 at best."""
    outcomes = [
        one
        for arm in ARMS
        for place, depth in enumerate(DEPTHS)
        for one in seeds(
            arm.name, depth, LOSSES[arm.name][place], ERRORS.get(arm.name, (0.0,) * 4)[place]
        )
    ]
    for arm, each in {"plain": (2.1, 1.41, 2.3), "sqrt": (0.3, 0.004, 0.0008)}.items():
        for rate, loss in zip((0.001, 0.03, 0.3), each, strict=True):
            outcomes += seeds(arm, 50, loss, 0.45 if arm == "plain" else 0.0, lr=rate)
    return Evidence(
        "digits",
        "Plain and residual MLPs on handwritten digits",
        ARMS,
        tuple(outcomes),
        lr=0.01,
        protocol={"data": "scikit-learn digits", "optimizer": "SGD, momentum 0.9, no weight decay"},
        rates=(0.001, 0.01, 0.03, 0.3),
    )


def pair_of(
    plain: Mapping[int, Sequence[float]],
    residual: Mapping[int, Sequence[float]],
    *more: Outcome,
    arms: Iterable[ArmFacts] = (),
) -> Evidence:
    """Two arms by depth: for each seed its loss and its error, written flat."""
    arm = ArmFacts("p", "plain", "plain", "pair")
    other = ArmFacts("q", "residual", "residual", "pair", "shortcut")
    outcomes = [
        run(name, depth, seed, flat[2 * seed], flat[2 * seed + 1])
        for name, each in (("p", plain), ("q", residual))
        for depth, flat in each.items()
        for seed in range(len(flat) // 2)
    ]
    return Evidence("made", "made by hand", (arm, other, *arms), (*outcomes, *more), lr=0.01)


def changed(evidence: Evidence, when: Callable[[Cell], bool], **values: Any) -> Evidence:
    """The same study with other values in the outcomes of some cells."""
    outcomes = tuple(replace(one, **values) if when(one.cell) else one for one in evidence.outcomes)
    return replace(evidence, outcomes=outcomes)


def without(evidence: Evidence, *arms: str) -> Evidence:
    """The same study, some of whose arms it never had."""
    return replace(
        evidence,
        arms=tuple(arm for arm in evidence.arms if arm.name not in arms),
        outcomes=tuple(one for one in evidence.outcomes if one.cell.arm not in arms),
    )
