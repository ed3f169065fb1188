"""Faults from the public record, each in a script of its own, through the plain loop.

The scripts lie beside this repository, in ../shared/cases. Each builds a model, its batches, loss
and optimizer, and says in `EXPECT` which faults it holds, or that it is healthy. Every script that
can `walk()` its additions is run as it is, one that is dropped into the folder too.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skipscope import Monitor
from skipscope.records import Diagnosis, Finding

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "cases"

#: The rules that may find a fault of each kind, as the folder's INDEX.md has them.
RULES_OF = {
    "shortcut_missing": ("RES503",),
    "shortcut_doubled": ("RES503",),
    "shortcut_scaled": ("RES501",),
    "shortcut_altered": ("RES507",),
    "shortcut_detached": ("RES304",),
    "shortcut_dropped": ("RES506",),
    "one_sided_branch": ("RES204",),
    "branch_dominance": ("RES101",),
    "dead_branch": ("RES103",),
    "blow_up": ("RES201",),
    "vanishing_gradient": ("RES301", "RES302"),
    "nonfinite": ("RES902",),
    "no_gradient": ("RES104",),
    "no_update": ("RES104",),
    "not_in_optimizer": ("RES104", "RES103"),  # RES103 names the parameter as its cause
    "frozen_but_changing": ("RES404",),
    "broadcast_add": ("RES502",),
    "token_collapse": ("RES205",),
    "erasing_branch": ("RES206",),
    "shared_instance": ("RES505",),
    "init_scale_info": ("RES105",),
}

#: Rules whose finding rightly reaches further than the fault: what lies in front of a parameter
#: without a gradient has none either, and a gradient that fades does so over many blocks.
SPREADING = {"RES104", "RES301", "RES302"}


def scripts() -> list[Any]:
    """The scripts that are faults of a model, or healthy; the others are traps for hooks."""
    found = [path for path in sorted(FOLDER.glob("*.py")) if "\ndef walk(" in path.read_text()]
    if not found:
        reason = f"no cases: {FOLDER.name}/ does not lie beside the repository"
        return [pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(path, id=path.stem) for path in found]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"case_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def diagnosis_of(case: ModuleType) -> Diagnosis:
    """What the debug preset says after the case's own number of steps."""
    model = case.build()
    optimizer, batches = case.optimizer(model), case.batches()
    monitor = Monitor(model, optimizer, preset="debug", on_error="raise", report=[])
    for _ in range(case.STEPS):
        x, y = next(batches)
        with monitor.step():
            optimizer.zero_grad()
            case.loss_fn(model(x), y).backward()
            optimizer.step()
    monitor.close()
    return monitor.diagnose()


def is_at(place: str, wanted: str) -> bool:
    """Whether a finding's place is the one wanted, or a part of it."""
    return place == wanted or place.startswith(f"{wanted}.")


def shows(finding: Finding, wanted: str, kind: str) -> bool:
    return finding.code in RULES_OF[kind] and any(is_at(place, wanted) for place in finding.where)


def is_expected(finding: Finding, faults: list[tuple[str, str]]) -> bool:
    """Whether the places that a finding names hold faults of its kind."""
    wanted = [where for where, kind in faults if finding.code in RULES_OF[kind]]
    hits = [any(is_at(place, where) for where in wanted) for place in finding.where]
    return any(hits) if finding.code in SPREADING else all(hits)


def grave(diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.roots if finding.severity != "info"]


def in_words(findings: tuple[Finding, ...] | list[Finding]) -> str:
    lines = (f"{f.severity} {f.code} {f.where} after {f.follows}: {f.message}" for f in findings)
    return "\n".join(lines) or "nothing"


@pytest.mark.parametrize("path", scripts())
def test_case(path: Path) -> None:
    case = load(path)
    faults = [tuple(fault) for fault in case.EXPECT["faults"]]
    assert bool(faults) != bool(case.EXPECT["healthy"])
    diagnosis = diagnosis_of(case)
    unknown = {kind for _, kind in faults} - RULES_OF.keys()
    assert not unknown, f"no rule is known for {unknown}"
    for where, kind in faults:
        found = any(shows(finding, where, kind) for finding in diagnosis.findings)
        assert found, f"no {kind} at {where}; found:\n{in_words(diagnosis.findings)}"
    beside = [finding for finding in grave(diagnosis) if not is_expected(finding, faults)]
    assert not beside, f"expected {faults}, and beside that:\n{in_words(beside)}"


def test_every_kind_of_the_index_is_known() -> None:
    index = FOLDER / "INDEX.md"
    if not index.exists():
        pytest.skip("no cases: their folder does not lie beside the repository")
    text = index.read_text().partition("## Kind -> rule")[2].partition("\n## ")[0]
    for group in text.replace("\n", " ").split("·"):
        names, _, rules = group.strip(" .").partition(" RES")
        for name in names.split(","):
            assert RULES_OF[name.strip()][0] == f"RES{rules[:3]}"
