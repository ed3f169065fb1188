"""The zoo's table: every model with the residual additions that it has by definition."""

from __future__ import annotations

from functools import partial

import torch

from tests.zoo import dense, plain, resnets, sequence, variants, vision, vision_more
from tests.zoo.entry import (
    Entry,
    blocks,
    floats,
    images,
    pure,
    sequences,
    split,
    tokens,
    vectors,
    zero,
)
from tests.zoo.more_table import MORE
from tests.zoo.trap_table import TRAPS

R18, R50 = (2, 2, 2, 2), (3, 4, 6, 3)
CNNS = (
    split("resnet18", partial(resnets.resnet, R18), 5, 3, streams=1),
    split("resnet34", partial(resnets.resnet, R50), 13, 3, streams=1),
    split("resnet50", partial(resnets.resnet, R50, True), 12, 4, streams=1),
    split("wide_resnet50", partial(resnets.resnet, R50, True, middle=2), 12, 4),
    split("resnext50", partial(resnets.resnet, R50, True, groups=2, middle=2, expansion=2), 12, 4),
    split("se_resnet50", partial(resnets.resnet, R50, True, gate=True), 12, 4),
    split("preact_resnet50", partial(resnets.preact_resnet, R50), 12, 4, streams=1),
    split("wide_resnet28", resnets.wide_resnet, 9, 3, notes="12 blocks; each group widens first"),
    split("cifar_resnet56", resnets.cifar_resnet, 25, 2, notes="option A: zero padding projects"),
    split("nf_resnet50", resnets.nf_resnet, 12, 4, notes="weights of projections are computed"),
    split("res2net50", variants.res2net, 12, 4, notes="sums of sibling slices do not count"),
    split("regnet_y_400mf", variants.regnet_y, 12, 4),
    split("dpn68", variants.dpn, 18, 4, notes="the shortcut is a slice of x or of its projection"),
    split("ghostnet", variants.ghostnet, 11, 5, notes="16 bottlenecks, 5 change shape; in place"),
    split(
        "mobilenet_v2",
        partial(variants.inverted_residuals, variants.MOBILENET_V2, False, 0.0),
        10,
        0,
        notes="repeats 1 2 3 4 3 3 1, each less its first",
    ),
    split(
        "efficientnet_b0",
        partial(variants.inverted_residuals, variants.EFFICIENTNET_B0, True, 0.1),
        9,
        0,
        notes="repeats 1 2 2 3 3 4 1, each less its first; stochastic depth",
    ),
    zero("repvgg", variants.repvgg, notes="parallel linear maps before the ReLU"),
    zero("vgg16", plain.vgg),
    zero("densenet121", plain.densenet, notes="concatenation"),
    zero("googlenet", plain.GoogLeNet, notes="concatenation"),
    zero("inception_v3", plain.inception_v3, notes="concatenation"),
    zero("shufflenet_v2", plain.shufflenet_v2, notes="concatenation"),
    zero("unet", plain.UNet, notes="concatenation"),
    zero("highway", plain.Highway, vectors, notes="gates"),
    zero("gru", plain.HandGRU, sequences, notes="gates"),
    zero("lstm", plain.HandLSTM, sequences, notes="gates"),
    zero("plain_mlp", plain.PlainMlp, partial(floats, 3, 16)),
)

VISION = (
    pure("vit_b16", vision.ViT, images, 24, streams=1),
    pure("vit_layer_scale_drop_path", partial(vision.ViT, scale=1e-6, drop=0.2), images, 24),
    pure("swin_t", vision.Swin, images, 24),
    pure("convnext_t", vision.convnext, images, 18),
    pure(
        "convnext_v2_t",
        partial(vision.convnext, second=True),
        images,
        18,
        nested=18,
        notes="response normalisation ends in `+ x`",
    ),
    split("maxvit_t", vision.maxvit, 51, 4, notes="11 blocks of 5; 4 MBConv go down"),
    split("hiera_t", vision_more.Hiera, 21, 3, notes="12 blocks of 2; 3 shortcuts are max-pooled"),
    pure("mlp_mixer", vision_more.Mixer, images, 16, streams=1),
    pure(
        "poolformer_s12",
        vision_more.poolformer,
        images,
        24,
        nested=None,
        notes="`pool(h) - h` is a difference without anything learned: nested left open",
    ),
    pure("class_attention", vision_more.ClassAttention, images, 4),
    pure(
        "dit",
        vision_more.DiT,
        lambda: ((torch.randn(2, 4, 8, 8), torch.rand(2), torch.tensor([1, 2])), {}),
        24,
        streams=1,
        notes="scale and shift are sibling slices of one map",
    ),
)

SEQUENCE = (
    blocks("pre_norm", sequence.PreNorm, 8),
    blocks("post_norm", sequence.PostNorm, 8),
    blocks("sandwich_norm", sequence.Sandwich, 8),
    blocks("rezero", sequence.ReZero, 8),
    blocks("rotary", sequence.Rotary, 8),
    blocks("experts", sequence.Experts, 8, notes="sums over experts do not count"),
    blocks("macaron", sequence.Macaron, 16, notes="4 a block"),
    blocks("fnet", sequence.Fourier, 8, notes="a Fourier transform is a matrix without parameters"),
    blocks("parallel_left", sequence.ParallelLeft, 4, notes="(x + a) + m: one site, `parallel`"),
    blocks("parallel_middle", sequence.ParallelMiddle, 4),
    blocks("parallel_right", sequence.ParallelRight, 4),
    Entry("deep_norm", partial(sequence.Transformer, sequence.DeepNorm), tokens, 8, 0, 8, 0),
    Entry(
        "learned_shortcut",
        partial(sequence.Transformer, sequence.LearnedShortcut),
        tokens,
        8,
        0,
        8,
        0,
    ),
    pure("albert", partial(sequence.Transformer, sequence.PostNorm, shared=True), tokens, 8),
    pure("shared_bias", sequence.SharedBias, tokens, 8, streams=1),
    pure(
        "encoder_decoder",
        sequence.EncoderDecoder,
        lambda: ((torch.randint(0, 32, (2, 7)), torch.randint(0, 32, (2, 5))), {}),
        15,
        streams=2,
    ),
    pure("query_decoder", sequence.QueryDecoder, images, 15, notes="2 x 3 and 3 x 3"),
    pure(
        "perceiver",
        sequence.Perceiver,
        partial(floats, 2, 7, 8),
        11,
        notes="12 additions; the first shortcut is a parameter, which does not depend on data",
    ),
)

DENSE = (
    Entry(
        "edsr",
        dense.EDSR,
        partial(images, 16),
        None,
        identity=17,
        total=17,
        notes="16 blocks inside the branch of one long skip: which of them are block-level is open",
    ),
    Entry(
        "additive_unet",
        dense.AdditiveUNet,
        partial(images, 32),
        None,
        identity=5,
        projection=2,
        total=7,
        notes="5 blocks, 2 of them go down, and 2 long skips around them",
    ),
    Entry(
        "diffusion_unet",
        dense.DiffusionUNet,
        lambda: ((torch.randn(2, 3, 16, 16), torch.rand(2)), {}),
        7,
        4,
        0,
        3,
        0,
        notes="6 blocks and an attention; time embeddings and concatenations do not count",
    ),
    pure(
        "wavenet",
        dense.WaveNet,
        partial(floats, 2, 1, 20),
        6,
        nested=None,
        notes="the summed skip outputs are P(h_k) + F(h_k) by form: left open",
    ),
    pure("lora", dense.lora_transformer, tokens, 8, notes="x of the first block has no graph"),
    pure("auxiliary_heads", dense.Auxiliary, vectors, 6, streams=1),
    Entry("reversible", dense.Coupling, vectors, None, notes="x1 + F(x2) mixes two streams: open"),
)

#: Every model, in order.
ENTRIES: tuple[Entry, ...] = (*CNNS, *VISION, *SEQUENCE, *DENSE, *TRAPS, *MORE)
