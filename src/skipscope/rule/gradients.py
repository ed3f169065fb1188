"""The gradient along the depth of a stage, against that of its last sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.names import counted
from skipscope.records import Site
from skipscope.rule.gates import NotMeasurable, deep_enough
from skipscope.rule.siblings import Stage

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GradientProfile:
    """Gradients at the sums of one stage over that at its last sum.

    The sums of a stage share a shape, so raw norms compare. Sites that no gradient ever reached (a
    frozen part before the first trained one) are left out.
    """

    stage: Stage
    sites: tuple[Site, ...]
    steps: npt.NDArray[np.int64]
    share: Floats  #: (rows, sites); NaN where not measured, or where the last gradient is 0

    @property
    def ratio(self) -> Floats:
        """`G`, first over last. Shape: (rows,)."""
        first: Floats = self.share[:, 0]
        return first

    @property
    def decades(self) -> Floats:
        """`log10 G`, minus infinity where nothing arrives at the first. Shape: (rows,)."""
        with np.errstate(divide="ignore"):
            logs: Floats = np.log10(self.ratio)
        return logs

    @property
    def early(self) -> tuple[str, ...]:
        """Modules of the first quarter of the sites: what a finding names, the same at each step.

        How many blocks are beyond some limit changes from step to step; see `beyond`.
        """
        first = self.sites[: -(-len(self.sites) // 4)]
        return tuple(dict.fromkeys(site.module or site.name for site in first))

    def beyond(self, row: int, factor: float) -> str:
        """How many sums have `factor` times less (or more) gradient than the last, in words.

        On the side on which the first sum is.
        """
        small = self.ratio[row] < 1
        with np.errstate(invalid="ignore"):
            far = self.share[row] < 1 / factor if small else self.share[row] > factor
        word = "less" if small else "more"
        return f"{int(far.sum())} of {len(self.sites)} sums have {factor:.0f}x {word}"


def profiles(gradient: Table, stages: Sequence[Stage], depth: int) -> Iterator[GradientProfile]:
    """The profile of every stage with `depth` measured sites or more.

    Raises:
        NotMeasurable: no stage has so many sites, or gradients at so many.
    """
    found = False
    for stage in deep_enough(stages, depth):
        at = [gradient.columns.index(site.name) for site in stage.sites]
        reached = [k for k, column in enumerate(at) if not gradient.missing[:, column].all()]
        if len(reached) < depth:
            continue
        found = True
        norms = gradient.values[:, [at[k] for k in reached]]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(norms[:, -1:] > 0, norms / norms[:, -1:], np.nan)
        sites = tuple(stage.sites[k] for k in reached)
        yield GradientProfile(stage, sites, gradient.steps, share)
    if not found:
        raise NotMeasurable(f"needs gradients at {counted(depth, 'site')} of one stage")
