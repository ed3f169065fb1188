"""One cell: the plain arm is a plain net, arms share weights and batches, what is read is right."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skipscope import History
from skipscope.evidence.outcome import Cell, Evidence, Outcome
from skipscope.evidence.store import load
from skipscope.find import find_residuals
from skipscope.study import Study, nets
from skipscope.study.data import Batches, Data
from skipscope.study.pool import run_cell
from skipscope.study.readings import Blocks, effective_rank
from tests.study.nets import ByHand, data, net, normed, study


def outcomes(evidence: Evidence) -> dict[str, Outcome]:
    return {outcome.cell.key: outcome for outcome in evidence.outcomes}


def by_hand(model: nn.Module, seed: int, steps: int, size: int) -> tuple[list[float], nn.Module]:
    """The losses of a training written out: shuffled epochs of full batches, SGD."""
    x, y, *_ = data()
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    losses: list[float] = []
    while len(losses) < steps:
        epoch = torch.randperm(len(x), generator=order)
        for start in range(0, len(x) - size + 1, size):
            if len(losses) == steps:
                break
            batch = epoch[start : start + size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model.eval()


@pytest.mark.parametrize("norm", [False, True])
def test_the_plain_arm_is_the_net_written_without_its_shortcuts(tmp_path: Path, norm: bool) -> None:
    steps, seed = 12, 3
    made = study(normed if norm else net, depths=(3,), seeds=(seed,), steps=steps)
    outcome = outcomes(made.run(tmp_path, progress=False))["plain-d003-s3-lr0.01"]
    torch.manual_seed(seed)
    plain = normed(3, by_hand=True) if norm else net(3, ByHand)
    losses, plain = by_hand(plain, seed, steps, 8)
    history = History.load(tmp_path / "cells" / outcome.cell.key)
    assert history.fact("loss").tolist() == losses  # to the last bit
    x, y, x_val, y_val = data()
    with torch.no_grad():
        assert outcome.train_loss == pytest.approx(F.cross_entropy(plain(x), y).item(), rel=1e-6)
        wrong = (plain(x_val).argmax(1) != y_val).float().mean().item()
    assert outcome.validation_error == pytest.approx(wrong)
    assert (outcome.train_loss_batch is not None) == norm


def test_arms_share_their_weights_and_batches(tmp_path: Path) -> None:
    found = outcomes(study().run(tmp_path, progress=False))
    assert len(found) == 3 * 2 * 2
    for depth in (1, 2):
        for seed in (0, 1):
            group = [o for o in found.values() if (o.cell.depth, o.cell.seed) == (depth, seed)]
            assert {o.cell.arm for o in group} == {"plain", "residual", "idle"}
            assert len({o.weights for o in group}) == len({o.batches for o in group}) == 1
    assert len({o.weights for o in found.values()}) == 4  # depths and seeds do differ
    assert len({o.batches for o in found.values()}) == 2


def test_parameters_with_gradient(tmp_path: Path) -> None:
    found = outcomes(study(seeds=1, depths=(2,)).run(tmp_path, progress=False))
    stem, block, head = 4 * 6 + 6, 6 * 6 + 6, 6 * 3 + 3
    everything = stem + 2 * block + head
    assert {o.parameters for o in found.values()} == {everything}
    assert found["plain-d002-s0-lr0.01"].parameters_with_gradient == everything
    assert found["residual-d002-s0-lr0.01"].parameters_with_gradient == everything
    assert found["idle-d002-s0-lr0.01"].parameters_with_gradient == stem + head


def test_readings_of_the_first_step(tmp_path: Path) -> None:
    made = study(seeds=1, depths=(2,), steps=12)
    found = outcomes(made.run(tmp_path, progress=False))
    readings = found["residual-d002-s0-lr0.01"].readings
    assert [reading.step for reading in readings] == [0, 1, 10, 11]
    torch.manual_seed(0)
    model = net(2)
    x, y, *_ = data()
    batch = Batches(len(x), 8, 12, 0).order[0]
    loss = F.cross_entropy(model(x[batch]), y[batch])
    loss.backward()
    first = readings[0]
    assert first.loss == loss.item()
    for block, gradient, update in (
        (model[1], first.gradient_first, first.update_first),
        (model[2], first.gradient_last, first.update_last),
    ):
        size = math.sqrt(sum(float(p.grad.double().square().sum()) for p in block.parameters()))
        weight = math.sqrt(
            sum(float(p.detach().double().square().sum()) for p in block.parameters())
        )
        assert gradient == pytest.approx(size, rel=1e-6)
        assert update == pytest.approx(0.01 * size / weight, rel=1e-4)  # SGD's first step
    with torch.no_grad():
        stream = model[0](x)
        features = model[2](model[1](stream)).double()
        shares = torch.linalg.svdvals(features)
        shares /= shares.sum()
        assert first.effective_rank == pytest.approx(
            math.exp(-sum(float(p * p.log()) for p in shares)), rel=1e-6
        )
        in_batch = model[0](x[batch])
        ratios = []
        for block in (model[1], model[2]):
            branch = block.branch(in_batch)
            ratios.append(float(branch.norm() / in_batch.norm()))
            in_batch = in_batch + branch
    assert first.r_smallest == pytest.approx(min(ratios), rel=1e-4)
    assert first.r_largest == pytest.approx(max(ratios), rel=1e-4)
    assert first.r_median == pytest.approx(sum(ratios) / 2, rel=1e-4)
    assert found["plain-d002-s0-lr0.01"].readings[0].r_median is None
    assert found["idle-d002-s0-lr0.01"].readings[0].r_median == 0


@pytest.mark.parametrize(("directions", "rank"), [([3.0, 3.0], 2.0), ([5.0], 1.0)])
def test_effective_rank_of_known_spectra(directions: list[float], rank: float) -> None:
    assert effective_rank(torch.diag(torch.tensor([*directions, 0.0]))) == pytest.approx(rank)


def test_effective_rank_of_two_unequal_directions() -> None:
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert effective_rank(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(math.exp(entropy))
    assert effective_rank(torch.tensor([[float("inf")]])) is None


def test_a_run_that_diverges_is_written_down_and_ends(tmp_path: Path) -> None:
    made = study(seeds=1, depths=(2,), steps=60, lr=1e30)
    found = made.run(tmp_path, progress=False).outcomes
    gone = [outcome for outcome in found if not outcome.finite]
    assert gone
    for outcome in gone:
        assert outcome.steps < 60
        assert outcome.train_loss == outcome.validation_loss == math.inf
        assert outcome.train_error == outcome.validation_error == 1


def test_steps_to_90_is_the_first_full_window(tmp_path: Path) -> None:
    x = torch.eye(2).repeat(20, 1)
    labels = x.argmax(1)

    model = nn.Sequential(nn.Linear(2, 2), _Tiny(), nn.Linear(2, 2))
    for layer in (model[0], model[2]):  # right from the start
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    made = Study(
        model, (x, labels, x, labels), arms=("plain", "residual"), seeds=1, steps=7, batch_size=4,
        plain_start="keep",
    )  # fmt: skip
    found = {o.cell.arm: o for o in made.run(tmp_path, progress=False).outcomes}
    assert found["residual"].cell.depth == 1
    assert found["residual"].steps_to_90 == 4  # five batches: steps 0 to 4


@pytest.mark.parametrize(
    ("steps", "lr", "expected"),
    [(4, 0.0, None), (5, 0.0, math.inf), (60, 1e30, math.inf)],  # too few to tell; never; diverged
)
def test_steps_to_90_that_never_come_and_that_are_not_read(
    tmp_path: Path, steps: int, lr: float, expected: float | None
) -> None:
    made = study(seeds=1, depths=(2,), steps=steps, lr=lr)
    made.run(tmp_path, progress=False)
    assert {one.steps_to_90 for one in load(tmp_path).outcomes if one.finite == (lr < 1)} == {
        expected
    }


class _Tiny(nn.Module):
    """Adds next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        nn.init.constant_(self.fc.weight, 1e-3)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(x)


def test_the_callers_random_state_and_threads_stay(tmp_path: Path) -> None:
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    study(seeds=1, depths=(1,), steps=2).run(tmp_path, progress=False)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def test_a_cell_twice_is_the_same_cell(tmp_path: Path) -> None:
    made, cell = study(), Cell("residual", 2, 1, 0.01)
    first = run_cell(made._plan, cell, tmp_path)
    again = run_cell(made._plan, cell, tmp_path)
    assert (first.train_loss, first.readings) == (again.train_loss, again.readings)
    assert len(list((tmp_path / "cells" / cell.key).glob("history-*.skip"))) == 1


def test_batches_are_shuffled_epochs_of_full_batches() -> None:
    order = Batches(10, 3, 7, seed=1).order
    assert order.shape == (7, 3)
    for epoch in (order[:3], order[3:6]):
        assert len(set(epoch.flatten().tolist())) == 9  # one of ten is left out, none comes twice
    assert Batches(10, 3, 7, seed=1).fingerprint == Batches(10, 3, 7, seed=1).fingerprint
    assert Batches(10, 3, 7, seed=2).fingerprint != Batches(10, 3, 7, seed=1).fingerprint


def test_two_datasets_are_data() -> None:
    x, y, x_val, y_val = data()
    pairs = torch.utils.data.TensorDataset(x, y), torch.utils.data.TensorDataset(x_val, y_val)
    assert Data.of(pairs).fingerprint == Data.of((x, y, x_val, y_val)).fingerprint
    with pytest.raises(TypeError, match="two datasets"):
        Data.of(x)
    with pytest.raises(ValueError, match="45 inputs and 15 targets"):
        Data.of((x, y_val, x_val, y_val))


# ------------------------------------------------------------------------ where features are read
class _Conv(nn.Module):
    """One convolution behind its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(torch.relu(x))


class _Last(nn.Module):
    """The same where height and width come first: channels are the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(torch.relu(x))


class _Pair(_Conv):
    """What returns more than the stream."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


def _rank(rows: torch.Tensor) -> float:
    shares = torch.linalg.svdvals(rows.double())
    shares = shares / shares.sum()
    return math.exp(-sum(float(p * p.log()) for p in shares))


@pytest.mark.parametrize("case", ["head", "no head", "channels last", "a pair"])
def test_features_are_rows_of_channels(case: str) -> None:
    torch.manual_seed(0)
    block = {"channels last": _Last, "a pair": _Pair}.get(case, _Conv)()
    parts = [block] if case != "head" else [block, nn.Conv2d(4, 3, 1)]
    shape = (7, 5, 6, 4) if case == "channels last" else (7, 4, 5, 6)
    model, x = nn.Sequential(*parts), torch.randn(shape)
    with torch.no_grad():
        out = block(x)
    out = out[0] if isinstance(out, tuple) else out
    rows = out if case == "channels last" else out.permute(0, 2, 3, 1)
    found = Blocks(model, list(find_residuals(model, x).sites), x).features(x)
    assert effective_rank(found) == pytest.approx(_rank(rows.reshape(-1, 4)), rel=1e-6)


@pytest.mark.parametrize("net", [nets.mlp(4), nets.cnn(8), nets.transformer(1)])
def test_a_site_of_a_named_studys_net_has_the_line_of_its_sum(net: nn.Module) -> None:
    lines = Path(nets.__file__).read_text().splitlines()
    for site in find_residuals(net, torch.randn(2, 64)).sites:
        file, line = site.source.split(":")
        assert file == "nets.py"
        assert " + " in lines[int(line) - 1]
