"""Runs and diagnoses by hand for the reports, the pictures, the loggers and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skipscope.history import History
from skipscope.records import Diagnosis, Finding, Passed, Run, Skipped, Unseen
from tests.offline.builders import (
    add_facts,
    add_updates,
    make_history,
    make_map,
    make_parameter,
    make_site,
)

STEPS = (0, 1, 2, 4, 8, 16, 32, 50)
RUN = Run(run_id="r1", skipscope="0.1.0", torch="2.8.0", model="TinyGPT", precision="bf16-mixed")

DOMINANT = Finding(
    code="RES101",
    name="branch-dominance",
    severity="warning",
    where=("blocks.2",),
    first_step=8,
    last_step=50,
    message="r 34.0 at blocks.2: the branch drowns the shortcut; its siblings 0.35 to 0.40",
    evidence={"r": 34.0, "siblings": 0.38},
    expectation="about 0.35 (law 1/sqrt(k+1))",
    cause="weight norm of blocks.2.fc2 41, its siblings 1.2",
    advice=(
        "a longer warm-up or a lower lr for this block",
        'skipscope.remedies.scale_branches(model, sites=["blocks.2"], alpha=0.01)',
    ),
)
FOLLOWER = Finding(
    code="RES201",
    name="activation-growth",
    severity="warning",
    where=("model",),
    first_step=16,
    last_step=50,
    message="total growth x47",
    follows=("RES101", "blocks.2"),
)
NOTE = Finding(
    code="RES504",
    name="norm-on-main-path",
    severity="info",
    where=("blocks.1",),
    first_step=0,
    last_step=0,
    message="a norm stands between blocks.1 and blocks.2",
    status="continuing",
)
PASSED = (
    Passed("RES103", "dead-branch"),
    Passed("RES202", "mean-shift"),
    Passed("RES902", "non-finite"),
)
SKIPPED = (
    Skipped("RES105", "late-identity", "needs 8 sites in a stage, has 4"),
    Skipped("RES301", "gradient-imbalance", "needs 8 sites in a stage, has 4"),
    Skipped("RES401", "update-too-hot", "updates are off"),
)
GATE = Unseen("gate", "mixer", "net.py:40", 3, "a gate decides between the operands")


def sick(*more: Finding) -> Diagnosis:
    """One warning with a follower, a note, and `more`."""
    return Diagnosis((DOMINANT, FOLLOWER, NOTE, *more), PASSED, SKIPPED, step=50, epoch=3)


def calm(skipped: Sequence[Skipped] = ()) -> Diagnosis:
    """Nothing found."""
    return Diagnosis((), PASSED, tuple(skipped), step=50, epoch=3)


def run_of(
    count: int,
    changed: Mapping[int, float] | None = None,
    *,
    prefix: str = "blocks.",
    streams: int = 1,
    unseen: Sequence[Unseen] = (),
    have: Any = 31,
    why: Any = 0,
    captured_seconds: float = 0.032,
) -> History:
    """`count` sites over eight captures; r is 1/2 everywhere but where `changed` says otherwise."""
    ratios = np.full((len(STEPS), count), 0.5)
    for at, r in (changed or {}).items():
        ratios[:, at] = r
    share = count // streams
    sites = [
        make_site(
            at,
            name=f"{prefix}{at}",
            module=f"{prefix}{at}",
            parameters=(f"{prefix}{at}.weight",),
            stream=at // share,
            depth=at % share,
        )
        for at in range(count)
    ]
    sizes = make_map(*sites, unseen=tuple(unseen))
    history = make_history(ratios, sites=sizes, steps=STEPS, run=RUN, have=have, why=why)
    parameters = tuple(make_parameter(s.index, name=s.parameters[0]) for s in sites)
    add_updates(history, ratio=2.6e-3, parameters=parameters)
    taken = np.isin(np.arange(51), STEPS)
    seconds = np.where(taken, captured_seconds, 0.02)
    return add_facts(history, loss=0.41, captured=taken, seconds=seconds, host_ms=0.8)
