"""More families of `transformers` for text: mixtures, state spaces, hybrids, encoders."""

from __future__ import annotations

from tests.zoo.hf_family import Family, parallel, seq2seq, serial
from tests.zoo.hf_options import (
    CAUSAL,
    DEEPSEEK,
    GPT,
    MOE,
    SEQ2SEQ,
    T5,
    TEXT,
    L,
    ids,
)

FULL = {**CAUSAL, "layer_types": ["full_attention"] * L}
SPARSE = {**CAUSAL, **MOE, "moe_intermediate_size": 16}
GROUPED = {
    **SPARSE,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
SSD = {"mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1}


DECODERS = (
    serial("apertus", "Apertus", nested=4, notes="the activation adds `beta * x` twice an MLP"),
    serial("arcee", "Arcee"),
    serial("afmoe", "Afmoe", {**SPARSE, "num_dense_layers": 1}),
    serial("bitnet", "BitNet"),
    serial("deepseek_v2", "DeepseekV2", {**TEXT, **DEEPSEEK}),
    serial("diffllama", "DiffLlama"),
    serial("doge", "Doge", kinds={"scaled": 4}, notes="a learned vector on every shortcut"),
    serial("dots1", "Dots1", GROUPED),
    serial("exaone4", "Exaone4", FULL),
    serial("flex_olmo", "FlexOlmo", SPARSE),
    serial("gpt_oss", "GptOss", {**FULL, **MOE}),
    serial(
        "gpt_neox_japanese",
        "GPTNeoXJapanese",
        {**TEXT, "intermediate_multiple_size": 2, "use_cache": False},
    ),
    serial("granitemoe", "GraniteMoe", {**CAUSAL, **MOE}),
    serial("helium", "Helium"),
    serial("jetmoe", "JetMoe", {**CAUSAL, **MOE, "kv_channels": 8}),
    serial(
        "lfm2", "Lfm2", {**CAUSAL, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3}
    ),
    serial(
        "llama4",
        "Llama4Text",
        {**CAUSAL, **MOE, "intermediate_size_mlp": 32, "moe_layers": [1]},
    ),
    serial(
        "minimax",
        "MiniMax",
        {
            **CAUSAL,
            **MOE,
            "layer_types": ["linear_attention", "full_attention"],
            "block_size": 4,
        },
        kinds={"scaled": 4},
        notes="constants on the shortcuts; 1.0 is one too",
    ),
    serial("olmo3", "Olmo3", FULL),
    serial("qwen3_moe", "Qwen3Moe", SPARSE),
    serial("seed_oss", "SeedOss"),
    serial("smollm3", "SmolLM3", FULL),
    parallel("cohere2_moe", "Cohere2Moe", {**SPARSE, "layer_types": ["full_attention"] * L}),
    serial(
        "cpmant",
        "CpmAnt",
        {
            "vocab_size": 64,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "dim_head": 8,
            "dim_ff": 32,
            "num_hidden_layers": L,
            "prompt_length": 4,
            "prompt_types": 4,
            "segment_types": 4,
            "use_cache": False,
        },
        example=lambda: {"input_ids": ids().int()},
    ),
    serial("image_gpt", "ImageGPT", GPT),
    serial("moshi", "Moshi", {**CAUSAL, "ffn_dim": 32}),
)

STATES = (
    serial(
        "bamba",
        "Bamba",
        {**CAUSAL, **SSD, "attn_layer_indices": [1], "mamba_expand": 2, "mamba_chunk_size": 4},
        nested=1,
        notes="`D * x` in the one Mamba layer",
    ),
    parallel(
        "falcon_mamba",
        "FalconMamba",
        {
            "vocab_size": 64,
            "hidden_size": 16,
            "state_size": 4,
            "num_hidden_layers": L,
            "use_cache": False,
        },
        nested=L,
    ),
    serial(
        "falcon_h1",
        "FalconH1",
        {**CAUSAL, **SSD, "mamba_d_ssm": 32, "mamba_chunk_size": 4},
        nested=L,
        notes="Mamba and attention side by side, then an MLP",
    ),
    serial(
        "jamba",
        "Jamba",
        {
            **CAUSAL,
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
        nested=1,
    ),
    parallel(
        "mamba2",
        "Mamba2",
        {
            "vocab_size": 64,
            "hidden_size": 16,
            "state_size": 4,
            "num_hidden_layers": L,
            "num_heads": 4,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 4,
            "use_cache": False,
        },
        nested=L,
    ),
    parallel(
        "nemotron_h",
        "NemotronH",
        {
            **CAUSAL,
            "layers_block_type": ["mamba", "attention"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "ssm_state_size": 4,
            "n_groups": 1,
            "chunk_size": 4,
        },
        nested=1,
        notes="one addition a layer",
    ),
    serial(
        "qwen3_next",
        "Qwen3Next",
        {
            **SPARSE,
            "shared_expert_intermediate_size": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
        nested=0,
        streams=1,
        notes="the delta rule's state is multiplied by a gate",
    ),
    serial(
        "recurrent_gemma",
        "RecurrentGemma",
        {
            **CAUSAL,
            "lru_width": 16,
            "attention_window_size": 8,
            "block_types": ["recurrent", "attention"],
        },
    ),
)

ENCODERS = (
    serial("convbert", "ConvBert", {**TEXT, "embedding_size": 16, "head_ratio": 1}),
    serial(
        "deberta", "Deberta", {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    ),
    serial("esm", "Esm", {**TEXT, "position_embedding_type": "rotary"}),
    serial("eurobert", "EuroBert"),
    Family(
        "funnel",
        "Funnel",
        {
            "vocab_size": 64,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
            "d_model": 16,
            "n_head": 2,
            "d_head": 8,
            "d_inner": 32,
        },
        7,
        nested=0,
        notes="3 layers x 2; the decoder adds the first block's output to the upsampled last",
    ),
    serial("ibert", "IBert", {**TEXT, "quant_mode": False}),
    Family(
        "mobilebert",
        "MobileBert",
        {
            **TEXT,
            "embedding_size": 16,
            "intra_bottleneck_size": 8,
            "num_feedforward_networks": 2,
            "true_hidden_size": 8,
        },
        4 * L,
        kinds={"identity": 3 * L, "projection": L},
        notes="attention (its shortcut is the bottleneck's projection), 2 MLPs, the outer one",
    ),
    serial("modernbert", "ModernBert", {**TEXT, "global_attn_every_n_layers": 1}),
    serial(
        "nystromformer", "Nystromformer", {**TEXT, "num_landmarks": 4, "segment_means_seq_len": 8}
    ),
    serial("xlm", "XLM", {"n_words": 64, "emb_dim": 16, "n_layers": L, "n_heads": 2}),
    Family(
        "xmod",
        "Xmod",
        {**TEXT, "languages": ["en_XX"], "default_language": "en_XX"},
        3 * L,
        notes="attention, MLP, adapter",
    ),
    seq2seq("blenderbot", "Blenderbot"),
    seq2seq("longt5", "LongT5", {**T5, "local_radius": 3}),
    seq2seq(
        "switch_transformers",
        "SwitchTransformers",
        {
            **T5,
            "num_decoder_layers": L,
            "num_experts": 4,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
        },
    ),
    Family(
        "pegasus_x",
        "PegasusX",
        {**SEQ2SEQ, "block_size": 4, "num_global_tokens": 2},
        7 * L,
        lambda: {"input_ids": ids(), "decoder_input_ids": ids(5)},
        notes="encoder: attention and MLP, of tokens and of global tokens; decoder: 3",
    ),
)

#: Every family of this part, in order.
TEXTS: tuple[Family, ...] = (*DECODERS, *STATES, *ENCODERS)
