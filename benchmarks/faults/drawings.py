"""What is drawn for each rule about numbers: a net, its fault, the measure that shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults.nets import Plan
from benchmarks.faults.training import Training

#: The net of all drawings, unless one says otherwise: 12 blocks of attention and MLP.
BASE = Plan(
    family="pre-norm", task="text", sites=24, width=32, batch=16, optimizer="adamw", lr=1e-3,
    weight_decay=0.01, warmup=0, cosine=False, bf16=False, embedding=1.0, drop=0.0, variant="",
    nested=False, preset="debug", steps=40,
)  # fmt: skip
MLP = {"family": "norm-free-mlp", "task": "flat"}
BY_SITE, BY_STEP = "by site", "by step"


@dataclass(frozen=True)
class Drawing:
    """Two rows of one measure."""

    measure: str
    label: str
    found: str  #: what the rule finds, with its thresholds by name in braces
    fault: str = ""  #: the planting function's name; none where the plan itself is the fault
    along: str = BY_SITE
    row: str = "last"  #: by site: of the "first" or "last" capture, or the first "broken" one
    column: str = "place"  #: by step: the planted "place", or the "median" or "norm" of all columns
    several: str = "median"  #: by step: what a character shows of the steps it stands for; or "max"
    log: bool = True
    extreme: str = "largest"  #: or "smallest": which value stands between first and last
    over: str = ""  #: the measure that the drawn one is divided by
    times: float = 1.0  #: and multiplied by, for the unit
    stage: str = ""  #: a measure of the whole stage, a column of its own
    stage_label: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)  #: where it differs from `BASE`
    sick: Mapping[str, Any] = field(default_factory=dict)  #: and in the sick net alone
    every_n_steps: int = 50  #: between captures of the sick net, with the default preset
    repaired: Callable[[Training], None] | None = None  #: the fault is planted, and this undoes it


def _not_kept(training: Training) -> None:
    training.kept_in.clear()


DRAWINGS: dict[str, Drawing] = {
    "RES001": Drawing(
        "loss", "loss by step", "no lower than {share:g} ln 10 = 2.28, {settled:g} steps long",
        "labels_by_chance", BY_STEP, column="median", log=False,
        plan={**MLP, "sites": 8, "steps": 144},
    ),
    "RES101": Drawing(
        "branch_ratio", "r by site", "one site above {above:g} times the median of its siblings",
        "one_branch_too_large",
    ),
    "RES102": Drawing(
        "branch_ratio", "r by site",
        "r of the first site and its gradient gain above {notable:g} for {lasting:g} steps",
        plan={"steps": 60}, sick={"embedding": 5e-4},
    ),
    "RES103": Drawing(
        "branch_ratio", "r by step", "r is 0 to the end, over {real:g} optimizer steps or more",
        "gate_in_no_group", BY_STEP, log=False, plan={"family": "rezero", "steps": 36},
    ),
    "RES104": Drawing(
        "update_norm", "update by step", "gradients in {real:g} steps, and no update in any",
        "weight_in_no_group", BY_STEP, log=False, plan={"steps": 36},
    ),
    "RES105": Drawing(
        "branch_ratio", "r by site", "B above 2 ln L + {offset:g} = 8.36, at step 0",
        "first_half_unscaled", row="first", log=False, stage="stage_residual_budget",
        stage_label="B", plan={**MLP, "lr": 1e-4, "steps": 1},
    ),
    "RES201": Drawing(
        "rms_sum", "RMS by site", "H' above {initial:g}, at step 0",
        "branches_unscaled", row="first", stage="stage_half_depth_growth_without_largest",
        stage_label="H'", plan={**MLP, "lr": 1e-4, "steps": 1},
    ),
    "RES202": Drawing(
        "mean_shift", "mean^2 / variance by site",
        "median above {level:g}, {settled:g} steps after warm-up",
        "stream_shifted", plan={"lr": 2e-4, "sites": 16, "steps": 120},
    ),
    "RES203": Drawing(
        "branch_ratio", "r by site",
        "median of the last third below {level:g} for {lasting:g} steps",
        "late_branches_small", extreme="smallest",
    ),
    "RES204": Drawing(
        "mean_branch", "mean / RMS of branch", "no negative element, and above {mean:g}",
        "branch_of_one_sign", log=False, over="rms_branch",
    ),
    "RES205": Drawing(
        "mean_shift", "mean^2 / variance by site", "median above {level:g} for {lasting:g} steps",
        "rows_alike", plan={"lr": 5e-4},
    ),
    "RES206": Drawing(
        "cosine", "cosine by site", "below {opposed:g} while r is {size:g} to {drowned:g}",
        "branch_erases", log=False, extreme="smallest", row="last",
    ),
    "RES301": Drawing(
        "grad_sum_norm", "gradient by site", "log10 G beyond +-{decades:g} for 3 captures",
        "gradient_dimmed", extreme="smallest", stage="stage_gradient_ratio", stage_label="G",
    ),
    "RES302": Drawing(
        "grad_sum_norm", "gradient by site",
        "G below {ratio:g} for 3 captures, cosine above {aligned:g}",
        extreme="smallest", stage="stage_gradient_ratio", stage_label="G",
        plan={"family": "post-norm", "sites": 28, "lr": 3e-4, "warmup": 30, "steps": 60},
        sick={"lr": 6e-3, "warmup": 0},
    ),
    "RES303": Drawing(
        "gradient_norm", "gradient by step",
        "{several:g} steps more than {sigmas:g} sigmas above those before them",
        "loss_spikes", BY_STEP, column="norm", several="max",
        plan={**MLP, "sites": 8, "steps": 108},
    ),
    "RES401": Drawing(
        "update_ratio", "median u by step", "above {hot:g} for 3 steps",
        along=BY_STEP, column="median", sick={"lr": 0.1},
        plan={"steps": 36},
    ),
    "RES402": Drawing(
        "update_ratio", "median u by step",
        "below {cold:g} for {lasting:g} steps ({debug:g} with the debug preset)",
        along=BY_STEP, column="median", extreme="smallest", sick={"lr": 1e-8}, plan={"steps": 36},
    ),
    "RES403": Drawing(
        "changed_share", "share that moved", "below {changed:g} for 3 steps",
        "weights_in_bfloat16", BY_STEP, column="median", log=False, extreme="smallest",
        plan={"lr": 3e-5, "steps": 36},
    ),
    "RES404": Drawing(
        "update_norm", "update by step", "a frozen weight that moved in 3 steps",
        "frozen_and_decayed", BY_STEP, log=False, repaired=_not_kept, plan={"steps": 36},
    ),
    "RES902": Drawing(
        "max_sum", "largest |y| by site", "the first number that is not finite (a point)",
        "branch_not_finite", row="broken",
    ),
    "RES903": Drawing(
        "host_ms", "share of time by step", "above {budget:g}, without the first {early:g} steps",
        along=BY_STEP, column="median", several="mean", over="seconds", times=1e-3, log=False,
        every_n_steps=1,
        plan={**MLP, "sites": 8, "width": 128, "batch": 256, "preset": "train", "steps": 288},
    ),
}  # fmt: skip
