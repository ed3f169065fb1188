"""What healthy runs show, to stand beside the numbers: ranges, and the laws behind them.

These are for reading. What a rule judges by stands in the rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skipscope import theory
from skipscope.records import Group, Site
from skipscope.reports._text import factor

#: r while training, by where the norms stand: (range, law).
#: Source: De & Smith 2020 (2002.10444) for the law with depth; ranges seen in healthy small runs.
BRANCH_RATIO = {
    "pre-norm": ("0.02 to 0.8", "pre-norm; 1/sqrt(k+a) at step 0"),
    "sandwich": ("0.02 to 0.8", "pre-norm; the outer norm fixes it"),
    "post-norm": ("0.22 to 0.84", "post-norm: no decay with depth"),
    "pre-activation": ("1/sqrt(k+1)", "pre-activation, k-th site of its stage"),
    "post-activation": ("1 to 1.4 times 1/sqrt(k+1)", "post-activation, k-th site of its stage"),
    "branch-norm": ("1/sqrt(k+1)", "normalised branches, k-th site of its stage"),
    "none": ("flat or falling with depth", "branches without a norm"),
}

#: Median dW/W over matrices, by the optimizer's family: (range, source).
ADAM = ("2e-3 to 2e-2", "Adam")
SGD = ("1e-3 to 4e-3", "SGD")


@dataclass(frozen=True)
class Expected:
    """What stands beside one measure."""

    range: str  #: in the measure's unit, as text
    law: str  #: the law or the kind of run that it belongs to

    def __str__(self) -> str:
        return f"{self.range}: {self.law}"


def usual_placement(placements: Iterable[str]) -> str:
    """The norm placement that most sites share ("none" without sites)."""
    counts = Counter(placements)
    return counts.most_common(1)[0][0] if counts else "none"


def of_profile(sites: Sequence[Site]) -> dict[str, Expected]:
    """Expectations for the columns of the profile along depth, by measure."""
    placement = usual_placement(site.norm_placement for site in sites)
    return {
        "branch_ratio": Expected(*BRANCH_RATIO[placement]),
        "cosine": Expected("-0.3 to +0.9", "near 0 at step 0"),
    }


def of_updates(groups: Sequence[Group]) -> Expected | None:
    """What the median dW/W over matrices should be, where the optimizer is known."""
    names = {group.optimizer.lower() for group in groups}
    if names and all("adam" in name for name in names):
        return Expected(*ADAM)
    if names and all("sgd" in name for name in names):
        return Expected(*SGD)
    return None


def of_stream(count: int, stages: int = 1) -> dict[str, Expected]:
    """Expectations for the depth numbers of a stream of `count` sites, by measure.

    The laws of growth hold within a stage: where a projection begins another, only limits do.

    >>> str(of_stream(12)["total_growth"])
    'law x3.6 at step 0: sqrt(1+L); later none'
    """
    within = {
        "total_growth": Expected(
            f"law x{math.sqrt(1 + count):.1f} at step 0", "sqrt(1+L); later none"
        ),
        "half_depth_growth": Expected("law 1.41", "sqrt(2), linear"),
        "residual_budget": Expected(f"law {math.log(1 + count):.1f}", "ln(1+L), linear"),
    }
    return {
        **(within if stages == 1 else {}),
        "half_depth_growth_without_largest": Expected("up to 10", "RES201; 2.5 at step 0"),
        "gradient_ratio": Expected("1/316 to 316", "RES301"),
        "depth_multiplier": Expected(
            f"to compare: {factor(theory.depth_multiplier(0.8, count))}", "0.8 a site, plain"
        ),
        "depth_factor": Expected("0.75 to 1.3", "healthy runs"),
    }
