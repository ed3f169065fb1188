"""A plain arm must have a chance: refused, drawn anew, or kept with a note."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from skipscope.evidence import judge
from skipscope.study import Study, StudyError
from skipscope.study.arms import restarted
from skipscope.study.checking import FLOOR, look
from skipscope.study.named import digits
from skipscope.study.nets import cnn
from skipscope.study.starts import depth_scaled, he, scaled_branches, zero_last
from tests.study.nets import WIDTH, Block, ReZero, net, study


@pytest.fixture
def rezero() -> functools.partial[nn.Module]:
    return functools.partial(net, block=ReZero)


def test_a_start_without_gradient_is_refused(tmp_path: Path, rezero) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StudyError, match=r"straw man.*a block has nothing of the gradient"):
        study(rezero, depths=(2, 3)).run(tmp_path, progress=False)
    assert not (tmp_path / "cells").exists()


def test_pytorchs_own_start_is_among_those_that_the_refusal_names(tmp_path: Path) -> None:
    """A default layer passes on 1/sqrt(6) of a gradient, 0.4, and with ReLU less: 0.4^20 = 1e-8."""

    def default(depth: int) -> nn.Module:
        made = net(depth)
        for block in made[1:-1]:
            block.fc.reset_parameters()
        return made

    with pytest.raises(StudyError, match=r"PyTorch's default one in a deep net without norm"):
        study(default, depths=(20,), seeds=1).run(tmp_path, progress=False)


def test_he_gives_it_a_chance(tmp_path: Path, rezero) -> None:  # type: ignore[no-untyped-def]
    made = study(rezero, depths=(3,), seeds=1, plain_start="he")
    evidence = made.run(tmp_path, progress=False)
    plain = next(o for o in evidence.outcomes if o.cell.arm == "plain")
    assert plain.readings[0].gradient_first > 1e-3
    assert "drawn anew" in evidence.protocol["plain"]
    assert "He" in next(arm.title for arm in evidence.arms if arm.role == "plain")
    differs = {arm.role: arm.differs for arm in evidence.arms}
    assert differs["residual"] == "shortcut, and start of the branches"
    assert len({o.weights for o in evidence.outcomes}) == 1  # as the factory drew them


def test_a_start_of_the_users_own_is_looked_at_too(tmp_path: Path, rezero) -> None:  # type: ignore[no-untyped-def]
    made = study(rezero, depths=(3,), seeds=1, plain_start=lambda model, x: None)
    with pytest.raises(StudyError, match="after it was drawn anew"):
        made.run(tmp_path, progress=False)


def test_kept_all_the_same_it_is_noted(tmp_path: Path, rezero) -> None:  # type: ignore[no-untyped-def]
    evidence = study(rezero, depths=(3,), seeds=1, plain_start="keep").run(tmp_path, progress=False)
    assert "no fair comparison" in evidence.protocol["plain"]
    told = "at depth 3 a block has nothing of the gradient at the outputs as it starts"
    assert {arm.name: arm.straw_man for arm in evidence.arms if arm.straw_man} == {"plain": told}
    assert {arm.differs for arm in evidence.arms if arm.role == "residual"} == {"shortcut"}
    (chain,) = judge(evidence).chains
    assert chain.caution.startswith(
        f"plain is a straw man, and no link compares with it: {told}; one seed"
    )
    compared = [link for link in chain.links if link.number in (2, 4, 7)]
    assert {link.answer.state for link in compared} == {"not applicable"}


def test_he_draws_the_branches_only() -> None:
    torch.manual_seed(0)
    model = net(2, ReZero)
    stem = model[0].weight.clone()
    he(model, torch.randn(4, 4))
    assert torch.equal(model[0].weight, stem)
    assert model[1].alpha.item() == 1
    assert not model[1].fc.bias.any()


def test_branches_scaled_for_good() -> None:
    torch.manual_seed(0)
    model = net(4)  # 4 sites: times 1/2
    x = torch.randn(5, 4)
    hidden = model[0](x)
    for block in model[1:5]:
        hidden = hidden + 0.5 * block.branch(hidden)
    expected = model[5](hidden)
    scaled_branches(model, x)
    assert torch.allclose(model(x), expected, atol=1e-6)
    assert all("branch_scale" not in name for name, _ in model.named_parameters())  # not trained


def test_what_is_looked_at_is_the_arms_own_sum() -> None:
    """One block y = a F: dL/dW is a times dL/dy relu(x)^T, so a = 1e-3 leaves about 1e-3 of it."""
    plan = study(depths=(1,))._plan
    plain = plan.arm("plain")
    whole, small = look(plan, plain, 1, 0), look(plan, replace(plain, branch_scale=1e-3), 1, 0)
    assert 1e-4 < small.weakest / whole.weakest < 1e-2
    assert (whole.cut, small.cut) == (1, 1)


def test_kept_projections_are_not_counted_as_cut() -> None:
    """Three stages of one block each; the second and the third begin with a projection."""
    x, y = torch.randn(8, 64), torch.arange(8)
    plan = Study(cnn, (x, y, x, y), depths=(8,))._plan
    plain = plan.arm("plain")
    for arm in (plain, replace(plain, branch_scale=0.5)):
        found = look(plan, arm, 8, 0)
        assert (found.cut, found.sites) == (1, 3)


class Projected(Block):
    """Its shortcut is a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x) + self.branch(x)


def test_a_plain_arm_that_would_leave_out_nothing_is_refused(tmp_path: Path) -> None:
    factory = functools.partial(net, block=Projected)
    with pytest.raises(StudyError, match=r"'plain' would be no plain one: at depth 1 .*='cut'"):
        study(factory).run(tmp_path / "keep", progress=False)
    evidence = study(factory, projections="cut").run(tmp_path / "cut", progress=False)
    assert evidence.protocol["plain"] == "shortcuts cut: 1 of 1 at depth 1, 2 of 2 at depth 2"


def test_hes_start_in_deep_nets_is_no_straw_man(tmp_path: Path) -> None:
    plan = digits(smoke=True)._plan
    plain = plan.arm("plain")
    assert look(plan, plain, 100, 0).weakest > 10 * FLOOR
    assert look(plan, restarted(plain, zero_last, ""), 10, 0).weakest == 0
    assert look(plan, restarted(plain, depth_scaled, ""), 50, 0).weakest < 1e-12
