"""Random programs: which pieces, how they are called, how a step goes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.properties.programs import FORMS, NORMS, Piece, Program
from tests.properties.taps import ADDS

BRANCHES = ("mlp", "linear", "attention", "conv", "experts", "swish", "gated", "in place")
#: What these return is kept by autograd or is a view: PyTorch forbids to add to it in place.
_NOT_TO_BE_WRITTEN = ("linear", "conv", "experts")
_ONE_FORWARD = ("plain", "teacher", "teacher after", "two backwards")
STEPS = (*_ONE_FORWARD, "two forwards", "micro-batches")
DTYPES = ("float32", "float32", "float64", "bfloat16", "float16", "autocast")


def _possible(piece: Piece) -> Piece:
    if piece.how == "f += x" and piece.branch in _NOT_TO_BE_WRITTEN:
        piece = replace(piece, branch="mlp")
    if piece.call in ("forward", "list"):  # what tells these apart over time is their order alone
        piece = replace(piece, drop=False)
    return piece


pieces = st.builds(
    Piece,
    form=st.sampled_from(FORMS),
    branch=st.sampled_from(BRANCHES),
    norm=st.sampled_from(tuple(NORMS)),
    how=st.sampled_from([how for how in ADDS if how != "x += f"]),
    call=st.sampled_from(("call", "call", "forward", "list", "checkpoint", "keywords")),
    repeat=st.sampled_from((1, 1, 1, 2, 3)),
    drop=st.sampled_from((False, False, True)),
    frozen=st.sampled_from((False, False, False, True)),
).map(_possible)

sizes = st.tuples(*[st.tuples(st.sampled_from((2, 1, 3, 0)), st.integers(1, 4))] * 3)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A net of one to six pieces, and three steps."""
    chosen = tuple(draw(st.lists(pieces, min_size=1, max_size=6)))
    step = draw(st.sampled_from(STEPS))
    if step not in _ONE_FORWARD:  # else of two forwards each may count at other places
        chosen = tuple(replace(piece, drop=False) for piece in chosen)
    poison = st.tuples(
        st.integers(0, 2), st.integers(0, len(chosen) - 1), st.sampled_from(("nan", "inf", "-inf"))
    )
    return Program(
        pieces=chosen,
        dtype=draw(st.sampled_from(DTYPES)),
        axes=draw(st.sampled_from((3, 3, 2))),
        sizes=draw(sizes),
        step=step,
        stem=draw(st.sampled_from(("linear", "linear", "frozen", "none"))),
        optimizer=draw(st.sampled_from(("sgd", "adamw"))),
        poison=draw(st.one_of(st.none(), st.none(), poison)),
        seed=draw(st.integers(0, 2**16)),
    )
