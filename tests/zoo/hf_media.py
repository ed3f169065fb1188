"""More families of `transformers`: sound, images, video, time series, several at once."""

from __future__ import annotations

from typing import Any

import torch

from tests.zoo.hf_family import Family, seq2seq, vision
from tests.zoo.hf_options import (
    CLIP,
    PIXELS,
    PYRAMID,
    SEQ2SEQ,
    TEXT,
    WAVES,
    L,
    ids,
    pixels,
    pixels64,
    text,
    waves,
)


def both() -> dict[str, Any]:
    return {**text(), **pixels()}


def clip() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 4, 3, 32, 32)}


SOUND = (
    Family(
        "wav2vec2_bert",
        "Wav2Vec2Bert",
        {**WAVES, "feature_projection_input_dim": 16, "output_hidden_size": 16},
        4 * L,
        lambda: {"input_features": torch.randn(2, 20, 16)},
    ),
    Family("sew", "SEW", {**WAVES, "squeeze_factor": 2}, 2 * L + 1, waves),
    seq2seq(
        "speech_to_text",
        "Speech2Text",
        {
            **SEQ2SEQ,
            "input_feat_per_channel": 8,
            "conv_channels": 16,
            "max_source_positions": 32,
            "max_target_positions": 32,
        },
        example=lambda: {
            "input_features": torch.randn(2, 16, 8),
            "decoder_input_ids": ids(5),
        },
    ),
    Family(
        "encodec",
        "Encodec",
        {
            "num_filters": 2,
            "hidden_size": 8,
            "codebook_size": 16,
            "codebook_dim": 8,
            "num_lstm_layers": 1,
            "upsampling_ratios": [2, 2],
            "target_bandwidths": [24.0],
        },
        6,
        lambda: {"input_values": torch.randn(2, 1, 64)},
        {"identity": 2, "projection": 4},
        notes="encoder and decoder: 2 blocks with a convolved shortcut, 1 residual LSTM",
    ),
)

VISION = (
    vision("dinov3", "DINOv3ViT", {**PIXELS, "num_register_tokens": 1}),
    vision("data2vec_vision", "Data2VecVision"),
    Family(
        "vitdet",
        "VitDet",
        {**PIXELS, "residual_block_indices": [1], "window_size": 0},
        2 * L + 1,
        pixels,
        notes="one convolutional block behind the second layer",
    ),
    Family("swinv2", "Swinv2", PYRAMID, 8, pixels),
    Family(
        "focalnet",
        "FocalNet",
        {
            "image_size": 32,
            "embed_dim": 8,
            "depths": [1, 2],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
        },
        6,
        pixels,
    ),
    Family(
        "bit",
        "Bit",
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 2], "num_groups": 2},
        4,
        pixels64,
        {"identity": 2, "projection": 2},
        notes="weights are standardised by a batch norm over themselves",
    ),
    Family("mobilenet_v2", "MobileNetV2", {"depth_multiplier": 0.25}, 10, pixels64),
    Family(
        "efficientnet",
        "EfficientNet",
        {"width_coefficient": 0.25, "depth_coefficient": 1.0, "hidden_dim": 320},
        9,
        pixels64,
    ),
    Family(
        "levit",
        "Levit",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "mlp_ratio": [2, 2, 2],
            "attention_ratio": [2, 2, 2],
        },
        8,
        pixels64,
        notes="3 stages x 2, and the MLP behind each of 2 shrinking attentions",
    ),
    Family(
        "swiftformer",
        "SwiftFormer",
        {"image_size": 64, "depths": [1] * 4, "embed_dims": [8, 8, 16, 16]},
        12,
        pixels64,
        nested=4,
        notes="4 x (convolution, attention, MLP); the attention adds its query inside",
    ),
    Family(
        "pvt_v2",
        "PvtV2",
        {
            "image_size": 64,
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1] * 4,
            "num_attention_heads": [1, 1, 2, 2],
            "sr_ratios": [2, 2, 1, 1],
            "mlp_ratios": [2] * 4,
        },
        8,
        pixels64,
    ),
    vision("vivit", "Vivit", {**PIXELS, "num_frames": 4, "tubelet_size": [2, 8, 8]}, example=clip),
    vision("videomae", "VideoMAE", {**PIXELS, "num_frames": 4}, example=clip),
)

OTHERS = (
    Family("altclip", "AltCLIP", {**CLIP, "text_config": {**TEXT, "project_dim": 16}}, 8, both),
    Family("git", "Git", {**TEXT, "vision_config": PIXELS}, 4 * L, both),
    Family("vilt", "Vilt", {**TEXT, **PIXELS}, 2 * L, both),
    Family(
        "perceiver",
        "Perceiver",
        {
            "num_latents": 4,
            "d_latents": 16,
            "d_model": 16,
            "num_self_attends_per_block": 2,
            "num_blocks": 1,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
        },
        5,
        lambda: {"inputs": torch.randn(2, 6, 16)},
        notes="3 x 2 less the one whose shortcut is the latents, a parameter",
    ),
    Family(
        "patchtst",
        "PatchTST",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_hidden_layers": L,
            "num_attention_heads": 2,
            "ffn_dim": 32,
        },
        2 * L,
        lambda: {"past_values": torch.randn(2, 16, 2)},
    ),
    Family(
        "patchtsmixer",
        "PatchTSMixer",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 8,
            "num_layers": L,
        },
        2 * L,
        lambda: {"past_values": torch.randn(2, 16, 2)},
        notes="patches and features",
    ),
    Family(
        "timesfm",
        "TimesFm",
        {
            "patch_length": 4,
            "context_length": 16,
            "horizon_length": 4,
            "hidden_size": 16,
            "intermediate_size": 16,
            "head_dim": 8,
            "num_hidden_layers": L,
            "num_attention_heads": 2,
        },
        2 * L + 1,
        lambda: {
            "past_values": torch.randn(2, 16),
            "past_values_padding": torch.zeros(2, 16).long(),
            "freq": torch.zeros(2, 1).long(),
        },
        {"identity": 2 * L, "projection": 1},
        notes="the input block projects the raw patches on both ways",
    ),
    Family(
        "vjepa2",
        "VJEPA2",
        {
            "crop_size": 32,
            "patch_size": 8,
            "frames_per_clip": 4,
            "hidden_size": 24,
            "num_attention_heads": 2,
            "num_hidden_layers": L,
            "mlp_ratio": 2.0,
            "pred_hidden_size": 24,
            "pred_num_attention_heads": 2,
            "pred_num_hidden_layers": 1,
            "pred_num_mask_tokens": 2,
        },
        2 * L + 2,
        lambda: {"pixel_values_videos": torch.randn(2, 4, 3, 32, 32)},
        notes="encoder and a predictor of one layer",
    ),
)

#: Every family of this part, in order.
MEDIA: tuple[Family, ...] = (*SOUND, *VISION, *OTHERS)
