"""Published landmarks, to be printed beside a study as context. They decide nothing.

Other data, nets and budgets than those of a study: its numbers are never compared with these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Landmark:
    """A published number, what it is evidence of, and where it stands."""

    text: str
    kind: Literal["training", "held out", "both", "model"]  #: what was measured
    reading: str  #: what may be read from it
    source: str


_HE_2015 = "He et al. 2015, arXiv 1512.03385"

LANDMARKS: tuple[Landmark, ...] = (
    Landmark(
        "CIFAR-10: a plain net of 56 layers has a higher training error than one of 20",
        "training",
        "degradation: an optimisation failure, as training error shows it",
        _HE_2015,
    ),
    Landmark(
        "ImageNet top-1 validation error: plain 18 layers 27.94 %, 34 layers 28.54 %; residual "
        "27.88 % and 25.03 %",
        "held out",
        "context; validation alone is no evidence of degradation",
        _HE_2015,
    ),
    Landmark(
        "CIFAR-10, residual, 1202 layers: training error below 0.1 %, test error above that of 110 "
        "layers",
        "both",
        "overfitting, not degradation",
        _HE_2015,
    ),
    Landmark(
        "ImageNet top-5 error: 152 residual layers alone 4.49 %, an ensemble 3.57 %",
        "held out",
        "what the depth was good for",
        _HE_2015,
    ),
    Landmark(
        "CIFAR-10, 110 layers, test error by shortcut: identity 6.61 %, times 0.5 12.35 %, 1x1 "
        "convolution 12.22 %",
        "held out",
        "what is done to the shortcut compounds with depth; at 34 layers projections everywhere "
        "were slightly better (He et al. 2015)",
        "He et al. 2016, arXiv 1603.05027",
    ),
    Landmark(
        "scalar model d^n of a gradient over n blocks: 0.8^20 = 0.0115, 0.98^20 = 0.668, 1.02^20 = "
        "1.486, 0.8^50 = 1.427e-5",
        "model",
        "one direction, no proof of stability",
        "skipscope.theory.depth_multiplier",
    ),
)
