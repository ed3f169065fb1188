"""Exactness: one captured training step against a forward written out by hand, on many nets."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn

from skipscope.history import History
from skipscope.monitor import Monitor
from tests.capture import hf_nets, image_nets, more_nets, nets, odd_nets
from tests.capture.nets import Parallel, Stack, bf16, bf16_tokens, combined, step_parallel, tokens
from tests.capture.nets import walk_stack as stack
from tests.capture.reference import BACKWARD, BAR, Walk, gradients, norm
from tests.capture.shared_cases import CASES as SHARED
from tests.capture.shared_cases import load
from tests.capture.steps import Case, Outcome, check, errors, expected_numbers, run

ALL = [*image_nets.CASES, *nets.CASES, *odd_nets.CASES, *more_nets.CASES]
_NAMES = {"ids": lambda case: case.name}


@pytest.mark.parametrize("case", ALL, **_NAMES)
def test_net(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    check(next(case for case in hf_nets.cases() if case.name == name))


@pytest.mark.parametrize("seed", range(3))
def test_stochastic_depth_with_any_draw(seed: int) -> None:
    case = next(case for case in nets.CASES if case.name == "stochastic depth")
    check(case, run(case, seed))


# ---------------------------------------------------------------------- found wrong once
MIXER = Case("mixer", odd_nets.stacked(odd_nets.TokenMixer), tokens(), stack(odd_nets.step_mixer))


@pytest.mark.parametrize("case", [MIXER, more_nets.CONVNEXT], **_NAMES)
def test_rows_are_samples_where_the_last_weight_acts_on_another_axis(case: Case) -> None:
    check(case)


def test_parallel_branches_keep_their_operands() -> None:
    build = bf16(partial(Stack, lambda k: Parallel(False, 1e-3)))
    check(Case("parallel", build, bf16_tokens, stack(step_parallel)))


def test_presence_of_a_negative_shortcut() -> None:
    case = next(case for case in nets.CASES if case.name == "F - x")
    check(combined_like(case))


def combined_like(case: Case) -> Case:
    """The same case with nothing excused."""
    return Case(case.name, case.build, case.inputs, case.walk)


# ---------------------------------------------------------------------- where numbers are absent
def outcome_of(name: str) -> Outcome:
    return run(next(case for case in odd_nets.CASES if case.name == name))


def test_detached_shortcut_has_identity_part_0() -> None:
    history = outcome_of("detached shortcut").history
    assert (history.table("identity_gradient").values == 0).all()
    assert (history.table("branch_gradient").values > 0).all()
    assert {site.shortcut_source for site in history.sites.sites} == {"detached"}


def test_no_grad_in_the_branch_has_branch_part_0() -> None:
    history = outcome_of("no_grad in the branch").history
    assert (history.table("branch_gradient").values == 0).all()
    assert (history.table("branch_ratio").values > 0.01).all()


def test_overflow_is_seen_with_finite_operands() -> None:
    history = outcome_of("float16 overflow at the sum").history
    assert history.table("max_sum").values[0, 0] > 65_504
    assert math.isfinite(history.table("max_shortcut").values[0, 0])
    assert history.table("rms_sum").values[0, 0] > 1_000


def test_broadcast_branch_is_measured_as_added() -> None:
    outcome = outcome_of("broadcast")
    assert all(site.broadcast for site in outcome.history.sites.sites)
    branch = outcome.history.table("rms_branch").values
    assert branch.all()


def test_small_scale_in_bf16_is_no_dead_branch() -> None:
    outcome = run(next(case for case in nets.CASES if case.name == "LayerScale 1e-6 in bf16"))
    parts = outcome.history.table("branch_gradient").values
    assert (parts > 0).all()
    ratio = outcome.history.table("gradient_branch_ratio").values
    assert ((ratio > 1e-8) & (ratio < 1e-5)).all()


# ---------------------------------------------------------------------- cases of the public record
@pytest.mark.parametrize("name", SHARED)
def test_shared_case(name: str) -> None:
    module = load(name)
    model = module.build()
    x, y = next(module.batches())
    outcome = shared_outcome(module, model, x, y)
    off = {key: value for key, value in errors(outcome).items() if not value <= BAR}
    assert not off, off
    compare_with_the_case(module, outcome, x, y)


def shared_outcome(module: object, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Outcome:
    """The case's own walk feeds our reference."""
    rewritten = module.__name__.startswith("05")

    def walk(m: nn.Module, taps: Walk, x: torch.Tensor) -> torch.Tensor:
        def tap(
            name: str, xin: torch.Tensor, s: torch.Tensor, f: torch.Tensor, a: torch.Tensor
        ) -> None:
            if s is not None and not module.__name__.startswith("60"):
                place, _, part = name.partition("#")
                rows = "token" if a.dim() == 3 else "sample"
                x = s if rewritten else xin
                taps.add(place, x, s, f, y=a, rows=rows, nested=part == "inner")

        return module.walk(m, x, tap)

    case = Case(
        module.__name__, lambda: model, lambda: (x,), walk, loss=lambda out: module.loss_fn(out, y)
    )
    return run(case, seed=122)


def compare_with_the_case(
    module: object, outcome: Outcome, x: torch.Tensor, y: torch.Tensor
) -> None:
    """Its numbers, but for those of x's gradient, which its way of measuring adds to."""
    rows, _, _ = module.measure(module.build(), x, y)
    rows = [row for row in rows if row["s"] is not None] if outcome.expected else []
    rows.sort(key=lambda row: row["name"].endswith("#inner"))
    assert len(rows) == len(outcome.expected)
    names = {"r": "branch_ratio", "cos": "cosine", "ga": "grad_sum_norm"}
    for at, row in enumerate(rows):
        for theirs, ours in names.items():
            table = outcome.history.table(ours)
            if not table.missing[0, at] and math.isfinite(row[theirs]):
                close = pytest.approx(row[theirs], rel=2e-3, abs=2e-3 if ours == "cosine" else 0)
                assert table.values[0, at] == close, (theirs, row["name"])


def test_case_07_depth_multiplier() -> None:
    module = load(next((name for name in SHARED if name.startswith("07")), "07"))
    torch.manual_seed(0)
    model = module.build()
    optimizer = module.optimizer(model)
    monitor = Monitor(model, optimizer, every_n_steps=30, updates="off", on_error="raise")
    batches = module.batches()
    first = next(module.batches())
    for step in range(31):
        x, y = next(batches) if step < 30 else first
        if step in (0, 30):
            expected = multiplier_by_hand(module, model, x, y)
        with monitor.step():
            optimizer.zero_grad()
            module.loss_fn(model(x), y).backward()
            optimizer.step()
        if step in (0, 30):
            table = monitor.history.table("depth_multiplier")
            assert table.steps[-1] == step
            assert table.values[-1, 0] == pytest.approx(expected, rel=BAR)
    values = dict(zip(table.steps.tolist(), table.values[:, 0].tolist(), strict=True))
    assert values[0] == pytest.approx(1.31, abs=0.005)
    assert values[30] == pytest.approx(5.3e-6, rel=0.05)
    assert factors_multiply(monitor.history)


def multiplier_by_hand(module: object, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    taps: list[tuple[torch.Tensor, torch.Tensor]] = []
    out = module.walk(model, x, lambda name, xin, s, f, a: taps.append((xin, a)))
    gx, gy = gradients(module.loss_fn(out, y), [taps[0][0], taps[-1][1]])
    return norm(gx) / norm(gy)


def factors_multiply(history: History) -> bool:
    """Sites times links is the whole."""
    whole, sites, links = (
        history.table(f"{name}_multiplier").values for name in ("depth", "site", "link")
    )
    return bool((abs(sites * links / whole - 1) < 1e-9).all())


def test_expected_numbers_know_a_hand_computed_net() -> None:
    """The reference itself, on numbers that can be checked on paper."""
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    taps = Walk()
    y = taps.add("m", x, x, 2 * x.flip(1))
    numbers = expected_numbers(taps, y.sum())[0]
    assert numbers["branch_ratio"] == pytest.approx(2)
    assert numbers["cosine"] == pytest.approx(24 / 25)
    assert numbers["growth"] == pytest.approx(math.sqrt(11**2 + 10**2) / 5)
    assert numbers["branch_gradient"] == pytest.approx(2 * math.sqrt(2))
    assert numbers["shortcut_presence"] == pytest.approx(3)
    assert set(BACKWARD) <= set(numbers)


def test_combined_helper_declares_what_it_builds() -> None:
    case = combined("x + F", torch.add)
    assert case.build()(case.inputs()[0]).shape == (4, 6, 5)
