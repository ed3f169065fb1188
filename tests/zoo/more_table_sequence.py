"""A second part of the zoo's table: sequence nets and unusual arithmetic."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from tests.zoo import more_scaled, more_sequence
from tests.zoo.entry import (
    Entry,
    blocks,
    floats,
    images,
    pure,
    sequences,
    tokens,
    vectors,
    zero,
)

small = partial(images, 32)
nodes = partial(floats, 6, 8)

SEQUENCE = (
    blocks("retnet", more_sequence.RetNet, 8),
    blocks(
        "rwkv", more_sequence.Rwkv, 8, notes="token shift mixes x and its neighbour: no weights"
    ),
    blocks("s4", more_sequence.S4, 4, nested=4, notes="D * u inside"),
    blocks("hyena", more_sequence.Hyena, 8, nested=4, notes="bias * u inside the long convolution"),
    blocks("mamba2", more_sequence.Mamba2, 4, nested=4, notes="D * u inside"),
    blocks("griffin", more_sequence.Griffin, 8, notes="the recurrence is gated"),
    blocks("norm_former", more_scaled.NormFormer, 8),
    Entry(
        "admin",
        partial(more_sequence.Transformer, more_scaled.Admin),
        tokens,
        8,
        0,
        8,
        0,
        0,
        notes="omega * x",
    ),
    pure("universal", more_sequence.Universal, tokens, 8, notes="4 rounds x 2; halting is a gate"),
    pure("depths_scatter", partial(more_sequence.MixtureOfDepths, how="scatter"), tokens, 3),
    Entry("depths_scatter_add", more_sequence.MixtureOfDepths, tokens, None, found_or_listed=3),
    Entry(
        "depths_index_add",
        partial(more_sequence.MixtureOfDepths, how="index_add"),
        tokens,
        None,
        found_or_listed=3,
    ),
    pure("transformer_xl", more_sequence.TransformerXL, tokens, 12, notes="2 segments x 3 x 2"),
    pure(
        "real_former",
        more_sequence.RealFormer,
        tokens,
        6,
        nested=None,
        notes="3 x 2; scores + before is a guest of the stream like a position bias: left open",
    ),
    pure(
        "real_former_parallel",
        partial(more_sequence.RealFormer, 2, parallel=True),
        tokens,
        2,
        nested=None,
        notes="2 blocks; the score sum, if counted, does not contain block 1",
    ),
    pure(
        "value_residual",
        more_sequence.ValueResidual,
        tokens,
        6,
        nested=None,
        notes="3 x 2; values P(x_1) + F(x_1): the first ones are guests of the stream: left open",
    ),
    pure(
        "siamese",
        more_sequence.MeanPooled,
        lambda: ((torch.randint(0, 32, (2, 5)), torch.randint(0, 32, (2, 6))), {}),
        12,
        streams=2,
        notes="one encoder of 3 x 2, called twice in one forward",
    ),
    pure(
        "adapters",
        partial(more_sequence.Transformer, more_scaled.Adapter),
        tokens,
        8,
        nested=8,
        notes="2 a block, each with an adapter's own inside",
    ),
    blocks("ia3", more_scaled.IA3, 8),
    Entry(
        "n_beats",
        more_scaled.NBeats,
        partial(floats, 3, 12),
        None,
        4,
        notes="4 differences x - back; sums of forecasts are P(h) + F(h) by form: left open",
    ),
    pure("euler", more_scaled.Euler, vectors, 5, streams=1),
    zero(
        "highway_coupled",
        lambda: nn.Sequential(nn.Linear(8, 8), *[more_scaled.Highway() for _ in range(3)]),
        vectors,
    ),
    pure(
        "refinement",
        more_scaled.Refinement,
        small,
        4,
        notes="4 rounds; the shortcut is detached",
    ),
    pure("residual_lstm", more_scaled.Recurrent, sequences, 3, streams=1),
    pure(
        "fake_quantised",
        lambda: nn.Sequential(nn.Linear(8, 8), *[more_scaled.FakeQuantised() for _ in range(3)]),
        sequences,
        3,
    ),
    pure(
        "fake_quantised_kernel",
        lambda: nn.Sequential(
            nn.Linear(8, 8), *[more_scaled.FakeQuantised(kernel=True) for _ in range(3)]
        ),
        sequences,
        3,
        notes="rounding is a cast",
    ),
    zero("vq_vae", more_scaled.VectorQuantised, sequences),
    zero("affine_coupling", more_scaled.AffineCoupling, vectors),
    zero("hyper_connections", more_scaled.HyperConnections, sequences, notes="gates"),
)
