"""Random residual nets, trained as they are and watched: bit for bit the same, and seen right."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from tests.properties.programs import Piece, Program
from tests.properties.running import GRADIENTS, RATIOS, Trained, Watched, disagreement, train
from tests.properties.strategies import programs


def check(program: Program) -> None:
    """Everything that must hold for any net and any way of training it."""
    plain = train(program)
    watches: list[Watched] = []

    def watch(*given: object) -> Watched:
        watches.append(Watched(*given))
        return watches[0]

    watched = train(program, watch)
    same_training(plain, watched)
    seen_right(plain, watches[0])
    copy.deepcopy(watched.net)
    pickle.loads(pickle.dumps(watched.net))


def same_training(plain: Trained, watched: Trained) -> None:
    assert all(map(same, plain.losses, watched.losses)), "losses"
    assert all(map(torch.equal, plain.random, watched.random)), "random numbers"
    pairs = zip(plain.net.every_parameter(), watched.net.every_parameter(), strict=True)
    assert all(same(a, b) for a, b in pairs), "weights"


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def seen_right(plain: Trained, watched: Watched) -> None:
    history = watched.monitor.history
    for step, (expected, rows) in enumerate(zip(plain.expected, watched.rows, strict=True)):
        wanted = sorted(expected, key=lambda pair: pair[0].nested)
        truth = [(tap.module, tap.kind, tap.nested) for tap, _ in wanted]
        found = [(site.module, site.kind, site.nested) for site, _ in rows]
        assert found == truth, f"step {step}\n{history.sites}"
        for (_, numbers), (site, column) in zip(wanted, rows, strict=True):
            for name in (*RATIOS, *GRADIENTS):
                table = history.table(name)
                got = None if table.missing[step, column] else float(table.values[step, column])
                off = disagreement(got, numbers[name], name)
                assert not off, f"step {step} {site.name} {name}: {got} is not {numbers[name]}"


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_any_net(program: Program) -> None:
    check(program)


def of(*pieces: Piece, **rest: Any) -> Program:
    return Program(pieces, **rest)


#: What the random search found once.
FOUND_ONCE = {
    "a weight that the model does not know of": of(
        Piece("pre-norm"), Piece("scaled by weight", norm="none", call="list")
    ),
    "raw data scaled by a weight": of(Piece("scaled by weight"), stem="frozen"),
    "two blocks that were never run together": of(
        Piece("pre-norm", drop=True),
        Piece("pre-norm", drop=True),
        axes=2,
        sizes=((3, 2), (2, 4), (2, 1)),
        seed=9823,
    ),
    "a condition added before a block and after it": of(
        Piece("condition"), Piece("pre-norm"), Piece("condition")
    ),
    "blocks that layer drop shows out of order": of(
        Piece("pre-norm"),
        Piece("pre-norm", drop=True, frozen=True),
        Piece("parallel inner", "in place", "hand", "alpha", "keywords", drop=True, frozen=True),
        axes=2,
        seed=1395,
    ),
}


@pytest.mark.parametrize("name", FOUND_ONCE)
def test_found_once(name: str) -> None:
    check(FOUND_ONCE[name])
