"""RES302: collapse of a post-norm stack, and what looks like it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import Run
from skipscope.rule import Hit, NotMeasurable
from skipscope.rule.siblings import stages
from skipscope.rules import RULES
from tests.offline.builders import make_group, make_parameter
from tests.offline.rule_values import chain, names, rates, table

RULE = RULES["RES302"]


def look(
    ratio: float = 1e-4, angle: float = 0.5, sites: Any = None, steps: Any = range(12), **more: Any
) -> tuple[Hit, ...]:
    sites = chain(12, norm_placement="post-norm") if sites is None else sites
    at = np.array(steps)
    shape = (len(at), len(sites.sites))
    profile = np.tile(np.geomspace(ratio, 1, shape[1]), (len(at), 1))
    given = {
        "grad_sum_norm": table("grad_sum_norm", profile, names(sites), at),
        "cosine": table("cosine", np.full(shape, angle), names(sites), at),
        "stages": stages(sites),
        "run": Run(),
    }
    return RULE.run({**given, **more})


def start(u: float = 0.03, lr: Any = 1e-3, **options: Any) -> dict[str, Any]:
    parameters = tuple(make_parameter(k) for k in range(12))
    return {
        "parameters": parameters,
        "groups": (make_group(0, **{"beta1": 0.9, "beta2": 0.999, **options}),),
        "lr": rates(12, lr),
        "update_ratio": table(
            "update_ratio", np.full((12, 12), u), tuple(p.name for p in parameters)
        ),
    }


@pytest.mark.parametrize(("ratio", "found"), [(0.9e-3, True), (1.1e-3, False)])
def test_gradient_ratio(ratio: float, found: bool) -> None:
    assert bool(look(ratio)) is found


@pytest.mark.parametrize(("angle", "found"), [(0.41, True), (0.39, False)])
def test_alignment(angle: float, found: bool) -> None:
    assert bool(look(angle=angle)) is found


def test_the_finding() -> None:
    (hit,) = look(1e-5)
    assert hit.severity is None
    assert hit.where == ("blocks.0", "blocks.1", "blocks.2")
    assert "post-norm" in hit.message


def test_late_collapse_is_another_story() -> None:
    assert not look(steps=range(501, 513))
    assert look(steps=range(489, 501))


def test_other_placements_are_silent() -> None:
    assert not look(sites=chain(12))
    scaled = chain(12, norm_placement="post-norm", kind="scaled")
    assert not look(sites=scaled)  # DeepNorm, Admin
    with pytest.raises(NotMeasurable, match="needs a fresh run"):
        look(run=Run(fresh=False))


def test_few_sites() -> None:
    with pytest.raises(NotMeasurable, match="needs 8 sites"):
        look(sites=chain(6, norm_placement="post-norm"))


def test_a_risky_start_is_information() -> None:
    (hit,) = look(0.5, **start())
    assert (hit.severity, hit.where) == ("info", ("model",))
    assert hit.first_step == 9
    assert not look(0.5, **start(u=0.009))
    assert not look(0.5, **start(lr=np.geomspace(1e-5, 1e-3, 12)[:, None]))
    sgd = start()
    sgd["groups"] = (make_group(0, momentum=0.9),)
    assert not look(0.5, **sgd)
    assert not look(0.5, sites=chain(11, norm_placement="post-norm"), **start())


def test_a_collapse_says_enough() -> None:
    (hit,) = look(1e-5, **start())
    assert hit.severity is None
