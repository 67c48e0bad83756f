#!/usr/bin/env python3
"""Writes the golden files of this folder with PyTorch and Hugging Face transformers.

    python3 -m venv --system-site-packages VENV      # Debian 12: with python3-torch installed
    VENV/bin/pip install 'transformers==4.45.2'      # "made_with" in NAME.json has the version of each
    VENV/bin/python tests/model/golden/make_golden.py [FOLDER [NAME...]]

The families beside Llama need transformers 4.57.1 with a newer torch, from pip ("gemma3" and those behind it: 5.24.0). "muon" needs its
authors' code: a clone of github.com/KellerJordan/Muon in PYTHONPATH.

For each tiny random model: NAME.json describes, NAME.bin holds everything as little-endian
float32, one tensor after another. NAME.json:
    config      a Hugging Face config.json, or for Llama the keys of one that llamesh reads
    tokens, targets   (B, T) of integers; target -100 counts for nothing
    document_starts   only for packed rows: (B, T), the index in its row of the first token of each token's
                document. transformers is given the block-diagonal attention mask and the position_ids that
                follow from it.
    loss        the mean over the valid targets, before any step
    aux_loss, step_aux_losses   only with output_router_logits: the load-balancing loss. router_aux_loss_coef times it is
                added to the loss before gradients are taken, but not to the losses here.
    adamw       the options of torch.optim.AdamW and of clip_grad_norm_
    muon        only if its authors' optimizer updates the layers' matrices: lr and momentum
    step_losses, step_grad_norms   one per optimizer step, on the same batch: loss before the step, norm
                before clipping
    fp8         only if linear layers multiply in FP8, as torchao 0.18 quantizes (precision.linear: fp8). Not for comparing steps: one
                number that is rounded the other way changes what follows by more than float32 would.
    freeze      only with frozen parameters (requires_grad=False): patterns of their names. They have no gradients here.
    tensors     name -> {shape, offset}: offset counts float32 values. Names: weights/<parameter>,
                gradients/<parameter>, trained/<parameter> (after the last step), logits (B, T, V). Models with adapters
    (made with peft 0.21.2) have gradients of these only; their names are PEFT's without "base_model.model.".
Weights, matrix products, gradients and the optimizer are float64 here, from weights that are exact in
float32; transformers itself rounds norms, softmax and logits to float32. What is written is right to about
1e-6 relative, well below the tolerances that a comparison needs.
"""

import fnmatch
import functools
import json
import pathlib
import sys

import torch
import transformers

import other_families

STEPS, CLIP_NORM = 10, 1.0
SHAPE = (2, 12)  # batch, sequence
ADAMW = {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
COMMON = {"rms_norm_eps": 1e-5, "initializer_range": 0.08, "num_hidden_layers": 2}
MODELS = {
    # Grouped-query attention, 8 heads over 2, untied head.
    "gqa_8_2": {"hidden_size": 32, "intermediate_size": 44, "num_attention_heads": 8, "num_key_value_heads": 2,
                "head_dim": 4, "vocab_size": 48, "rope_theta": 10000.0, "tie_word_embeddings": False},
    # heads * head_dim differs from the hidden size; tied head; no vector width divides the vocabulary.
    "tied_6_3": {"hidden_size": 20, "intermediate_size": 36, "num_attention_heads": 6, "num_key_value_heads": 3,
                 "head_dim": 8, "vocab_size": 53, "rope_theta": 500000.0, "tie_word_embeddings": True},
    # Llama 3.1 frequency scaling. The original context is short, so that 12 positions with head_dim 16 cover
    # all three bands (kept, blended, divided by the factor).
    "llama3_rope": {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 2, "num_key_value_heads": 1,
                    "head_dim": 16, "vocab_size": 40, "rope_theta": 10000.0, "tie_word_embeddings": False,
                    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                     "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    # Several documents per row: one token, more than 64 tokens, and ends on either side of the 64th.
    "packed": {"hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2,
               "head_dim": 6, "vocab_size": 37, "rope_theta": 10000.0, "tie_word_embeddings": False,
               "initializer_range": 0.25},
    # As tied_6_3, but the hidden size is a multiple of the heads: transformers 5.4 and later require that.
    "tied_4_2": {"hidden_size": 20, "intermediate_size": 36, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "head_dim": 8, "vocab_size": 53, "rope_theta": 500000.0, "tie_word_embeddings": True},
    # Biases on every linear layer; the tensor axis may be 2 or 4, with shared kv heads.
    "biases": {"hidden_size": 28, "intermediate_size": 44, "num_attention_heads": 4, "num_key_value_heads": 2,
               "head_dim": 6, "vocab_size": 52, "rope_theta": 10000.0, "tie_word_embeddings": False,
               "attention_bias": True, "mlp_bias": True},
    # For tensor parallelism: every split size is divisible by 2, 3 and 4.
    "gqa_24_12": {"hidden_size": 24, "intermediate_size": 36, "num_attention_heads": 24, "num_key_value_heads": 12,
                  "head_dim": 4, "vocab_size": 48, "rope_theta": 10000.0, "tie_word_embeddings": False},
    # Frequencies of RoPE. The original context is short, so that all bands of yarn occur.
    "rope_linear": {"hidden_size": 20, "intermediate_size": 28, "num_attention_heads": 2, "num_key_value_heads": 1,
                    "head_dim": 8, "vocab_size": 41, "rope_theta": 10000.0, "tie_word_embeddings": False,
                    "initializer_range": 0.16, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "rope_yarn": {"hidden_size": 20, "intermediate_size": 28, "num_attention_heads": 2, "num_key_value_heads": 1,
                  "head_dim": 16, "vocab_size": 41, "rope_theta": 10000.0, "tie_word_embeddings": False,
                  "initializer_range": 0.16,
                  "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}},
    # 7 heads that share one kv head, and an odd vocabulary: nothing is even.
    "qwen2": {"model_type": "qwen2", "hidden_size": 28, "intermediate_size": 45, "num_attention_heads": 7,
              "num_key_value_heads": 1, "vocab_size": 53, "rope_theta": 1e6, "tie_word_embeddings": True,
              "initializer_range": 0.16},
    "qwen2_window": {"model_type": "qwen2", "hidden_size": 36, "intermediate_size": 52, "num_attention_heads": 6,
                     "num_key_value_heads": 2, "vocab_size": 54, "rope_theta": 1e6, "tie_word_embeddings": False,
                     "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 11,
                     "max_window_layers": 1},
    # head_dim is not hidden_size / num_attention_heads; the window ends within the sequence.
    "mistral": {"model_type": "mistral", "hidden_size": 28, "intermediate_size": 44, "num_attention_heads": 6,
                "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "rope_theta": 10000.0,
                "tie_word_embeddings": False, "initializer_range": 0.16, "sliding_window": 24},
    "qwen3": {"model_type": "qwen3", "hidden_size": 28, "intermediate_size": 44, "num_attention_heads": 6,
              "num_key_value_heads": 1, "head_dim": 10, "vocab_size": 54, "rope_theta": 1e6,
              "tie_word_embeddings": True, "initializer_range": 0.16},
    # Without a padding token, whose embedding would get no gradient.
    "olmo2": {"model_type": "olmo2", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
              "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 52, "rope_theta": 5e5,
              "tie_word_embeddings": False},
    "gpt2": {"model_type": "gpt2", "n_embd": 36, "n_head": 6, "n_layer": 2, "vocab_size": 54, "n_positions": 99},
    "packed_mistral": {"model_type": "mistral", "hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "head_dim": 6, "vocab_size": 37, "rope_theta": 10000.0,
                       "tie_word_embeddings": False, "initializer_range": 0.25, "sliding_window": 9},
    "packed_gpt2": {"model_type": "gpt2", "n_embd": 16, "n_head": 4, "n_layer": 2, "vocab_size": 37,
                    "n_positions": 85, "initializer_range": 0.25},
    # What the families have and their published models leave off; these sequences divide among tensor ranks.
    "qwen3_switches": {"model_type": "qwen3", "hidden_size": 20, "intermediate_size": 28, "num_attention_heads": 6,
                       "num_key_value_heads": 1, "head_dim": 10, "vocab_size": 42, "rope_theta": 10000.0,
                       "tie_word_embeddings": False, "initializer_range": 0.16, "attention_bias": True,
                       "use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1,
                       "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64,
                                        "attention_factor": 1.375, "beta_fast": 6.0, "beta_slow": 0.75,
                                        "truncate": False}},
    "olmo2_switches": {"model_type": "olmo2", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 28,
                       "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 44, "rope_theta": 10000.0,
                       "tie_word_embeddings": True, "attention_bias": True,
                       "rope_scaling": {"type": "linear", "factor": 4.0}},
    "gpt2_switches": {"model_type": "gpt2", "n_embd": 20, "n_head": 4, "n_layer": 2, "n_inner": 34, "vocab_size": 42,
                      "n_positions": 99, "initializer_range": 0.25, "layer_norm_epsilon": 1e-2,
                      "tie_word_embeddings": False},
    # Experts, none of whose sizes is even.
    "mixtral": {"model_type": "mixtral", "hidden_size": 20, "intermediate_size": 22, "num_attention_heads": 6,
                "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 43, "rope_theta": 1e6,
                "tie_word_embeddings": False, "initializer_range": 0.16, "num_local_experts": 5,
                "num_experts_per_tok": 2, "sliding_window": 24},
    "qwen3_moe": {"model_type": "qwen3_moe", "hidden_size": 20, "intermediate_size": 30, "moe_intermediate_size": 14,
                  "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 10, "vocab_size": 42,
                  "rope_theta": 1e6, "tie_word_embeddings": True, "initializer_range": 0.16, "num_experts": 7,
                  "num_experts_per_tok": 3, "norm_topk_prob": False},
    # With the load-balancing loss, which is large here.
    "mixtral_aux": {"model_type": "mixtral", "hidden_size": 20, "intermediate_size": 22, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "head_dim": 6, "vocab_size": 43, "rope_theta": 1e6,
                    "tie_word_embeddings": False, "initializer_range": 0.16, "num_local_experts": 5,
                    "num_experts_per_tok": 2, "num_hidden_layers": 3, "output_router_logits": True,
                    "router_aux_loss_coef": 0.5},
    # All tokens go to one expert (see COLLAPSED).
    "mixtral_collapsed": {"model_type": "mixtral", "hidden_size": 20, "intermediate_size": 22,
                          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "vocab_size": 43,
                          "rope_theta": 1e6, "tie_word_embeddings": False, "initializer_range": 0.16,
                          "num_local_experts": 3, "num_experts_per_tok": 1, "output_router_logits": True,
                          "router_aux_loss_coef": 0.75},
    # Many experts for few tokens: some have none.
    "qwen3_moe_aux": {"model_type": "qwen3_moe", "hidden_size": 20, "intermediate_size": 30,
                      "moe_intermediate_size": 5, "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 10,
                      "vocab_size": 42, "rope_theta": 1e6, "tie_word_embeddings": True, "initializer_range": 0.16,
                      "num_experts": 37, "num_experts_per_tok": 3, "norm_topk_prob": True,
                      "output_router_logits": True, "router_aux_loss_coef": 0.5},
    # Dense layers among sparse ones: layers 1 and 5 have experts.
    "qwen3_moe_dense": {"model_type": "qwen3_moe", "hidden_size": 20, "intermediate_size": 30,
                        "moe_intermediate_size": 14, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 10,
                        "vocab_size": 42, "rope_theta": 1e6, "tie_word_embeddings": True, "initializer_range": 0.16,
                        "num_hidden_layers": 7, "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": True,
                        "decoder_sparse_step": 2, "mlp_only_layers": [3], "output_router_logits": True,
                        "router_aux_loss_coef": 0.5},
    # Experts that divide among 2, 4 and 8 ranks, and tensor ranks within them.
    "mixtral_8": {"model_type": "mixtral", "hidden_size": 20, "intermediate_size": 22, "num_attention_heads": 6,
                  "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 44, "rope_theta": 1e6,
                  "tie_word_embeddings": False, "initializer_range": 0.16, "num_local_experts": 8,
                  "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.5},
    "qwen3_moe_8": {"model_type": "qwen3_moe", "hidden_size": 20, "intermediate_size": 30,
                    "moe_intermediate_size": 14, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
                    "vocab_size": 42, "rope_theta": 1e6, "tie_word_embeddings": True, "initializer_range": 0.16,
                    "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True,
                    "output_router_logits": True, "router_aux_loss_coef": 0.5},
    # Frozen parameters (see FROZEN), whose split sizes 2 and 4 divide.
    "frozen": {"hidden_size": 24, "intermediate_size": 36, "num_attention_heads": 8, "num_key_value_heads": 4,
               "head_dim": 4, "vocab_size": 48, "rope_theta": 10000.0, "tie_word_embeddings": False,
               "num_hidden_layers": 3, "attention_bias": True, "initializer_range": 0.25},
    "frozen_tied": {"hidden_size": 20, "intermediate_size": 36, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "head_dim": 8, "vocab_size": 52, "rope_theta": 500000.0, "tie_word_embeddings": True},
    # Adapters (see LORA).
    "lora": {"hidden_size": 20, "intermediate_size": 36, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 6, "vocab_size": 52, "rope_theta": 10000.0, "tie_word_embeddings": False,
             "attention_bias": True, "mlp_bias": True},
    "lora_qwen2": {"model_type": "qwen2", "hidden_size": 28, "intermediate_size": 45, "num_attention_heads": 7,
                   "num_key_value_heads": 1, "vocab_size": 53, "rope_theta": 1e6, "tie_word_embeddings": True,
                   "initializer_range": 0.16},
    "lora_gpt2": {"model_type": "gpt2", "n_embd": 20, "n_head": 4, "n_layer": 2, "n_inner": 34, "vocab_size": 42,
                  "n_positions": 99},
    # Matrices with more rows, and with more columns.
    "muon": {"hidden_size": 20, "intermediate_size": 36, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 6, "vocab_size": 43, "rope_theta": 10000.0, "tie_word_embeddings": False},
    # A long sequence for ranks that divide it, with a window and documents across their pieces.
    "long_mistral": {"model_type": "mistral", "hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 4,
                     "num_key_value_heads": 2, "head_dim": 6, "vocab_size": 13, "rope_theta": 10000.0,
                     "tie_word_embeddings": False, "initializer_range": 0.25, "sliding_window": 300},
    "gpt2_96": {"model_type": "gpt2", "n_embd": 16, "n_head": 4, "n_layer": 2, "vocab_size": 34, "n_positions": 96,
                "initializer_range": 0.25},
    # Norms around both halves of a layer with 1 + weight, GeGLU, scaled embeddings, a RoPE per type of layer, and scores
    # scaled by another size than head_dim; these sizes divide among two tensor ranks.
    "gemma3": {"model_type": "gemma3_text", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
               "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54,
               "num_hidden_layers": 3, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "initializer_range": 0.08,
               "query_pre_attn_scalar": 24, "sliding_window": 13,
               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
               "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                                   "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}}},
    # OLMo 3: windows by layer_types, whose RoPE is not scaled.
    "olmo3": {"model_type": "olmo3", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
              "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 52, "num_hidden_layers": 3,
              "sliding_window": 13, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
              "rope_theta": 500000.0, "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.25,
                                                       "original_max_position_embeddings": 64}},
    # EXAONE 4: only layers with a window rotate.
    "exaone4": {"model_type": "exaone4", "hidden_size": 20, "intermediate_size": 36, "num_attention_heads": 6,
                "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "rope_theta": 1e6, "num_hidden_layers": 3,
                "sliding_window": 13, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "tie_word_embeddings": True, "initializer_range": 0.16},
    # SmolLM3: a layer without RoPE.
    "smollm3": {"model_type": "smollm3", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
                "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 54, "rope_theta": 2e6,
                "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "tie_word_embeddings": True, "attention_bias": True,
                "initializer_range": 0.16},
    # Ministral: windows by layer_types, one RoPE.
    "ministral": {"model_type": "ministral", "hidden_size": 28, "intermediate_size": 44, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "rope_theta": 1e6,
                  "tie_word_embeddings": False, "initializer_range": 0.16, "num_hidden_layers": 3, "sliding_window": 24,
                  "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    # Seed-OSS: biases on q, k and v only.
    "seed_oss": {"model_type": "seed_oss", "pad_token_id": None, "hidden_size": 28, "intermediate_size": 44,
                 "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54,
                 "rope_theta": 1e6, "tie_word_embeddings": False, "initializer_range": 0.16, "attention_dropout": 0.0,
                 "residual_dropout": 0.0},
    # Phi-3: fused in its folders; a window.
    "phi3": {"model_type": "phi3", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
             "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 54, "rope_theta": 1e4,
             "tie_word_embeddings": False, "initializer_range": 0.16, "sliding_window": 24},
    # Hunyuan: norms of q and k after their rotation, with a stretched base.
    "hunyuan": {"model_type": "hunyuan_v1_dense", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54,
                "tie_word_embeddings": True, "initializer_range": 0.16,
                "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0}},
    # ERNIE 4.5: RoPE of neighboring dims.
    "ernie": {"model_type": "ernie4_5", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "rope_theta": 5e5,
              "tie_word_embeddings": True, "initializer_range": 0.16, "use_bias": True},
    # GLM-4: as ERNIE, of some dims; norms before and after both halves of a layer; gate and up fused in its folders.
    "glm4": {"model_type": "glm4", "pad_token_id": None, "hidden_size": 28, "intermediate_size": 44,
             "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "rope_theta": 1e4,
             "tie_word_embeddings": False, "initializer_range": 0.16, "attention_bias": True,
             "partial_rotary_factor": 0.6},
    # Granite: a multiplier for everything.
    "granite": {"model_type": "granite", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
                "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 54, "rope_theta": 1e4,
                "tie_word_embeddings": True, "initializer_range": 0.16, "attention_multiplier": 0.25,
                "embedding_multiplier": 3.0, "residual_multiplier": 0.375, "logits_scaling": 0.5},
    # Arcee: squared ReLU without a gate.
    "arcee": {"model_type": "arcee", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
              "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "rope_theta": 1e4,
              "tie_word_embeddings": False, "initializer_range": 0.16, "mlp_bias": True,
              "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64,
                               "mscale": 1.5, "mscale_all_dim": 0.5}},
    # Gemma, the first.
    "gemma": {"model_type": "gemma", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54,
              "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "initializer_range": 0.25},
    # Nemotron: LayerNorms with 1 + weight; some dims rotate. StarCoder2: LayerNorms, GELU without a gate.
    "nemotron": {"model_type": "nemotron", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54,
                 "tie_word_embeddings": False, "initializer_range": 0.16, "norm_eps": 1e-3, "attention_bias": True,
                 "partial_rotary_factor": 0.4},
    "starcoder2": {"model_type": "starcoder2", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 54, "tie_word_embeddings": True,
                   "initializer_range": 0.16, "norm_epsilon": 1e-3, "sliding_window": 24},
    # Adapters of layers whose rows its folders have in another order (see LORA).
    "lora_glm4": {"model_type": "glm4", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
                  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 52,
                  "tie_word_embeddings": False, "attention_bias": False, "partial_rotary_factor": 0.4},
    # Apertus: xIELU, whose coefficients are learned.
    "apertus": {"model_type": "apertus", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
                "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54,
                "tie_word_embeddings": False, "initializer_range": 0.16,
                "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    # Qwen2-MoE: an expert for all tokens, behind a gate, beside the others; a dense layer. OLMoE: norms over all of q and k.
    "qwen2_moe": {"model_type": "qwen2_moe", "hidden_size": 24, "intermediate_size": 44, "moe_intermediate_size": 14,
                  "shared_expert_intermediate_size": 18, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "vocab_size": 54, "num_hidden_layers": 3, "rope_theta": 1e6, "tie_word_embeddings": False,
                  "initializer_range": 0.16, "num_experts": 8, "num_experts_per_tok": 3, "mlp_only_layers": [1],
                  "output_router_logits": True, "router_aux_loss_coef": 0.5},
    "olmoe": {"model_type": "olmoe", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 14,
              "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 54, "rope_theta": 1e4,
              "tie_word_embeddings": False, "initializer_range": 0.16, "num_experts": 8, "num_experts_per_tok": 2},
    # GLM-4.5: sigmoid routers that choose by biased scores, in the best of several groups; a shared expert without a gate;
    # the first layer dense; some dims rotate. MiniMax-M2: likewise, without groups and shared expert; norms over all of q and k.
    "glm4_moe": {"model_type": "glm4_moe", "hidden_size": 24, "intermediate_size": 44, "moe_intermediate_size": 14,
                 "n_shared_experts": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54,
                 "num_hidden_layers": 3, "rope_theta": 1e6, "tie_word_embeddings": False, "initializer_range": 0.16,
                 "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
                 "routed_scaling_factor": 1.5, "use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 0.4},
    "minimax_m2": {"model_type": "minimax_m2", "hidden_size": 24, "intermediate_size": 14, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "rope_theta": 1e4,
                   "tie_word_embeddings": False, "initializer_range": 0.16, "num_local_experts": 8,
                   "num_experts_per_tok": 2, "rotary_dim": 4},
    # GLM, the first: as GLM-4, with norms before both halves only.
    "glm": {"model_type": "glm", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "rope_theta": 1e4, "tie_word_embeddings": False,
            "initializer_range": 0.16, "attention_bias": True, "partial_rotary_factor": 0.4},
    # Scores and logits that the softcaps change; every second layer has a window; the query scale is not head_dim.
    "gemma2": {"model_type": "gemma2", "pad_token_id": None, "num_hidden_layers": 3, "hidden_size": 24, "intermediate_size": 44,
               "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "rope_theta": 1e4,
               "initializer_range": 0.2, "sliding_window": 20, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 1.5,
               "final_logit_softcapping": 2.5},
    # Attention and MLP behind the same LayerNorm without a bias; pairs (2i, 2i + 1); scaled logits.
    "cohere": {"model_type": "cohere", "hidden_size": 24, "intermediate_size": 44, "num_attention_heads": 4,
               "num_key_value_heads": 2, "vocab_size": 54, "rope_theta": 1e4, "initializer_range": 0.25, "logit_scale": 1.25,
               "layer_norm_eps": 1e-4, "pad_token_id": None},
    # Likewise; only layers with a window rotate.
    "cohere2": {"model_type": "cohere2", "num_hidden_layers": 4, "hidden_size": 24, "intermediate_size": 44,
                "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 54, "rope_theta": 1e4,
                "initializer_range": 0.25, "logit_scale": 1.25, "sliding_window": 20, "attention_bias": True,
                "tie_word_embeddings": False, "pad_token_id": None},
    # As Phi-4-mini: a part of each head rotates, by long_factor in the first and by short_factor in the second.
    "longrope": {"model_type": "phi3", "hidden_size": 24, "intermediate_size": 44, "num_attention_heads": 2,
                 "num_key_value_heads": 1, "vocab_size": 54, "rope_theta": 1e4, "tie_word_embeddings": True,
                 "initializer_range": 0.16, "pad_token_id": None, "partial_rotary_factor": 0.67,
                 "original_max_position_embeddings": 40,
                 "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.5, 6.0, 11.0]}},
    "shortrope": {"model_type": "phi3", "hidden_size": 24, "intermediate_size": 44, "num_attention_heads": 2,
                  "num_key_value_heads": 1, "vocab_size": 54, "rope_theta": 1e4, "tie_word_embeddings": True,
                  "initializer_range": 0.16, "pad_token_id": None, "original_max_position_embeddings": 128,
                  "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.2],
                                   "long_factor": [1.0, 2.5, 6.0, 11.0, 12.0, 13.0]}},
    # yarn, and queries that grow with their position.
    "ministral3": {"model_type": "ministral3", "hidden_size": 24, "intermediate_size": 44, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "initializer_range": 0.16, "pad_token_id": None,
                   "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                       "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 32,
                                       "max_position_embeddings": 512, "llama_4_scaling_beta": 0.5}},
    # Granite 4's dense models: the multipliers, and the MLP beside the experts, fused in the folder.
    "granite4": {"model_type": "granitemoehybrid", "hidden_size": 24, "shared_intermediate_size": 44, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "vocab_size": 54, "rope_theta": 1e4, "tie_word_embeddings": True,
                 "initializer_range": 0.16, "num_local_experts": 0, "layer_types": ["full_attention"] * 2,
                 "position_embedding_type": "rope", "mamba_n_heads": 1, "time_step_limit": [0.0, 1.0],
                 "attention_multiplier": 0.5, "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 0.7},
    # Latent attention: with a latent of queries as well, values shorter than keys, and yarn, which scales the scores, too; and
    # without, with values longer than keys. Routers as GLM-4.5's.
    "deepseek_v3": {"model_type": "deepseek_v3", "hidden_size": 24, "intermediate_size": 44, "moe_intermediate_size": 14,
                    "n_shared_experts": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 14,
                    "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8, "vocab_size": 54,
                    "num_hidden_layers": 3, "first_k_dense_replace": 1, "initializer_range": 0.2, "n_routed_experts": 8,
                    "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "attention_bias": True,
                    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                        "mscale": 1.0, "mscale_all_dim": 0.8, "original_max_position_embeddings": 32}},
    # DeepSeek-V2: softmax routers, in the groups with the best experts; their weights do not add up to 1.
    "deepseek_v2": {"model_type": "deepseek_v2", "hidden_size": 24, "intermediate_size": 44, "moe_intermediate_size": 14,
                    "n_shared_experts": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 14,
                    "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 6, "vocab_size": 54,
                    "num_hidden_layers": 3, "first_k_dense_replace": 1, "initializer_range": 0.2, "n_routed_experts": 8,
                    "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy",
                    "routed_scaling_factor": 2.0, "rope_theta": 1e4, "tie_word_embeddings": False},
    "glm4_moe_lite": {"model_type": "glm4_moe_lite", "hidden_size": 24, "intermediate_size": 44, "moe_intermediate_size": 14,
                      "n_shared_experts": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": None,
                      "kv_lora_rank": 10, "qk_nope_head_dim": 4, "qk_rope_head_dim": 6, "v_head_dim": 12, "vocab_size": 54,
                      "num_hidden_layers": 3, "mlp_layer_types": ["sparse", "dense", "sparse"], "initializer_range": 0.2,
                      "n_routed_experts": 8, "num_experts_per_tok": 2, "routed_scaling_factor": 1.5, "rope_theta": 1e4,
                      "tie_word_embeddings": True},
    "lora_deepseek": {"model_type": "deepseek_v3", "hidden_size": 24, "intermediate_size": 44, "moe_intermediate_size": 14,
                      "n_shared_experts": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 14,
                      "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8, "vocab_size": 54,
                      "first_k_dense_replace": 1, "initializer_range": 0.2, "n_routed_experts": 8, "num_experts_per_tok": 3,
                      "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "rope_theta": 1e4},
    # gpt-oss: sinks, experts and routers with biases, some of them beyond the limits of their SwiGLU, windows in every other layer.
    "gpt_oss": {"model_type": "gpt_oss", "hidden_size": 24, "intermediate_size": 20, "num_attention_heads": 6,
                "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 54, "initializer_range": 0.25, "num_local_experts": 8,
                "num_experts_per_tok": 3, "sliding_window": 7, "tie_word_embeddings": False,
                "rope_parameters": {"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                    "truncate": False, "original_max_position_embeddings": 64}},
    # All biases, and a base of RoPE that grows with the text.
    "internlm3": {"model_type": "internlm3", "hidden_size": 24, "intermediate_size": 44, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "initializer_range": 0.2, "qkv_bias": True,
                  "bias": True, "pad_token_id": None, "max_position_embeddings": 40,
                  "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 6.0}},
    # Qwen2's model, by other names.
    "mimo": {"model_type": "mimo", "hidden_size": 24, "intermediate_size": 44, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 54, "rope_theta": 640000.0, "initializer_range": 0.2,
             "tie_word_embeddings": False},
    # Llama's, by other names and with q, k and v fused by kv head.
    "internlm2": {"model_type": "internlm2", "hidden_size": 24, "intermediate_size": 44, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "vocab_size": 54, "initializer_range": 0.2, "pad_token_id": None,
                  "max_position_embeddings": 40,
                  "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    # Ling 2: q, k and v fused, of which a part of each head rotates behind its norm; routers as DeepSeek-V3's.
    "ling2": {"model_type": "bailing_moe", "hidden_size": 24, "intermediate_size": 44, "moe_intermediate_size": 14,
              "moe_shared_expert_intermediate_size": 14, "num_shared_experts": 1, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 12, "partial_rotary_factor": 0.5, "vocab_size": 54, "num_hidden_layers": 3,
              "first_k_dense_replace": 1, "initializer_range": 0.2, "num_experts": 8, "num_experts_per_tok": 3, "n_group": 4,
              "topk_group": 2, "routed_scaling_factor": 2.5, "rope_theta": 1e4, "use_qkv_bias": True, "use_bias": True,
              "norm_topk_prob": True, "score_function": "sigmoid", "router_dtype": "fp32", "use_rmsnorm": True,
              "pad_token_id": None, "eos_token_id": 2},
    # Pairs (2i, 2i + 1) rotate; biases on q, k and v, and on the MLP.
    "helium": {"model_type": "helium", "hidden_size": 24, "intermediate_size": 44, "num_attention_heads": 4,
               "num_key_value_heads": 2, "head_dim": 6, "vocab_size": 54, "rope_theta": 1e4, "initializer_range": 0.2,
               "attention_bias": True, "mlp_bias": True, "pad_token_id": None},
    # As GLM-4.5, with biases on q, k, v and o, all of each head rotated, and weights that do not add up to 1.
    "dots1": {"model_type": "dots1", "hidden_size": 24, "intermediate_size": 44, "moe_intermediate_size": 14,
              "n_shared_experts": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 54, "num_hidden_layers": 3,
              "rope_theta": 1e4, "initializer_range": 0.2, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4,
              "topk_group": 2, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "attention_bias": True},
    # Linear layers in FP8 (see FP8). Few numbers, so that no processor rounds one of them the other way.
    "fp8": {"num_hidden_layers": 1, "hidden_size": 20, "intermediate_size": 36, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
            "vocab_size": 43, "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": True,
            "initializer_range": 0.25},
    "fp8_qwen3_moe": {"model_type": "qwen3_moe", "num_hidden_layers": 1, "hidden_size": 20, "intermediate_size": 30, "moe_intermediate_size": 14,
                      "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 42,
                      "rope_theta": 1e6, "tie_word_embeddings": True, "initializer_range": 0.25, "num_experts": 7,
                      "num_experts_per_tok": 3, "norm_topk_prob": True},
    # Adapters of layers that are one in folders (see LORA).
    "lora_phi3": {"model_type": "phi3", "pad_token_id": None, "hidden_size": 24, "intermediate_size": 44,
                  "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 52, "rope_theta": 1e4,
                  "partial_rotary_factor": 0.67, "tie_word_embeddings": False, "attention_dropout": 0.0},
    "lora_gpt2_attn": {"model_type": "gpt2", "n_embd": 20, "n_head": 4, "n_layer": 2, "n_inner": 34, "vocab_size": 42,
                       "n_positions": 99, "initializer_range": 0.2},
}
# The lowest layer and parts of those above; parts of each layer above a trained embedding.
FROZEN = {"frozen": ["model.embed_tokens.weight", "model.layers.0.*", "*.k_proj.*", "*.gate_proj.weight",
                     "*.2.input_layernorm.weight", "*.v_proj.bias", "lm_head.weight"],
          "frozen_tied": ["*.mlp.*", "*.self_attn.q_proj.weight", "model.norm.weight"]}
# LoraConfig's keys. The models with adapters are those of PEFT, which trains the adapters alone.
LORA = {
    "lora": {"r": 3, "lora_alpha": 7, "use_rslora": True,
             "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
    "lora_qwen2": {"r": 5, "lora_alpha": 8, "target_modules": ["down_proj", "q_proj", "v_proj"]},
    "lora_glm4": {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "k_proj", "v_proj", "down_proj"]},
    "lora_deepseek": {"r": 3, "lora_alpha": 5,
                      "target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]},
    "lora_gpt2": {"r": 2, "lora_alpha": 3, "target_modules": ["c_fc", "c_proj"], "fan_in_fan_out": True},
    "lora_phi3": {"r": 3, "lora_alpha": 5, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
    "lora_gpt2_attn": {"r": 2, "lora_alpha": 3, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True},
}
LORA_CLIP_NORM = 0.1  # their gradients are smaller
# A constant in every embedding makes its first router weight decide.
COLLAPSED = ("mixtral_collapsed",)
FP8 = {"fp8": 16, "fp8_qwen3_moe": 16}  # with seeds for which margins are wide
FP8_MARGIN = 1.5e-6
MUON = {"muon": {"lr": 0.02, "momentum": 0.95}}
# GPT-2 has no dropout here.
GPT2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "initializer_range": 0.08}
SHAPES = {name: (2, 97) for name in ("rope_linear", "rope_yarn", "qwen2", "qwen2_window", "mistral", "gpt2")}
SHAPES |= {name: (2, 97) for name in ("mixtral", "qwen3_moe")}
SHAPES |= {name: (2, 98) for name in ("mixtral_8", "qwen3_moe_8")}
SHAPES |= {"gpt2_96": (2, 96), "mixtral_aux": (2, 33), "qwen3_moe_aux": (2, 12), "qwen3_moe_dense": (2, 18)}
SHAPES |= {name: (2, 98) for name in ("qwen3", "olmo2", "qwen3_switches", "olmo2_switches", "gpt2_switches", "gemma3")}
SHAPES |= {name: (2, 98) for name in ("olmo3", "exaone4", "smollm3", "ministral", "seed_oss", "phi3", "hunyuan")}
SHAPES |= {name: (2, 98) for name in ("apertus", "olmoe", "glm4_moe", "minimax_m2", "glm")}
SHAPES |= {"qwen2_moe": (2, 96)}  # context ranks divide it: padding would count in its load-balancing loss
SHAPES |= {name: (2, 98) for name in ("ernie", "glm4", "granite", "arcee", "gemma", "nemotron", "starcoder2")}
SHAPES |= {name: (2, 98) for name in ("gpt_oss", "mimo", "ling2", "helium", "dots1")}
SHAPES |= {name: (2, 96) for name in ("internlm2", "internlm3")}  # likewise in the length by which RoPE's base grows
SHAPES |= {name: (2, 98) for name in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")}
SHAPES |= {name: (2, 98) for name in ("gemma2", "cohere", "cohere2", "longrope", "shortrope", "ministral3", "granite4")}
SHAPES |= {"fp8": (2, 5), "fp8_qwen3_moe": (2, 5)}
DOCUMENT_LENGTHS = {name: [[5, 1, 57, 2, 20], [70, 15]] for name in ("packed", "packed_mistral", "packed_gpt2")}
DOCUMENT_LENGTHS["long_mistral"] = [[600, 1, 423], [1000, 24]]


def is_gpt2(config):
    return config.get("model_type") == "gpt2"


def make_config(config):
    if "model_type" not in config:
        return transformers.LlamaConfig(**COMMON | config, max_position_embeddings=512)
    if is_gpt2(config):
        return transformers.GPT2Config(**GPT2 | config)
    return transformers.AutoConfig.for_model(**{"max_position_embeddings": 512} | COMMON | config)


def collapse(model):
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 4.0
        for name, parameter in model.named_parameters():
            if name.endswith("block_sparse_moe.gate.weight"):
                parameter[:, 0] = torch.tensor([0.3] + [-0.15] * (parameter.shape[0] - 1))


def make_model(config, collapsed=False):
    """The model in float64, with weights that are exact in float32. Norm weights and biases are random as well:
    ones and zeros would hide a norm or a bias that is applied in the wrong place."""
    eager = {"attn_implementation": "eager"}
    if int(transformers.__version__.split(".")[0]) >= 5:
        eager["experts_implementation"] = "eager"  # in float64 the only one
    model = transformers.AutoModelForCausalLM.from_config(make_config(config), **eager).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.normal_(std=0.3)
            elif name.endswith("_proj_bias"):  # of experts
                parameter.normal_(std=4 if "gate_up" in name else 0.3)
            elif parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
                if model.config.model_type in ("gemma", "gemma2", "gemma3_text", "nemotron"):  # computes 1 + weight
                    parameter.sub_(1)
        for _, bias in biases_of_choice(model):
            bias.uniform_(-0.3, 0.3)
    if collapsed:
        collapse(model)
    return model.double()


def with_adapters(model, lora):
    """The model with PEFT's adapters. B is random: zeros would hide A."""
    import peft  # not needed for the other models

    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **lora), autocast_adapter_dtype=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_((parameter if ".lora_A." in name else torch.randn(parameter.shape) * 0.1).float())
    return model


def unwrapped(name):
    """The name without PEFT's wrappers."""
    return name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".default", "")


def parameters_of(model):
    return ((unwrapped(name), parameter) for name, parameter in model.named_parameters())


def biases_of_choice(model):
    """Buffers, which no optimizer updates."""
    return ((unwrapped(name), buffer) for name, buffer in model.named_buffers() if name.endswith(("e_score_correction_bias", "expert_bias")))


def folder_name(model_type, name):
    """MiniMax-M2's folders keep the names of Mixtral's."""
    if model_type != "minimax_m2":
        return name
    for ours, theirs in (".mlp.", ".block_sparse_moe."), ("gate_proj.", "w1."), ("down_proj.", "w2."), ("up_proj.", "w3."):
        name = name.replace(ours, theirs)
    return name


def as_stored(model, tensors):
    """With a tensor for each matrix of each expert, as in folders: transformers 5 stacks them, gate and up in one."""
    model_type = model.config.model_type
    for name, tensor in other_families.as_published(model.config, tensors):
        experts, _, last = name.rpartition(".")
        if tensor.dim() < 3 or model_type == "gpt_oss":
            yield folder_name(model_type, name), tensor
            continue
        for i, expert in enumerate(tensor):
            parts = expert.chunk(2) if last == "gate_up_proj" else [expert]
            for part, matrix in zip(last.replace("gate_up", "gate_proj up").split(), parts, strict=True):
                yield folder_name(model_type, f"{experts}.{i}.{part}.weight"), matrix.contiguous()


def starts_of(lengths):
    """(B, T) from the lengths of each row's documents, or None."""
    if lengths is None:
        return None
    return torch.tensor([[sum(row[:i]) for i, length in enumerate(row) for _ in range(length)] for row in lengths])


def document_arguments(starts, window):
    """What tells transformers of the documents: a mask (B, 1, T, T) that is added to the scores, and positions.
    It applies no window of its own to such a mask."""
    if starts is None:
        return {}
    index = torch.arange(starts.shape[1])
    query, key = index[:, None], index[None, :]
    visible = (key <= query) & (key > query - window) & (starts[:, :, None] == starts[:, None, :])
    mask = torch.where(visible, 0.0, torch.finfo(torch.float32).min)
    return {"attention_mask": mask[:, None].double(), "position_ids": index - starts}


def losses_and_logits(model, tokens, targets, documents):
    """The cross-entropy, the load-balancing loss or None, and the logits."""
    out = model(input_ids=tokens, use_cache=False, **documents)
    logits = out.logits.double()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    return loss, getattr(out, "aux_loss", None), logits


def backward(model, loss, aux_loss):
    """An expert without tokens has a gradient of zero, where transformers' has none."""
    (loss if aux_loss is None else loss + model.config.router_aux_loss_coef * aux_loss).backward()
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def adamw_of(config):
    """With a larger eps for the families beside Llama: some gradients are 0 but for rounding, as those of GPT-2's key
    biases, which shift all scores of a query alike. Divided by their own size, they would move weights by noise."""
    return ADAMW | ({"eps": 1e-4} if "model_type" in config else {})


class Fp8Linear(torch.autograd.Function):
    """x times w transposed, with both and the output's gradient as torchao quantizes them: each row for itself, by a power of
    two. The weight's gradient is not quantized."""

    margin = 1.0  # the least distance of a number to the middle of two E4M3 numbers so far, as a share of its row's largest

    @staticmethod
    def quantized(x):
        from torchao.float8 import config, float8_scaling_utils, float8_training_tensor

        q = float8_scaling_utils.hp_tensor_to_float8_dynamic(
            x.float(), torch.float8_e4m3fn, float8_training_tensor.LinearMMConfig(), axiswise_dim=-1,
            scaling_granularity=config.ScalingGranularity.AXISWISE, round_scales_to_power_of_2=True)
        scaled = (x * q._scale).abs()
        spacing = torch.exp2(scaled.clamp(min=2**-6).log2().floor() - 3)
        distance = ((scaled / spacing) % 1 - 0.5).abs() * spacing
        matters = spacing > 1e-4 * scaled.amax(-1, keepdim=True)
        Fp8Linear.margin = min([Fp8Linear.margin, *(distance / scaled.amax(-1, keepdim=True))[matters].tolist()])
        return q.to_original_precision().double()

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return Fp8Linear.quantized(x) @ Fp8Linear.quantized(w).T

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dy = dy.contiguous()
        dx = Fp8Linear.quantized(dy) @ Fp8Linear.quantized(w.T.contiguous()).T
        return dx, dy.flatten(0, -2).T @ x.flatten(0, -2)


class WeightedFp8Linear(torch.autograd.Function):
    """The same, and each output row times a number. Its gradient is quantized without the number, which comes behind the
    product with the weight, too; the number's gradient is taken there."""

    @staticmethod
    def forward(ctx, x, w, numbers):
        ctx.save_for_backward(x, w, numbers)
        return Fp8Linear.quantized(x) @ Fp8Linear.quantized(w).T * numbers

    @staticmethod
    def backward(ctx, dy):
        x, w, numbers = ctx.saved_tensors
        dx = Fp8Linear.quantized(dy.contiguous()) @ Fp8Linear.quantized(w.T.contiguous()).T
        return dx * numbers, (dy * numbers).T @ x, (dx * x).sum(-1, keepdim=True)


def experts_in_fp8(self, x, chosen, weights):
    y = torch.zeros_like(x)
    for expert in range(self.num_experts):
        tokens, places = torch.where(chosen == expert)
        if len(tokens) == 0:
            continue
        gate, up = (Fp8Linear.apply(x[tokens], part.contiguous()) for part in self.gate_up_proj[expert].chunk(2))
        rows = WeightedFp8Linear.apply(self.act_fn(gate) * up, self.down_proj[expert], weights[tokens, places, None])
        y = y.index_add(0, tokens, rows)
    return y


def use_fp8(model):
    """Lets the layers' linear layers and experts multiply in FP8."""
    Fp8Linear.margin = 1.0
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith("_proj"):
            module.forward = lambda x, of=module: Fp8Linear.apply(x, of.weight) + (0 if of.bias is None else of.bias)
        elif name.endswith(".experts"):
            module.forward = functools.partial(experts_in_fp8, module)


def make_optimizer(model, options):
    """Weight decay on matrices only, as in llamesh, not on the biases of experts."""
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    decays = {n: p.dim() >= 2 and not n.endswith("_bias") for n, p in trained}
    groups = [{"params": [p for n, p in trained if decays[n]], "weight_decay": options["weight_decay"]},
              {"params": [p for n, p in trained if not decays[n]], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options["lr"], betas=tuple(options["betas"]), eps=options["eps"])


def make_muon(model, options, muon):
    """The authors' optimizer as it is, but in the model's float64 where they round to bfloat16."""
    from muon import SingleDeviceMuonWithAuxAdam

    torch.Tensor.bfloat16 = lambda tensor: tensor
    hidden = [p for n, p in model.named_parameters() if ".layers." in n and p.dim() == 2]
    others = [p for p in model.parameters() if not any(p is h for h in hidden)]
    adam = {"use_muon": False, "lr": options["lr"], "betas": tuple(options["betas"]), "eps": options["eps"]}
    return SingleDeviceMuonWithAuxAdam([
        {"params": hidden, "use_muon": True, "weight_decay": options["weight_decay"]} | muon,
        {"params": [p for p in others if p.dim() == 2], "weight_decay": options["weight_decay"]} | adam,
        {"params": [p for p in others if p.dim() == 1], "weight_decay": 0.0} | adam])


def stored_config(model, config):
    if "model_type" not in config:
        return COMMON | config
    model.config.architectures = [type(model).__name__]
    return other_families.published_config(json.loads(model.config.to_json_string()))


def write(folder, name, config, seed):
    torch.manual_seed(seed)
    model = make_model(config, name in COLLAPSED)
    described = stored_config(model, config)
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(fnmatch.fnmatchcase(parameter_name, p) for p in FROZEN.get(name, [])))
    if name in LORA:
        model = with_adapters(model, LORA[name])
        described |= {"llamesh_lora": LORA[name]}
    starts = starts_of(DOCUMENT_LENGTHS.get(name))
    documents = document_arguments(starts, config.get("sliding_window", 512))
    batch, sequence = SHAPES.get(name, SHAPE) if starts is None else starts.shape
    stream = torch.randint(config["vocab_size"], (batch, sequence + 1))
    tokens, targets = stream[:, :-1].contiguous(), stream[:, 1:].clone()
    targets[1, :3] = -100  # rows with different numbers of valid targets
    biases = {folder_name(model.config.model_type, n): b.clone() for n, b in biases_of_choice(model)}
    weights = ((n, p.detach()) for n, p in parameters_of(model))
    tensors = {f"weights/{n}": p.clone() for n, p in as_stored(model, weights)}
    tensors |= {f"weights/{n}": b for n, b in biases.items()}

    if name in FP8:
        use_fp8(model)
    loss, aux_loss, logits = losses_and_logits(model, tokens, targets, documents)
    backward(model, loss, aux_loss)
    assert Fp8Linear.margin > FP8_MARGIN, Fp8Linear.margin
    tensors["logits"] = logits.detach()
    gradients = ((n, p.grad) for n, p in parameters_of(model) if p.requires_grad)
    tensors |= {f"gradients/{n}": g.clone() for n, g in as_stored(model, gradients)}
    tensors |= {f"gradients/{n}": torch.zeros_like(b) for n, b in biases.items()}

    muon = MUON.get(name)
    optimizer = make_muon(model, adamw_of(config), muon) if muon else make_optimizer(model, adamw_of(config))
    losses, aux_losses, norms = [], [], []
    clip_norm = LORA_CLIP_NORM if name in LORA else CLIP_NORM
    for _ in range(STEPS):
        optimizer.zero_grad()
        step_loss, step_aux_loss, _ = losses_and_logits(model, tokens, targets, documents)
        backward(model, step_loss, step_aux_loss)
        if step_aux_loss is not None:
            aux_losses.append(step_aux_loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm).item())
        optimizer.step()
        losses.append(step_loss.item())
    weights = ((n, p.detach()) for n, p in parameters_of(model))
    tensors |= {f"trained/{n}": p for n, p in as_stored(model, weights)}
    tensors |= {f"trained/{n}": b for n, b in biases.items()}

    index, data, offset = {}, b"", 0
    for tensor_name, tensor in tensors.items():
        index[tensor_name] = {"shape": list(tensor.shape), "offset": offset}
        data += tensor.float().contiguous().numpy().astype("<f4").tobytes()
        offset += tensor.numel()
    description = {
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__, "seed": seed},
        "config": described, "tokens": tokens.tolist(), "targets": targets.tolist(), "loss": loss.item(),
        "adamw": adamw_of(config) | {"clip_norm": clip_norm}, "step_losses": losses, "step_grad_norms": norms, "tensors": index}
    if aux_losses:
        description |= {"aux_loss": aux_loss.item(), "step_aux_losses": aux_losses}
    if name in FROZEN:
        description["freeze"] = FROZEN[name]
    if muon:
        description["muon"] = muon
    if name in FP8:
        description["fp8"] = True
    if starts is not None:
        description["document_starts"] = starts.tolist()
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in description.items()]
    (folder / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    (folder / f"{name}.bin").write_bytes(data)
    print(f"{name}: {offset} values, {len(data)} bytes, loss {loss.item():.6f} -> {losses[-1]:.6f}, "
          f"first norm {norms[0]:.3f}, last norm {norms[-1]:.3f}")


def main():
    other_families.register()
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for seed, (name, config) in enumerate(MODELS.items(), start=1):
        if len(sys.argv) < 3 or name in sys.argv[2:]:
            write(folder, name, config, FP8.get(name, seed))


if __name__ == "__main__":
    main()
