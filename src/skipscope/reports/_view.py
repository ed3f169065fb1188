"""One plain record of everything a report shows, so that no format computes.

A number is a float (NaN and the infinities are results) or None where nothing was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from skipscope.records import Finding, Group, Run, Unseen
from skipscope.reports._expected import Expected
from skipscope.reports._text import Number

#: Said once, at the foot of every report.
CONVENTIONS = (
    "r = |F|/|s|, growth = |y|/|s| (y = s + F), cos(s, F): whole tensor, local medians apart",
    "levels RMS",
    "gradient gain = |g_x|/|g_y|, raw L2",
    "dW/W = |dW|/max(|W|, 0.1 sqrt(numel/fan_in))",
    "B = sum ln(1+r^2)",
)


@dataclass(frozen=True)
class Root:
    """A root finding with all that follows from it."""

    finding: Finding
    follows: tuple[Finding, ...]


@dataclass(frozen=True)
class SiteRow:
    """One site in the profile along depth, at the last capture."""

    index: int
    depth: int
    name: str
    module: str
    source: str
    kind: str
    stream: int
    stage: int
    nested: bool
    norm_placement: str
    link: tuple[str, ...]
    branch_ratio: Number
    branch_ratio_median: Number
    cosine: Number
    growth: Number
    gradient_gain: Number
    update_ratio: Number
    trend: tuple[Number, ...]  #: r of the last captures, oldest first
    why: str  #: why something is missing, "" where nothing is known
    findings: tuple[str, ...]  #: codes of the root findings here
    grave: bool  #: one of these is a warning or an error


@dataclass(frozen=True)
class StreamView:
    """The depth numbers of one stream."""

    index: int
    sites: int
    pure: bool
    numbers: dict[str, Number]  #: by measure
    largest_growth: Number
    largest_growth_site: str
    expected: dict[str, Expected]


@dataclass(frozen=True)
class UpdatesView:
    """What the optimizer did, at the last step that was looked at."""

    step: int | None
    median: Number  #: of dW/W over parameters of two or more axes
    measured: int  #: parameters whose update is known
    trainable: int
    frozen: int  #: parameters without requires_grad
    skipped: int  #: steps in which no optimizer stepped
    steps: int  #: steps seen in all
    loss: Number
    lr: tuple[Number, ...]  #: one a group
    loss_scale: Number
    expected: Expected | None


@dataclass(frozen=True)
class CostView:
    """What watching cost, by the monitor's own clock."""

    captures: int
    captured_seconds: Number  #: median wall time of a captured step
    other_seconds: Number  #: median wall time of the others
    host_ms: Number  #: median host time of the monitor in a captured step
    #: of the wall time of all steps seen; None where captured steps took no longer than the others
    share: Number


@dataclass(frozen=True)
class View:
    """Everything a report shows."""

    run: Run
    groups: tuple[Group, ...]
    step: int
    epoch: int
    roots: tuple[Root, ...]  #: those that stand, gravest first
    resolved: tuple[Root, ...]  #: those that have ended, in this report or an earlier one
    sites: tuple[SiteRow, ...]  #: block-level by stream and depth, then nested
    streams: tuple[StreamView, ...]
    expected: dict[str, Expected]  #: for columns of the profile
    updates: UpdatesView
    passed: tuple[tuple[str, str], ...]  #: code, name
    skipped: tuple[tuple[str, tuple[str, ...]], ...]  #: reason, codes
    in_part: tuple[tuple[str, tuple[str, ...]], ...]  #: the same of parts of rules that looked
    unseen: tuple[Unseen, ...]
    unmeasured: tuple[tuple[str, tuple[str, ...]], ...]  #: reason, site names
    cost: CostView
    conventions: tuple[str, ...] = CONVENTIONS

    @property
    def block_level(self) -> tuple[SiteRow, ...]:
        """The rows of the profile: nested sites left out."""
        return tuple(row for row in self.sites if not row.nested)

    def count(self, severity: str) -> int:
        """How many root findings of this severity stand."""
        return sum(root.finding.severity == severity for root in self.roots)

    @property
    def cleared(self) -> tuple[Root, ...]:
        """Those that have ended since the last report: this one says so, once."""
        return tuple(root for root in self.resolved if not root.finding.told)

    @property
    def calm(self) -> bool:
        """No error and no warning: the report may be short."""
        return not self.count("error") and not self.count("warning")
