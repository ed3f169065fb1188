"""A second part of the zoo's table: nets from the literature, each count derived in its note."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from tests.zoo import more_cnns, more_graphs, more_scaled, more_vision
from tests.zoo.entry import (
    Entry,
    floats,
    images,
    pure,
    sequences,
    split,
)
from tests.zoo.more_table_sequence import SEQUENCE

small = partial(images, 32)
nodes = partial(floats, 6, 8)

CNNS = (
    pure("inception_resnet", more_cnns.inception_resnet, images, 6, notes="2 + 2 + 2 blocks"),
    split("resnest", more_cnns.resnest, 2, 2, notes="2 stages of 2; radix sums are of siblings"),
    pure("hrnet", more_cnns.HRNet, small, 8, notes="8 blocks; exchanges add parallel streams"),
    pure(
        "stacked_hourglass",
        more_cnns.StackedHourglass,
        small,
        15,
        notes="2 glasses x 7 blocks (4 + 3), and x + heads + features is one site; up1 + low none",
    ),
    Entry(
        "fpn",
        more_cnns.FPN,
        small,
        11,
        7,
        0,
        4,
        0,
        notes="9 blocks (2 go down) and 2 lateral sums P(c) + F(c) around chains of blocks",
    ),
    pure(
        "yolo_c2f",
        lambda: nn.Sequential(
            more_cnns.conv_bn(3, 8, 3, 2), more_cnns.C2f(8, 8, 2), more_cnns.C2f(8, 16, 3, False)
        ),
        small,
        2,
        notes="2 bottlenecks with shortcut on a slice; 3 without",
    ),
    Entry(
        "rcan",
        more_cnns.rcan,
        small,
        None,
        9,
        total=9,
        notes="2 groups x 3 blocks, 2 group skips, 1 long skip: which are block level is open",
    ),
    Entry(
        "rrdb",
        more_cnns.rrdb,
        small,
        None,
        9,
        total=9,
        notes="2 x 3 dense blocks, 2 outer, 1 long skip",
    ),
    Entry("tcn", more_cnns.tcn, partial(floats, 2, 3, 20), 4, 3, 0, 1, 0, streams=1),
    pure(
        "invertible_resnet",
        lambda: nn.Sequential(*[more_cnns.InvertibleBlock() for _ in range(3)]),
        small,
        3,
        notes="the first block reads the raw image",
    ),
    Entry("fixup", more_scaled.fixup_resnet, small, 4, 3, 0, 1, 0, notes="one block goes down"),
    pure(
        "skip_init",
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, 1, 1), *[more_scaled.SkipInit(8) for _ in range(3)]
        ),
        small,
        3,
    ),
)

VISION = (
    Entry(
        "swin_ir",
        more_vision.SwinIR,
        partial(images, 16),
        None,
        12,
        total=12,
        notes="2 groups x 2 blocks x 2, 2 group skips, 1 long skip, x + net(x)",
    ),
    pure("cait", more_vision.CaiT, images, 9, notes="3 x 2, then 2 + 2 less the parameter token"),
    pure(
        "xcit",
        lambda: more_vision.Patches(*[more_vision.XCiTBlock(16, 8) for _ in range(2)]),
        images,
        6,
        notes="3 a block",
    ),
    pure("mobilevit", more_vision.mobilevit, images, 11, notes="3 inverted residuals, 2 x 2 x 2"),
    pure(
        "pvt",
        lambda: more_vision.Patches(*[more_vision.PVTBlock(16, 8) for _ in range(3)]),
        images,
        6,
    ),
    pure(
        "twins",
        lambda: more_vision.Patches(
            more_vision.PVTBlock(16, 8),
            more_vision.PositionConv(16, 8),
            more_vision.PVTBlock(16, 8),
        ),
        images,
        5,
        notes="2 + 1 (position convolution) + 2",
    ),
    pure("focal_net", more_vision.FocalNet, images, 4, notes="2 a block; context sums are gated"),
    pure("cross_vit", more_vision.CrossViT, images, 10, notes="2 x 2 x 2 and one a scale"),
    pure(
        "gmlp",
        lambda: more_vision.Patches(*[more_vision.GMLPBlock(16, 64) for _ in range(3)]),
        images,
        3,
    ),
    pure(
        "efficient_former",
        more_vision.EfficientFormer,
        images,
        6,
        nested=None,
        notes="2 conv and 2 x 2 token sums; `x + (pool(x) - x)` learns nothing",
    ),
)

OTHERS = (
    pure(
        "set_transformer",
        more_graphs.SetTransformer,
        sequences,
        6,
        notes="4 x 2 less the two whose shortcut is a parameter",
    ),
    pure(
        "perceiver_io",
        more_graphs.PerceiverIO,
        sequences,
        8,
        notes="1 + 3 x 2 + 1; queries are parameters",
    ),
    pure("gat", partial(more_graphs.graph_net, more_graphs.GAT), nodes, 3),
    pure(
        "graph_gps",
        partial(more_graphs.graph_net, more_graphs.GPS),
        nodes,
        9,
        notes="3 a block; local + everywhere adds two branches",
    ),
    pure(
        "gin",
        partial(more_graphs.graph_net, more_graphs.GIN),
        nodes,
        3,
        nested=None,
        notes="whether (1 + eps) x + A x is residual, with A constant, is open",
    ),
    pure("point_residual", more_graphs.PointResidual, partial(floats, 2, 3, 16), 4),
    pure(
        "conditioned_wavenet",
        more_graphs.ConditionedWaveNet,
        lambda: ((torch.randn(2, 1, 20), torch.randn(2, 3, 20)), {}),
        4,
        streams=1,
    ),
    Entry(
        "demucs",
        more_graphs.Demucs,
        partial(floats, 2, 1, 16),
        None,
        2,
        total=2,
        notes="2 long skips, one inside the other",
    ),
    pure("mask_net", more_graphs.MaskNet, partial(floats, 2, 5, 6), 4, notes="the mask multiplies"),
    Entry(
        "big_gan",
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 1), more_graphs.Upsampler(8, 8), more_graphs.Upsampler(8, 4)
        ),
        partial(images, 8),
        2,
        0,
        0,
        2,
        0,
    ),
    Entry("bicubic", more_graphs.Bicubic, partial(images, 8), 1, 0, 0, 1, 0),
    pure("dncnn", more_graphs.DnCNN, partial(images, 8), 1),
    pure(
        "mm_dit",
        more_graphs.MMDiT,
        lambda: ((torch.randn(2, 5, 8), torch.randn(2, 6, 4), torch.rand(2)), {}),
        8,
        streams=2,
        notes="2 blocks x 2 streams x 2",
    ),
    pure(
        "control_net",
        more_graphs.ControlNet,
        lambda: ((torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)), {}),
        4,
        notes="2 x 2 blocks; h + zero(c): h is no ancestor of c; the hint is a guest",
    ),
    pure(
        "autoencoder",
        more_graphs.Autoencoder,
        partial(images, 8),
        5,
        notes="4 blocks and an attention; mu and std are siblings",
    ),
)

MORE: tuple[Entry, ...] = (*CNNS, *VISION, *SEQUENCE, *OTHERS)
