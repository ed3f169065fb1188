"""RES504: norms or activations on the main path of a deep net."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable, rule
from skipscope.rule.shortcuts import MATRICES, RESAMPLERS
from skipscope.rule.siblings import common_path, streams


@rule(code="RES504", name="norm-on-main-path", severity="info")
def norm_on_main_path(
    sites: SiteMap,
    captures: npt.NDArray[np.int64],
    *,
    norms: int = 12,
    activations: int = 30,
) -> Iterator[Hit]:
    """The residual stream of a deep net passes a norm or an activation at every block.

    What it sees:
        Streams of `norms` sites or more where a norm stands between a sum and the next x at half of
        the places or more (post-norm), and streams of `activations` sites or more where an
        activation does (post-activation). Places where the stream is projected or resampled do not
        count. An information, never more.

    Example:
        Two blocks: with their norms on the stream (post-norm), and in the branches
        (pre-norm).

            sick     x ──┬───────(+)── norm ──┬───────(+)── norm ── y
                         └── F ───┘           └── F ───┘
            healthy  x ──┬───────────────(+)──┬───────────────(+)── y
                         └── norm ── F ───┘   └── norm ── F ───┘

    Why it matters:
        What stands on the main path acts on every signal and every gradient that passes, once per
        block: a post-norm transformer needs its warm-up for that reason, and 24 intact shortcuts
        under post-norm without warm-up left the first site 1.25e-7 of the last one's gradient.
        With post-activation the difference shows at large depth: CIFAR-10 test error of ResNet-110
        6.61 % against 6.37 % pre-activation, of ResNet-1001 7.61 % against 4.92 %.
    What to try:
        * if the first sites get too little gradient, move the norm into the branch (pre-norm)
        * if post-norm is to stay, warm up, or scale as DeepNorm or Admin do
    When it is wrong:
        Post-norm and post-activation are architectures, not faults: post-norm may even end better
        where it trains. Shallow nets are left out. Whether it harms this run is for the gradient
        rules to say.
    Thresholds:
        * norms: sites from which a post-norm stream counts as deep
        * activations: sites from which a post-activation stream counts as deep
    Source:
        He 2016 (arXiv 1603.05027), tables 2 and 3; Xiong 2020 (2002.04745); pytorch/pytorch issue
        55270 (post-norm encoders of more than 12 layers). The 1.25e-7 is an experiment: a post-norm
        net of 24 sites on a CPU. The depths are those of these sources.
    """
    lines = streams(sites)
    if not len(captures) or not lines:
        raise NotMeasurable("needs a residual addition")
    for line in lines.values():
        links = [set(site.link) for site in line[1:]]
        links = [link for link in links if not link & (MATRICES | RESAMPLERS)]
        for word, depth, name in (
            ("norm", norms, "post-norm"),
            ("activation", activations, "post-activation"),
        ):
            count = sum(word in link for link in links)
            if len(line) < depth or 2 * count < len(line) - 1:
                continue
            yield Hit(
                where=("model" if len(lines) == 1 else common_path(s.module for s in line),),
                value=float(count),
                expectation="a stream that nothing but additions touches, in a net of "
                f"{depth} sites or more",
                message=f"the stream passes a {word} at {count} of {len(line) - 1} places between "
                f"its sums ({name}, {len(line)} sites)",
                first_step=int(captures[0]),
                last_step=int(captures[-1]),
                evidence={"places": float(count), "sites": float(len(line)), "placement": name},
            )
            break
