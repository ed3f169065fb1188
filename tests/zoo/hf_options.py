"""Options of the tiny `transformers` configurations, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch

L = 2  #: layers of every model (of each of encoder and decoder)

TEXT = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": L,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CAUSAL = {**TEXT, "num_key_value_heads": 2, "head_dim": 8, "use_cache": False}
GPT = {
    "vocab_size": 64,
    "n_positions": 32,
    "n_embd": 16,
    "n_layer": L,
    "n_head": 2,
    "use_cache": False,
}
SEQ2SEQ = {
    "vocab_size": 64,
    "d_model": 16,
    "encoder_layers": L,
    "decoder_layers": L,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
    "use_cache": False,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
PIXELS = {
    "hidden_size": 16,
    "num_hidden_layers": L,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
WAVES = {
    **TEXT,
    "conv_dim": (8, 8),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
    "apply_spec_augment": False,
}


def ids(length: int = 8) -> torch.Tensor:
    return torch.randint(3, 60, (2, length))


def text() -> dict[str, Any]:
    return {"input_ids": ids()}


def text_pair() -> dict[str, Any]:
    return {"input_ids": ids(), "decoder_input_ids": ids(5)}


def pixels() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def pixels64() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 64, 64)}


def waves() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 400)}


MOE = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_experts": 4}
DEEPSEEK = {
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
T5 = {
    "vocab_size": 64,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": L,
    "num_heads": 2,
    "use_cache": False,
}
CLIP = {
    "text_config": TEXT,
    "vision_config": PIXELS,
    "projection_dim": 8,
}
PYRAMID = {
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [1, 2],
    "window_size": 4,
    "image_size": 32,
    "patch_size": 2,
}
