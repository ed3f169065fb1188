"""What an extrapolation says: plain records, each number with the law that it stands under."""

from __future__ import annotations

from dataclasses import dataclass

from skipscope.extrapolation.fit import Fits
from skipscope.extrapolation.laws import ordered
from skipscope.theory import Law

Number = float | None

#: What no curve through one run can know; said under every extrapolation.
LIMITS = (
    "the deeper net is taken to be the same net with more equal blocks, of one width and start",
    "one run at one depth was measured; training changes all of this, at each depth differently",
    "whether the deeper net trains is not told",
    "laws hold within a stage: what stands between stages or on the stream (post-norm) is left out",
    "d^n is a scalar model of one direction of the gradient, no proof of stability",
)


@dataclass(frozen=True)
class Depth:
    """A depth that was asked for."""

    text: str  #: as it was asked for: "4x", "96"
    factor: float | None  #: times the measured depth
    sites: int | None  #: or so many sites in a stream

    def of(self, stream: int) -> float:
        """Times the depth of a stream of so many sites."""
        return self.factor if self.factor is not None else (self.sites or 0) / stream


@dataclass(frozen=True)
class At:
    """The numbers of one stage at one depth under one law; None where there is none."""

    asked: str
    sites: int  #: of the stage
    law: Law | None  #: None: what was measured
    growth: Number  #: RMS of the last sum over that of the first input
    budget: Number  #: B
    gradient: Number  #: gradient at the first sum that counts over that at the last
    multiplier: Number  #: of the stream, where the stage is the whole of it


@dataclass(frozen=True)
class Curve:
    """A profile along depth and what was fitted to it."""

    fits: Fits | None
    law: Law | None  #: the one that it follows; None: none, or one of several
    reason: str  #: why there is no law, or by what the start of the branches was told
    laws: tuple[Law, ...] = ()  #: that stand side by side, where the history does not tell one
    unscaled: bool = False  #: what the branches of a deeper net start at does not change it

    @property
    def answers(self) -> tuple[Law, ...]:
        """The law, or those that stand side by side."""
        return self.laws if self.law is None else (self.law,)


@dataclass(frozen=True)
class StageAt:
    """One stage in one capture."""

    name: str
    sites: int
    counted: int  #: sums that the curves run over, after the one they start at
    cosine: Number  #: median over these sites of the cosine of shortcut and branch
    forward: Curve  #: mean square of the stream
    gradient: Curve  #: of 1 / gradient^2 at the sums
    measured: At
    extrapolated: tuple[At, ...]  #: under the law
    #: under each law that stands side by side, then under those of branches that start otherwise
    otherwise: tuple[At, ...]

    @property
    def answers(self) -> tuple[Law, ...]:
        """The laws that stand side by side; none where the stage has one law, or none."""
        several = self.forward.laws, self.gradient.laws
        return ordered(*several) if any(several) else ()


@dataclass(frozen=True)
class Scalar:
    """The scalar model of a stream: what d^n comes to at other depths."""

    multiplier: float  #: measured, end to end
    start: str  #: where its gradient was read: "first input" or "first sum"
    blocks: int  #: n
    factor: float  #: d
    #: asked, blocks, d^n; empty where the gradient follows no law
    at: tuple[tuple[str, int, float], ...]


@dataclass(frozen=True)
class StreamAt:
    """One stream in one capture."""

    index: int
    sites: int
    placement: str  #: where most of its norms stand
    stages: tuple[StageAt, ...]
    scalar: Scalar | None


@dataclass(frozen=True)
class Moment:
    """One capture that was extrapolated from."""

    step: int
    label: str
    streams: tuple[StreamAt, ...]


@dataclass(frozen=True)
class ExtrapolationNumbers:
    """Everything that `skipscope extrapolate` shows."""

    run_id: str
    model: str
    sites: int
    depths: tuple[Depth, ...]
    moments: tuple[Moment, ...]
    why: str  #: why there is no moment, "" where there is one
    limits: tuple[str, ...] = LIMITS
