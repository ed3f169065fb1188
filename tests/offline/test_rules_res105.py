"""RES105: the residual budget at step 0, and an initialisation that was not scaled with depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import Parameter, Run, SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_parameter, make_site
from tests.offline.rule_values import chain, staged, table

RULE = RULES["RES105"]


def look(
    budget: Any,
    sites: SiteMap | None = None,
    columns: tuple[str, ...] = ("stream 0 stage 0",),
    more: Any = None,
    run: Run | None = None,
    first: int = 0,
) -> tuple[Hit, ...]:
    values = np.atleast_2d(np.asarray(budget, float))
    steps = np.arange(first, first + len(values))
    given = {
        "stage_residual_budget": table("stage_residual_budget", values, columns, steps),
        "sites": sites or chain(16),
        "run": run or Run(),
        "captures": steps,
    }
    return RULE.run({**given, **(more or {})})


def limit(sites: int, offset: float = 2.0) -> float:
    return 2 * np.log(sites) + offset


def test_a_limit_below_the_law_has_a_minus() -> None:
    lower = RULE.with_overrides({"offset": -0.5})
    values = table("stage_residual_budget", np.array([[9.0]]), ("stream 0 stage 0",), np.arange(1))
    given = {"sites": chain(16), "run": Run(), "captures": np.arange(1)}
    (hit,) = lower.run({"stage_residual_budget": values, **given})
    assert hit.expectation.startswith("B below 2 ln L - 0.500 = 5.05 for 16 sites")  # 2 ln 16 5.545


@pytest.mark.parametrize("sites", [8, 16, 48])
def test_above_the_law(sites: int) -> None:
    assert not look(limit(sites) - 0.01, chain(sites))
    (hit,) = look(limit(sites) + 0.01, chain(sites))
    assert (hit.where, hit.severity) == (("model",), "warning")
    assert (hit.first_step, hit.last_step) == (0, 0)


@pytest.mark.parametrize(("sites", "error"), [(16, limit(16, 4.0)), (48, 0.4 * 48)])
def test_far_above_is_an_error(sites: int, error: float) -> None:
    assert [hit.severity for hit in look(error - 0.01, chain(sites))] == ["warning"]
    assert [hit.severity for hit in look(error + 0.01, chain(sites))] == ["error"]


def test_numbers_of_the_public_cases() -> None:
    (hit,) = look(53.9, chain(48))
    assert hit.severity == "error"
    assert "2.56e+23" in hit.message or "e+23" in hit.message
    assert not look(1.95, chain(48))
    assert look(10.76)[0].severity == "error"


def test_linear_zero_and_scaled_starts_are_silent() -> None:
    for budget in (np.log(17), 0.0, 0.995, 4.0):
        assert not look(budget)


def test_only_step_0_of_a_fresh_run() -> None:
    assert not look([[1.0], [50.0], [50.0]])
    for settings in ({"run": Run(fresh=False)}, {"first": 1}):
        with pytest.raises(NotMeasurable, match="step 0 of a fresh run"):
            look(50.0, **settings)


def test_post_norm_is_left_out() -> None:
    with pytest.raises(NotMeasurable, match="not rescaled"):
        look(50.0, chain(16, norm_placement="post-norm"))


@pytest.mark.parametrize("how", [{"kind": "scaled"}, {"link": ("scale",)}])
def test_a_stream_that_is_scaled_is_not_judged(how: Any) -> None:
    """(x + F)/sqrt(2) with r = 1: the variance stays, and B is L ln 2 = 16.6 for 24 sites."""
    with pytest.raises(NotMeasurable, match="not rescaled"):
        look(16.6, chain(24, **how))


def test_each_stage_for_itself() -> None:
    """ResNet-152: B of each stage is small, their sum is not."""
    columns = tuple(f"stream 0 stage {k}" for k in range(4))
    assert not look([1.5, 4.0, 7.0, 1.5], staged(3, 8, 36, 3), columns)
    (hit,) = look([9.0, 9.0, 7.0, 9.0], staged(3, 8, 36, 3), columns)
    assert hit.evidence["stage"] == "stream 0 stage 1"


def test_seven_sites_say_nothing() -> None:
    with pytest.raises(NotMeasurable, match="needs 8 sites"):
        look(50.0, chain(7))


# ------------------------------------------------------------------ depth-scaled initialisation
def transformer(blocks: int = 6, width: int = 48, wide: int = 192) -> tuple[Any, Any]:
    """Sites and parameters: attention and MLP of two matrices each."""
    sites, parameters = [], []
    for k in range(2 * blocks):
        part, inner = ("attn", 3 * width) if k % 2 == 0 else ("mlp", wide)
        own = []
        for name, shape in (
            ("in", (inner, width)),
            ("bias", (inner,)),
            ("out", (width, width if part == "attn" else wide)),
        ):
            role = f"{part}.{name}"
            path = f"h.{k // 2}.{role}"
            own.append(path)
            parameters.append(
                make_parameter(len(parameters), name=path, shape=shape, role=role, sites=(k,))
            )
        sites.append(
            make_site(k, module=f"h.{k // 2}", source=f"n.py:{k % 2}", parameters=tuple(own))
        )
    return make_map(*sites, embedding_fed=True), tuple(parameters)


def scales(parameters: tuple[Parameter, ...], **by_role: float) -> dict[str, Any]:
    """RMS of the matrices at step 0, .02 unless given; with 2 % of noise."""
    noise = 1 + 0.02 * np.sin(np.arange(len(parameters)))
    rms = [by_role.get(p.role.replace(".", "_"), 0.02) for p in parameters]
    columns = tuple(p.name for p in parameters)
    return {"parameters": parameters, "weight_rms": table("weight_rms", rms * noise, columns)}


def test_no_last_matrix_is_scaled() -> None:
    sites, parameters = transformer()
    (hit,) = look(1.0, sites, more=scales(parameters))
    assert hit.severity == "info"
    assert hit.evidence["s/sqrt(L)"] == pytest.approx(0.02 / np.sqrt(12), rel=0.05)
    assert "h.0.attn.out" in hit.message


def test_all_are_scaled() -> None:
    sites, parameters = transformer()
    small = 0.02 / np.sqrt(12)
    assert not look(1.0, sites, more=scales(parameters, attn_out=small, mlp_out=small))


def test_one_of_two_kinds_is_scaled() -> None:
    sites, parameters = transformer()
    (hit,) = look(1.0, sites, more=scales(parameters, attn_out=0.02 / np.sqrt(12)))
    assert "although h.0.attn.out" in hit.message
    assert "does not reach" in hit.cause
    assert "h.5.mlp.out" in hit.message


def test_default_and_other_initialisations_are_silent() -> None:
    """Default Linear layers: 1/sqrt(3 fan_in), so a wide MLP's last matrix is half of the rest."""
    sites, parameters = transformer()
    default = {"attn_in": 0.083, "attn_out": 0.083, "mlp_in": 0.083, "mlp_out": 0.0417}
    assert not look(1.0, sites, more=scales(parameters, **default))
    assert not look(1.0, sites, more=scales(parameters, attn_in=0.05))
    square, matrices = transformer(width=48, wide=48)
    assert not look(1.0, square, more=scales(matrices))


def test_zero_initialised_last_matrices_are_silent() -> None:
    sites, parameters = transformer()
    assert not look(0.0, sites, more=scales(parameters, attn_out=0.0, mlp_out=0.0))
