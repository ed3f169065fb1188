"""One run: a seed, a net, a fault or none, and what the rules said."""

from __future__ import annotations

import random
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.faults import numbers, regimes, wiring  # noqa: F401 - they fill the table
from benchmarks.faults.faults import FAULTS, Fault
from benchmarks.faults.nets import build, draw
from benchmarks.faults.training import Training, train
from skipscope.records import Diagnosis, Finding

HEALTHY = "healthy"
Job = tuple[str, int]  # what is planted, and the seed


def one(job: Job) -> dict[str, Any]:
    """One run on one thread; an error ends that run only, and the table tells of it."""
    torch.set_num_threads(1)
    try:
        return run(*job)
    except Exception as error:
        where = traceback.format_exc().splitlines()[-12:]
        return {"task": job[0], "seed": job[1], "error": repr(error), "traceback": where}


def run(task: str, seed: int, steps: int | None = None) -> dict[str, Any]:
    """Trains one net and returns a row for the results file.

    Args:
        task: the code of the rule whose fault is planted, or "healthy".
        seed: of the plan, the net, the data and the fault.
        steps: instead of the plan's own number.
    """
    started = time.process_time()
    rng = random.Random(f"{task} {seed}")
    fault = rng.choice(FAULTS[task]) if task != HEALTHY else None
    plan = draw(rng) if fault is None else fault.plan(rng)
    torch.manual_seed(seed)
    training = Training(plan, build(plan), seed)
    places = fault.plant(training, rng) if fault is not None else ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = train(training, steps)
    diagnosis = outcome.diagnosis
    return {
        "task": task,
        "seed": seed,
        "fault": fault.name if fault is not None else "",
        "places": list(places),
        "plan": asdict(plan),
        "found": fault is not None and is_found(diagnosis, fault, places),
        "alarms": sorted({f.code for d in (*outcome.earlier, diagnosis) for f in grave(d)}),
        "roots": [_row(finding) for finding in diagnosis.roots],
        "follows": sorted({f.code for f in diagnosis.findings if f.follows is not None}),
        "skipped": {s.code: s.reason for s in diagnosis.skipped},
        "losses": [outcome.first_loss, outcome.last_loss],
        "seconds": round(time.process_time() - started, 2),
    }


def grave(diagnosis: Diagnosis) -> list[Finding]:
    """The roots of severity warning and error."""
    return [finding for finding in diagnosis.roots if finding.severity != "info"]


def is_found(diagnosis: Diagnosis, fault: Fault, places: Sequence[str]) -> bool:
    """Whether a root finding of the right rule names the right place, and no other."""
    return any(
        finding.code == fault.code
        and (fault.info or finding.severity != "info")
        and _at_places(finding, places, fault.spreading)
        for finding in diagnosis.roots
    )


def _at_places(finding: Finding, places: Sequence[str], spreading: bool) -> bool:
    if tuple(places) == ("model",):
        return True
    hits = [any(touches(where, place) for place in places) for where in finding.where]
    return any(hits) if spreading else all(hits)


def touches(where: str, place: str) -> bool:
    """Whether one path is the other, or a part of it; a site `blocks.1/mlp` is one of its block.

    >>> touches("blocks.1.mlp", "blocks.1"), touches("blocks.1", "blocks.10")
    (True, False)
    >>> touches("blocks.1/mlp", "blocks.1"), touches("blocks.1/mlp", "blocks.1.attention")
    (True, False)
    """
    one, other = (f"{path}.".replace("/", ".") for path in (where, place))
    return one.startswith(other) or other.startswith(one)


def _row(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "where": list(finding.where)[:4],
        "steps": [finding.first_step, finding.last_step],
        "message": finding.message,
    }
