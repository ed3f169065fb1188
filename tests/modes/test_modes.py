"""Mode by mode: the monitor never changes a run, and what it says of a step is right."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.lightning import parts
from tests.modes.checks import CHECKS
from tests.modes.mode import ALL, Mode
from tests.modes.runs import forget, monitor, run
from tests.modes.table import MODES

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*returned `None`.*"),
    pytest.mark.filterwarnings("ignore:.*LightningCLI's args parameter.*"),
    # Dynamo looks at `.grad` of everything.
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
PRESETS = ("debug", "train")
#: The one or the other, row by row, in `make test`; both in `make test-all`.
ENDINGS = (("cnn", "debug"), ("gpt", "train"))


def rows() -> Iterator[pytest.param]:
    """Presets share the plain run, so they follow one another."""
    for at, mode in enumerate(MODES):
        for body in mode.bodies:
            for preset in PRESETS:
                for check in mode.checks:
                    if wanted(mode, body, preset, check):
                        slow = mode.slow or is_slow(at, mode, body, check)
                        marks = [pytest.mark.slow] if slow else []
                        yield pytest.param(
                            mode, body, preset, check, marks=marks,
                            id=f"{mode.group}: {mode.name}-{body}-{preset}-{check}",
                        )  # fmt: skip


def wanted(mode: Mode, body: str, preset: str, check: str) -> bool:
    """Of some checks one preset is enough: they take longest, and depend on it least."""
    if check == "endings" and len(mode.bodies) > 1:
        return (body, preset) in ENDINGS
    return preset == "debug" or check not in ("endings", "growth", "copies", "exports")


def is_slow(at: int, mode: Mode, body: str, check: str) -> bool:
    other = len(mode.bodies) > 1 and body != ENDINGS[at % 2][0]
    return check in mode.slow_checks or (check == "endings" and other)


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> Iterator[None]:
    """What was imported is not looked at when live tensors are counted."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


_last: list[Mode] = []


@pytest.mark.parametrize(("mode", "body", "preset", "check"), rows())
def test_mode(mode: Mode, body: str, preset: str, check: str) -> None:
    if why_not := mode.needs():
        pytest.skip(why_not)
    if _last != [mode]:
        forget()
        _last[:] = [mode]
    CHECKS[check](mode, body, preset)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "body"), [("32-true", "cnn"), ("16-mixed, GradScaler", "gpt")])
def test_no_tensor_more_after_200_captured_steps(name: str, body: str) -> None:
    known = next(mode for mode in MODES if mode.name == name)
    mode = replace(known, steps=200, data=lambda kind: parts.loader(kind, 200))
    result = run(mode, body, monitor(mode, "debug", select=["RES901"]))
    assert len(result.history.capture_steps) == 200
    assert result.growth == 0


def test_the_table_is_one() -> None:
    names = [mode.name for mode in MODES]
    assert len(set(names)) == len(names)
    assert all(set(mode.checks) <= set(ALL) and mode.checks for mode in MODES)
