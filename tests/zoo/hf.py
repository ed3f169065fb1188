"""Tiny, randomly initialised models of `transformers` and their counts as functions of depth L."""

from __future__ import annotations

import torch

from tests.zoo.hf_family import Family, parallel, seq2seq, serial, vision
from tests.zoo.hf_media import MEDIA
from tests.zoo.hf_more import TEXTS
from tests.zoo.hf_options import (
    CAUSAL,
    CLIP,
    DEEPSEEK,
    GPT,
    MOE,
    PIXELS,
    PYRAMID,
    SEQ2SEQ,
    T5,
    TEXT,
    WAVES,
    L,
    ids,
    pixels,
    pixels64,
    text,
    waves,
)

DECODERS = (
    serial("gpt2", "GPT2", GPT, streams=1),
    serial(
        "gpt_neo",
        "GPTNeo",
        {
            **TEXT,
            "num_layers": L,
            "num_heads": 2,
            "attention_types": [[["global", "local"], L // 2]],
        },
    ),
    serial("gpt_bigcode", "GPTBigCode", GPT),
    serial("openai_gpt", "OpenAIGPT", GPT),
    serial("ctrl", "CTRL", {**GPT, "dff": 32}),
    serial("llama", "Llama", streams=1),
    serial("mistral", "Mistral"),
    serial("gemma", "Gemma"),
    serial("gemma2", "Gemma2", notes="sandwich norm"),
    serial(
        "gemma3", "Gemma3Text", {**CAUSAL, "layer_types": ["full_attention"] * L}, model="Model"
    ),
    serial("qwen2", "Qwen2"),
    serial("qwen3", "Qwen3"),
    serial("phi3", "Phi3"),
    serial("olmo", "Olmo"),
    serial("olmo2", "Olmo2", notes="the norm stands at the end of the branch"),
    serial("granite", "Granite", {**CAUSAL, "residual_multiplier": 0.22}),
    serial("starcoder2", "Starcoder2"),
    serial("nemotron", "Nemotron"),
    serial("glm", "Glm"),
    serial("glm4", "Glm4"),
    serial("persimmon", "Persimmon"),
    serial("opt", "OPT", {**TEXT, "ffn_dim": 32, "word_embed_proj_dim": 16, "use_cache": False}),
    serial(
        "bloom",
        "Bloom",
        {"vocab_size": 64, "hidden_size": 16, "n_layer": L, "n_head": 2, "use_cache": False},
    ),
    serial(
        "mpt",
        "Mpt",
        {
            "vocab_size": 64,
            "d_model": 16,
            "n_layers": L,
            "n_heads": 2,
            "max_seq_len": 32,
            "use_cache": False,
        },
    ),
    serial("biogpt", "BioGpt", {**TEXT, "use_cache": False}),
    serial(
        "xglm",
        "XGLM",
        {
            "vocab_size": 64,
            "d_model": 16,
            "ffn_dim": 32,
            "num_layers": L,
            "attention_heads": 2,
            "max_position_embeddings": 32,
            "use_cache": False,
        },
    ),
    serial("stablelm", "StableLm"),
    serial("mixtral", "Mixtral", {**CAUSAL, **MOE}),
    serial(
        "qwen2_moe",
        "Qwen2Moe",
        {**CAUSAL, **MOE, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    serial("deepseek_v3", "DeepseekV3", {**TEXT, **DEEPSEEK}),
    parallel("stablelm_parallel", "StableLm", {**CAUSAL, "use_parallel_residual": True}),
    parallel("gpt_neox", "GPTNeoX", {**TEXT, "use_cache": False}),
    serial(
        "gpt_neox_serial", "GPTNeoX", {**TEXT, "use_parallel_residual": False, "use_cache": False}
    ),
    parallel("gptj", "GPTJ", {**GPT, "rotary_dim": 4}),
    parallel("codegen", "CodeGen", {**GPT, "n_head": 4, "rotary_dim": 4}),
    parallel("phi", "Phi"),
    parallel("falcon", "Falcon", {**TEXT, "use_cache": False}),
    parallel("cohere", "Cohere"),
    parallel("cohere2", "Cohere2", {**CAUSAL, "layer_types": ["full_attention"] * L}),
    parallel(
        "mamba",
        "Mamba",
        {
            "vocab_size": 64,
            "hidden_size": 16,
            "state_size": 4,
            "num_hidden_layers": L,
            "use_cache": False,
        },
        notes="nested: `D * x`",
    ),
    serial(
        "rwkv",
        "Rwkv",
        {
            "vocab_size": 64,
            "hidden_size": 16,
            "attention_hidden_size": 16,
            "num_hidden_layers": L,
            "intermediate_size": 32,
            "context_length": 32,
            "use_cache": False,
        },
    ),
)

ENCODERS = (
    serial("bert", "Bert", TEXT, streams=1),
    serial("roberta", "Roberta", TEXT),
    serial("electra", "Electra", {**TEXT, "embedding_size": 16}),
    serial("albert", "Albert", {**TEXT, "embedding_size": 8}, notes="one module, L calls"),
    serial(
        "distilbert",
        "DistilBert",
        {
            "vocab_size": 64,
            "dim": 16,
            "n_layers": L,
            "n_heads": 2,
            "hidden_dim": 32,
            "max_position_embeddings": 32,
        },
    ),
    serial(
        "deberta_v2",
        "DebertaV2",
        {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    ),
    serial("longformer", "Longformer", {**TEXT, "attention_window": [4] * L}),
    serial("mpnet", "MPNet", TEXT),
    serial("roformer", "RoFormer", {**TEXT, "embedding_size": 16}),
    serial(
        "xlnet",
        "XLNet",
        {"vocab_size": 64, "d_model": 16, "n_layer": L, "n_head": 2, "d_inner": 32},
    ),
    serial("fnet", "FNet", TEXT, notes="a Fourier transform is a matrix without parameters"),
    serial(
        "squeezebert",
        "SqueezeBert",
        {
            **TEXT,
            "embedding_size": 16,
            "q_groups": 2,
            "k_groups": 2,
            "v_groups": 2,
            "post_attention_groups": 2,
            "intermediate_groups": 2,
            "output_groups": 2,
        },
    ),
    seq2seq("t5", "T5", T5),
    seq2seq("bart", "Bart"),
    seq2seq("mbart", "MBart"),
    seq2seq("marian", "Marian"),
    seq2seq("pegasus", "Pegasus"),
    seq2seq(
        "whisper",
        "Whisper",
        {
            **SEQ2SEQ,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 32,
            "apply_spec_augment": False,
        },
        example=lambda: {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": ids(5)},
    ),
    Family(
        "wav2vec2", "Wav2Vec2", WAVES, 2 * L + 1, waves, notes="the positional convolution adds one"
    ),
    Family(
        "hubert", "Hubert", WAVES, 2 * L + 1, waves, notes="the positional convolution adds one"
    ),
    Family("wavlm", "WavLM", WAVES, 2 * L + 1, waves, notes="the positional convolution adds one"),
    Family(
        "wav2vec2_conformer",
        "Wav2Vec2Conformer",
        {**WAVES, "position_embeddings_type": "relative"},
        4 * L,
        waves,
        notes="half MLP, attention, convolution, half MLP",
    ),
)

VISION = (
    vision("vit", "ViT", streams=1),
    vision("deit", "DeiT"),
    vision("beit", "Beit"),
    vision("dinov2", "Dinov2"),
    Family("clip", "CLIP", CLIP, 4 * L, lambda: {**text(), **pixels()}, streams=2),
    Family(
        "siglip",
        "Siglip",
        {"text_config": TEXT, "vision_config": PIXELS},
        4 * L + 1,
        lambda: {**text(), **pixels()},
        notes="the pooling head has one of its own: its query is a parameter, its MLP adds",
    ),
    Family("swin", "Swin", PYRAMID, 8, pixels, notes="2 stages of 2 blocks of 2"),
    Family(
        "convnext",
        "ConvNext",
        {"hidden_sizes": [8, 16], "depths": [2, 3], "num_stages": 2},
        5,
        pixels,
    ),
    Family(
        "convnextv2",
        "ConvNextV2",
        {"hidden_sizes": [8, 16], "depths": [2, 3], "num_stages": 2},
        5,
        pixels,
        nested=5,
    ),
    Family(
        "resnet",
        "ResNet",
        {
            "embedding_size": 8,
            "hidden_sizes": [16, 32],
            "depths": [2, 2],
            "layer_type": "bottleneck",
        },
        4,
        pixels64,
        {"identity": 2, "projection": 2},
    ),
    Family(
        "regnet",
        "RegNet",
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 2], "groups_width": 8},
        4,
        pixels64,
        {"identity": 2, "projection": 2},
    ),
    Family(
        "segformer",
        "Segformer",
        {
            "num_encoder_blocks": 2,
            "depths": [2, 2],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "drop_path_rate": 0.0,
        },
        8,
        pixels64,
    ),
    Family(
        "poolformer",
        "PoolFormer",
        {
            "depths": [2, 2],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
            "num_encoder_blocks": 2,
            "mlp_ratio": 2.0,
            "drop_path_rate": 0.0,
        },
        8,
        pixels64,
    ),
)

#: Every family, in order.
FAMILIES: tuple[Family, ...] = (*DECODERS, *ENCODERS, *VISION, *TEXTS, *MEDIA)
