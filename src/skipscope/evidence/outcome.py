"""What a controlled study came to: its arms, its cells, and what each cell ended with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: What an arm is for: the two that are compared; the residual net with its branches times 0; other
#: starts of the residual net (near the identity or not, too near); the arm that must fail.
Role = Literal["plain", "residual", "idle", "start", "too-small", "control", "other"]


@dataclass(frozen=True)
class ArmFacts:
    """One arm: one way to write the sum, and to start."""

    name: str  #: short, also in folder names: "plain", "zero-last"
    title: str  #: "residual, He/sqrt(N), no norm"
    role: Role
    pair: str  #: arms with one name here are compared with each other: "no norm", "batch norm"
    differs: str = ""  #: in what it differs from the plain arm of its pair; "" for that arm itself
    near_identity: bool = False  #: each sum starts at its shortcut or near it
    signal_from: int = 0  #: first step at which its gradients tell of depth; 1 where F starts at 0
    straw_man: str = ""  #: why it has no chance, where it trains all the same; "" where it has one


@dataclass(frozen=True)
class Cell:
    """One training: an arm at one depth, from one seed, at one learning rate."""

    arm: str
    depth: int
    seed: int
    lr: float

    @property
    def key(self) -> str:
        """Its name in files.

        >>> Cell("plain", 50, 0, 0.01).key
        'plain-d050-s0-lr0.01'
        """
        return f"{self.arm}-d{self.depth:03d}-s{self.seed}-lr{self.lr:g}"


@dataclass(frozen=True)
class Reading:
    """What was read off a net at one step, before its update; None where it has no value."""

    step: int
    loss: float | None = None  #: of that step's batch
    gradient_first: float | None = None  #: norm of the gradient of the first block's parameters
    gradient_last: float | None = None  #: of the last block's
    update_first: float | None = None  #: ||dW|| / ||W|| of the first block in that step
    update_last: float | None = None
    effective_rank: float | None = None  #: of the features before the head, over a fixed batch
    r_median: float | None = None  #: over the sites
    r_smallest: float | None = None
    r_largest: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What one cell ended with."""

    cell: Cell
    parameters: int
    parameters_with_gradient: int  #: elements of those that received one in any step
    steps: int
    batches: str  #: hash of the order of the samples
    optimizer: str
    train_loss: float  #: over the whole training set, as the net predicts (eval mode); may be inf
    train_error: float  #: share of the training set, 0 to 1; 1 where the net is not finite
    validation_loss: float
    validation_error: float
    finite: bool  #: losses and weights stayed finite
    seconds: float
    train_loss_batch: float | None = None  #: with the statistics of the batch, where there are any
    train_error_batch: float | None = None
    #: first step from which 9 of 10 of the last 5 batches are right; inf where none came, None
    #: where it was not read
    steps_to_90: int | float | None = None
    readings: tuple[Reading, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()  #: code and severity of each root at the end
    history: str = ""  #: its history's file, from the study's folder
    weights: str = ""  #: hash of the weights as the factory drew them, before the arm's start


@dataclass(frozen=True)
class Evidence:
    """A study: what was held equal, what was compared, what came of it."""

    name: str  #: "digits"
    title: str
    arms: tuple[ArmFacts, ...]
    outcomes: tuple[Outcome, ...]
    lr: float  #: of the main comparison; cells at other rates are the grid of link 7
    protocol: dict[str, str] = field(default_factory=dict)  #: what was held equal, to be printed
    rates: tuple[float, ...] = ()  #: the grid, the same for both arms; () without one
