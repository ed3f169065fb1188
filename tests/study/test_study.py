"""The user's own model, the studies that come along, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from skipscope.cli import main
from skipscope.cli.study import NAMES
from skipscope.evidence.outcome import ArmFacts, Cell
from skipscope.evidence.store import load, load_outcome, load_plan
from skipscope.study import Arm, Study, StudyError, scaled
from skipscope.study.named import NAMED, digits_data
from skipscope.study.nets import cnn, mlp
from tests.evidence import smoke as kept_smoke
from tests.study.nets import WIDTH, Block, data, net, study


# ------------------------------------------------------------------------ the user's own
class Projecting(nn.Module):
    """A block whose shortcut is a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.projection, self.fc = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x) + self.fc(torch.relu(x))


def test_what_becomes_of_projections_is_told_where_there_are_some(tmp_path: Path) -> None:
    assert "P(x)" not in study(seeds=1).run(tmp_path, progress=False).protocol


def test_projections_are_kept_or_cut(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, WIDTH), Block(), Projecting(), nn.Linear(WIDTH, 3))
    projection = WIDTH * WIDTH + WIDTH
    found = {}
    for way in ("keep", "cut"):
        made = study(model, depths=None, seeds=1, projections=way)
        evidence = made.run(tmp_path / way, progress=False)
        plain = next(o for o in evidence.outcomes if o.cell.arm == "plain")
        assert plain.cell.depth == 2  # the model's sites
        found[way] = plain.parameters - plain.parameters_with_gradient
        cut = evidence.protocol["plain"]
        words = {"keep": "kept in the plain arms", "cut": "cut too"}
        assert evidence.protocol["P(x)"] == words[way]
        assert cut == (f"shortcuts cut: {1 if way == 'keep' else 2} of 2 at depth 2")
    assert found == {"keep": 0, "cut": projection}


def test_a_model_is_one_depth_and_stays_as_it_is(tmp_path: Path) -> None:
    model = net(3)
    before = [p.clone() for p in model.parameters()]
    evidence = study(model, depths=None).run(tmp_path, progress=False)
    assert {o.cell.depth for o in evidence.outcomes} == {3}
    assert len({o.weights for o in evidence.outcomes}) == 1  # seeds change the batches only
    assert len({o.batches for o in evidence.outcomes}) == 2
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with pytest.raises(ValueError, match="a model has the depth it has"):
        study(model)


def test_a_grid_and_scaled_arms(tmp_path: Path) -> None:
    made = study(arms=("plain", "residual", scaled(0.5)), seeds=1, rates=(0.01, 0.1), grid_depth=2)
    keys = [cell.key for cell in made.cells]
    assert keys == [
        "plain-d001-s0-lr0.01", "plain-d002-s0-lr0.01",
        "residual-d001-s0-lr0.01", "residual-d002-s0-lr0.01",
        "scaled-0.5-d001-s0-lr0.01", "scaled-0.5-d002-s0-lr0.01",
        "plain-d002-s0-lr0.1", "residual-d002-s0-lr0.1",
    ]  # fmt: skip
    evidence = made.run(tmp_path, progress=False)
    assert evidence.rates == (0.01, 0.1)
    ratios = {o.cell: o.readings[0].r_median for o in evidence.outcomes}
    full, half = (ratios[Cell(arm, 1, 0, 0.01)] for arm in ("residual", "scaled-0.5"))
    assert half == pytest.approx(full / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"steps": 0}, "steps must be 1 or more"),
        ({"seeds": 0}, "seeds must be a number from 1 on"),
        ({"seeds": (1, 1)}, "different numbers"),
        ({"depths": ()}, "depths must be whole numbers"),
        ({"arms": ("plain", "idle")}, "needs an arm with the role 'residual'"),
        ({"arms": ("plain", "residuel")}, "no arm 'residuel'"),
        ({"arms": ("plain", "plain", "residual")}, "stands twice"),
        ({"rates": (0.1,), "grid_depth": 7}, "grid_depth must be one of"),
        ({"projections": "drop"}, "projections must be"),
    ],
)
def test_arguments_that_make_no_sense(changed: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        study(**changed)


def test_targets_that_are_no_classes_need_a_word() -> None:
    x, y, x_val, y_val = data()
    with pytest.raises(ValueError, match="say when one is missed"):
        Study(net, (x, y.float(), x_val, y_val.float()))


def test_a_model_without_residual_additions(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no residual addition"):
        study(lambda depth: nn.Linear(4, 3)).run(tmp_path, progress=False)


# ------------------------------------------------------------------------ nets and named studies
def test_digits_are_standardised_by_those_trained_on() -> None:
    made = digits_data()
    pixels = made.x_train.double()
    assert pixels.mean().item() == pytest.approx(0, abs=1e-6)
    assert pixels.std().item() == pytest.approx(1, abs=1e-6)
    # One shift and one factor for all pixels: what was 0 everywhere is one number.
    assert len(made.x_train[:, 0].unique()) == 1
    assert made.x_train.max() > 0 > made.x_train.min()


def test_depth_counts_layers() -> None:
    layers = [m for m in mlp(10).modules() if isinstance(m, nn.Linear)]
    assert len(layers) == 10  # stem and head among them
    convolutions = [m for m in cnn(20).modules() if isinstance(m, nn.Conv2d)]
    assert len([c for c in convolutions if c.kernel_size == (3, 3)]) == 20 - 1  # and the head
    for wrong in (lambda: mlp(11), lambda: mlp(2), lambda: cnn(21)):
        with pytest.raises(ValueError, match="depth must be"):
            wrong()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shortcuts", "norms"])
def test_the_other_studies(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / name
    assert main(["study", name, "--smoke", "--jobs", "1", "--output", str(folder)]) == 0
    evidence = load(folder)
    pairs = {arm.pair for arm in evidence.arms}
    for pair in pairs:
        roles = [arm.role for arm in evidence.arms if arm.pair == pair]
        assert {"plain", "residual", "idle"} <= set(roles)
    assert all(outcome.finite for outcome in evidence.outcomes)
    residual = [o for o in evidence.outcomes if "residual" in o.cell.arm]
    assert all(o.readings[0].r_median > 0 for o in residual)


@pytest.mark.slow
def test_projections_everywhere_hurt_when_deep(tmp_path: Path) -> None:
    """As He et al. 2016 found (arXiv 1603.05027, table 1); .15 and .75 in another such CNN."""
    facts = ArmFacts("projections", "a projection at every block", "other", "model")
    arms = ["plain", "residual", Arm(facts, factory=partial(cnn, shortcut="all"))]
    made = Study(cnn, digits_data(), arms=arms, depths=(56,), seeds=1, steps=150)
    evidence = made.run(tmp_path, progress=False)
    found = {outcome.cell.arm: outcome.train_loss for outcome in evidence.outcomes}
    assert found["plain"] > found["projections"] > 3 * found["residual"]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smoke")
    assert main(["study", "--smoke", "--jobs", "2", "--output", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_the_smoke_study_shows_it(smoke: Path) -> None:
    found = {outcome.cell.key: outcome for outcome in load(smoke).outcomes}
    plain10, plain50, residual10, residual50 = (
        found[f"{arm}-d{depth:03d}-s0-lr0.01"].train_loss
        for arm in ("plain", "residual")
        for depth in (10, 50)
    )
    assert plain50 > 10 * plain10
    assert residual50 < 2 * residual10
    assert not found["control-d050-s0-lr0.01"].finite
    idle = found["idle-d050-s0-lr0.01"].train_loss
    assert idle > 10 * residual50
    # One linear map of rank 32, which no seed changes much: .1038 measured of the same design.
    assert idle == pytest.approx(0.1038, rel=0.1)


@pytest.mark.slow
def test_a_cell_of_it_is_a_normal_run(smoke: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["report", str(smoke / "cells" / "residual-d050-s0-lr0.01")]) == 0
    assert "24" in capsys.readouterr().out  # its sites


def test_the_study_of_the_page_on_verdicts_is_the_one_of_the_command(tmp_path: Path) -> None:
    """Where it changed, `tests/evidence/smoke.py` says how the page is written anew."""
    kept, made = load_plan(kept_smoke.unpacked(tmp_path)), NAMED["digits"](smoke=True, seeds=3)
    assert kept.cells == made.cells
    assert kept.evidence.arms == tuple(arm.facts for arm in made._plan.arms)
    assert (kept.evidence.name, kept.evidence.title) == (made.name, made.title)


# ------------------------------------------------------------------------ the command line
def test_a_report_trains_nothing_and_needs_no_torch(tmp_path: Path) -> None:
    study(seeds=1).run(tmp_path, progress=False)
    code = (
        "import sys\nfrom skipscope.cli import main\n"
        f"assert main(['study', '--report', {str(tmp_path)!r}]) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_where_there_is_no_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--report", str(tmp_path)]) == 2
    assert "holds no study.json" in capsys.readouterr().err


def test_folders_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Option, value, and what to give instead."""
    script = tmp_path / "study.json"
    script.write_text("{}")
    for option, value, told in (
        ("--report", script, f"skipscope: {script}: holds no study.json, so it is no study; give"),
        ("--output", script, f"skipscope: --output {script}: is a file; give a folder that can"),
        ("--output", script / "in", f"--output {script / 'in'}: Not a directory; give a folder"),
    ):
        assert main(["study", option, str(value)]) == 2
        said = capsys.readouterr().err
        assert said.startswith("skipscope: ")
        assert told in said
    for option in ("--report", "--output"):
        with pytest.raises(SystemExit):
            main(["study", option, ""])
        assert f"argument {option}: '' names no folder; leave" in capsys.readouterr().err


def test_names_of_the_command_line_are_those_of_the_studies() -> None:
    assert tuple(NAMED) == NAMES


def test_outcomes_are_strict_json(tmp_path: Path) -> None:
    made = study(seeds=1, depths=(2,), steps=60, lr=1e30)
    made.run(tmp_path, progress=False)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    written = [
        json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
        for path in tmp_path.rglob("outcome.json")
    ]
    assert "Infinity" in [one["train_loss"] for one in written]
    cell = next(o.cell for o in load(tmp_path).outcomes if not o.finite)
    assert load_outcome(tmp_path, cell).train_loss == float("inf")
