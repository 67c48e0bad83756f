#!/usr/bin/env python3
"""Compares how llamesh and transformers read thousands of changed config.json files, and writes config_mutations.json.

    ninja -C build/ci config_verdicts
    VENV/bin/python tests/model/golden/config_mutations.py build/ci/tests/config_verdicts [NAME...]     # VENV as for make_golden.py

Each key of each model is left out, set to null, and given values of other types, of other sizes, and those that mean
something else. Keys of other versions and other families are added. transformers then builds two models with the same
weights, one from the changed file and one from what llamesh reads in it. "wrong" counts those that differ in logits,
loss, dropout or initial values: llamesh would train another model in silence. There must be none.
"""

import collections
import contextlib
import hashlib
import io
import json
import math
import pathlib
import subprocess
import sys

import torch
import transformers

import other_families
import with_images

other_families.register()
GOLDEN = pathlib.Path(__file__).parent / "config_mutations.json"
TOKENS = torch.arange(24).remainder(11).reshape(2, 12)

SHAPE = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 13, "max_position_embeddings": 48}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 500.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16, "rope_theta": 500.0}
BY_TYPE = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
           "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}
WINDOW = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.02}
LATENT = {"num_experts_per_tok": 2, "moe_intermediate_size": 10, "n_routed_experts": 4, "n_shared_experts": 1,
          "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
          "v_head_dim": 6, "routed_scaling_factor": 1.5}
OWN_SIZE = EXPERTS | {"moe_intermediate_size": 10, "head_dim": 6}
GPT2 = {"n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 48, "vocab_size": 13, "attn_pdrop": 0.0,
        "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
# Each family, as transformers 5 writes it; and some as older versions do.
MODELS = {
    "llama": ("llama", SHAPE), "llama3": ("llama", SHAPE | {"rope_parameters": LLAMA3}),
    "llama yarn": ("llama", SHAPE | {"rope_parameters": YARN}),
    "mistral": ("mistral", SHAPE | {"sliding_window": 4}), "qwen2": ("qwen2", SHAPE), "qwen2 window": ("qwen2", SHAPE | WINDOW),
    "qwen3": ("qwen3", SHAPE | {"head_dim": 6} | WINDOW), "olmo2": ("olmo2", SHAPE), "gpt2": ("gpt2", GPT2),
    "gemma3": ("gemma3_text", SHAPE | {"head_dim": 6, "query_pre_attn_scalar": 9} | BY_TYPE),
    "olmo3": ("olmo3", SHAPE | {"rope_parameters": {"full_attention": YARN | {"rope_theta": 5e5},
                                                    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}},
                                "sliding_window": 4, "layer_types": BY_TYPE["layer_types"]}),
    "exaone4": ("exaone4", SHAPE | {"head_dim": 6, "sliding_window": 4, "layer_types": BY_TYPE["layer_types"]}),
    "smollm3": ("smollm3", SHAPE | {"no_rope_layers": [1, 0, 1], "pad_token_id": None}),
    "ministral": ("ministral", SHAPE | {"head_dim": 6, "sliding_window": 4, "layer_types": BY_TYPE["layer_types"]}),
    "seed_oss": ("seed_oss", SHAPE | {"head_dim": 6, "attention_dropout": 0.0, "residual_dropout": 0.0}),
    "phi3": ("phi3", SHAPE | {"sliding_window": 4, "pad_token_id": None}),
    "hunyuan": ("hunyuan_v1_dense", SHAPE | {"head_dim": 6, "pad_token_id": None,
                                             "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0,
                                                                 "rope_theta": 500.0}}),
    "ernie": ("ernie4_5", SHAPE | {"head_dim": 6, "pad_token_id": None, "tie_word_embeddings": True}),
    "glm": ("glm", SHAPE | {"head_dim": 8, "pad_token_id": None, "attention_bias": True, "partial_rotary_factor": 0.5,
                            "eos_token_id": None}),
    "glm4": ("glm4", SHAPE | {"head_dim": 8, "pad_token_id": None, "attention_bias": True, "partial_rotary_factor": 0.5,
                              "eos_token_id": None}),
    "granite": ("granite", SHAPE | {"attention_multiplier": 0.25, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
                                    "logits_scaling": 2.0}),
    "arcee": ("arcee", SHAPE | {"head_dim": 6, "rope_parameters": YARN | {"mscale": 1.5, "mscale_all_dim": 0.5},
                                "bos_token_id": None, "eos_token_id": None}),
    "nemotron": ("nemotron", SHAPE | {"head_dim": 8, "norm_eps": 0.01, "partial_rotary_factor": 0.5, "bos_token_id": None,
                                      "eos_token_id": None}),
    "starcoder2": ("starcoder2", SHAPE | {"norm_epsilon": 0.01, "sliding_window": 4, "bos_token_id": None,
                                          "eos_token_id": None}),
    "gemma": ("gemma", SHAPE | {"head_dim": 6, "pad_token_id": None}),
    "apertus": ("apertus", SHAPE | {"head_dim": 6, "rope_parameters": LLAMA3 | {"rope_theta": 500.0}, "bos_token_id": None,
                                    "eos_token_id": None, "pad_token_id": None}),
    "qwen2_moe": ("qwen2_moe", SHAPE | OWN_SIZE | {"shared_expert_intermediate_size": 8, "num_experts": 4}),
    "olmoe": ("olmoe", SHAPE | EXPERTS | {"num_experts": 4, "pad_token_id": None, "eos_token_id": None}),
    "glm4_moe": ("glm4_moe", SHAPE | {"num_experts_per_tok": 2, "moe_intermediate_size": 10, "n_routed_experts": 4, "n_group": 2, "topk_group": 2, "head_dim": 8,
                                                 "use_qk_norm": True, "routed_scaling_factor": 2.5}),
    "minimax_m2": ("minimax_m2", SHAPE | EXPERTS | {"head_dim": 8, "num_local_experts": 4, "bos_token_id": None,
                                                    "eos_token_id": None, "output_router_logits": False}),
    "deepseek_v3": ("deepseek_v3", SHAPE | LATENT | {"n_group": 2, "topk_group": 2, "first_k_dense_replace": 1,
                                                     "rope_parameters": YARN | {"mscale": 1.5, "mscale_all_dim": 0.5}}),
    "deepseek_v2": ("deepseek_v2", SHAPE | LATENT | {"n_group": 2, "topk_group": 2, "first_k_dense_replace": 1,
                                                     "topk_method": "group_limited_greedy"}),
    "deepseek_v2 greedy": ("deepseek_v2", SHAPE | LATENT | {"q_lora_rank": None, "rope_parameters": YARN | {"mscale": 0.7,
                                                            "mscale_all_dim": 0.7}}),
    "glm4_moe_lite": ("glm4_moe_lite", SHAPE | LATENT | {"q_lora_rank": None}),
    "gpt_oss": ("gpt_oss", SHAPE | EXPERTS | {"head_dim": 8, "num_local_experts": 4, "sliding_window": 4,
                                              "layer_types": BY_TYPE["layer_types"], "rope_parameters": YARN}),
    "helium": ("helium", SHAPE | {"head_dim": 6, "pad_token_id": None, "attention_bias": True}),
    "dots1": ("dots1", SHAPE | {"num_experts_per_tok": 2, "moe_intermediate_size": 10, "n_routed_experts": 4, "n_shared_experts": 1,
                                "n_group": 2, "topk_group": 2, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1}),
    "mimo": ("mimo", SHAPE | WINDOW | {"num_nextn_predict_layers": 1}),
    "internlm3": ("internlm3", SHAPE | {"head_dim": 6, "pad_token_id": None, "qkv_bias": True, "bias": True,
                                        "max_position_embeddings": 8, "bos_token_id": None, "eos_token_id": None,
                                        "rope_parameters": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 500.0}}),
    "granite4": ("granitemoehybrid", SHAPE | {"shared_intermediate_size": 20, "num_local_experts": 0, "mamba_n_heads": 1,
                                              "layer_types": ["full_attention"] * 3, "position_embedding_type": "rope",
                                              "attention_multiplier": 0.25, "time_step_limit": [0.0, 1.0]}),
    "gemma2": ("gemma2", SHAPE | {"head_dim": 6, "pad_token_id": None, "query_pre_attn_scalar": 9, "sliding_window": 4,
                                  "layer_types": BY_TYPE["layer_types"], "attn_logit_softcapping": 0.5,
                                  "final_logit_softcapping": 0.7}),
    "cohere": ("cohere", SHAPE | {"pad_token_id": None, "eos_token_id": None, "bos_token_id": None, "logit_scale": 0.5}),
    "cohere2": ("cohere2", SHAPE | {"pad_token_id": None, "eos_token_id": None, "bos_token_id": None, "sliding_window": 4,
                                    "layer_types": BY_TYPE["layer_types"]}),
    "longrope": ("phi3", SHAPE | {"pad_token_id": None, "eos_token_id": None, "original_max_position_embeddings": 8,
                                  "rope_parameters": {"rope_type": "longrope", "rope_theta": 500.0,
                                                      "short_factor": [1.0, 1.5, 2.0], "long_factor": [1.0, 3.0, 5.0]}}),
    "ministral3": ("ministral3", SHAPE | {"head_dim": 6, "pad_token_id": None, "bos_token_id": None,
                                          "rope_parameters": YARN | {"llama_4_scaling_beta": 0.5}}),
    "mixtral": ("mixtral", SHAPE | EXPERTS | {"num_local_experts": 4}),
    "qwen3_moe": ("qwen3_moe", SHAPE | OWN_SIZE | {"num_experts": 4, "mlp_only_layers": [1]}),
}
# The text_config of models that take images, by class.
TEXTS = {
    "qwen2_vl": ("Qwen2VL", SHAPE | WINDOW), "qwen3_vl": ("Qwen3VL", SHAPE | {"head_dim": 10}),
    "glm4v": ("Glm4v", SHAPE | {"hidden_size": 32}),
}
BEFORE_5 = ("llama yarn", "gemma3", "olmo3", "qwen3_moe")
# Keys that files have, beside those that the family's own class writes.
OTHER_KEYS = ("is_causal", "rope_theta", "rope_scaling", "original_max_position_embeddings", "partial_rotary_factor",
              "num_experts", "num_local_experts", "num_attention_heads", "num_hidden_layers", "hidden_size", "n_head",
              "max_position_embeddings", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "attention_bias",
              "mlp_bias", "head_dim", "attention_multiplier", "residual_multiplier", "logit_scale", "final_logit_softcapping",
              "n_shared_experts", "norm_topk_prob", "kv_lora_rank", "mlp_layer_types", "scoring_func", "topk_method", "moe_layer_freq", "per_layer_config", "rope_interleaved", "no_rope_layers", "clip_qkv",
              "layer_norm_epsilon", "rms_norm_eps", "decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size",
              "router_aux_loss_coef", "output_router_logits", "router_jitter_noise", "scale_attn_weights",
              "quantization_config", "attention_dropout", "hidden_act", "hidden_activation", "query_pre_attn_scalar",
              "rope_local_base_freq", "sliding_window_pattern", "no_rope_layer_interval", "attention_out_bias", "residual_dropout", "resid_pdrop", "use_bidirectional_attention", "attn_logit_softcapping",
              "swiglu_limit", "swiglu_alpha", "embedding_multiplier", "logits_scaling", "use_bias", "norm_eps", "norm_epsilon", "embedding_dropout")
# Keys that mean nothing here, of which one stands for all (use_cache), and those that choose the family.
ALIKE = ("architectures", "model_type", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "output_hidden_states",
         "output_attentions", "return_dict", "chunk_size_feed_forward", "problem_type", "is_encoder_decoder", "dtype",
         "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout")
IN_ROPE = ("type", "alpha", "mscale", "mscale_all_dim", "attention_factor", "beta_fast", "truncate", "partial_rotary_factor", "original_max_position_embeddings",
           "rope_theta", "mrope_section")
MEANINGFUL = {
    "rope_type": ["default", "linear", "llama3", "yarn", "dynamic", "longrope", "su"], "type": ["default", "linear", "yarn", "su"],
    "short_factor": [[1.0, 1.0, 1.0], [2.0, 3.0]], "long_factor": [[1.0, 1.0, 1.0], [2.0, 3.0]], "llama_4_scaling_beta": [0.0, 0.1],
    "use_qk_norm": [True], "logit_scale": [0.25],
    "rope_scaling": [{}, YARN, LLAMA3, {"type": "linear", "factor": 2.0}, {"rope_type": "default"}, {"factor": 2.0}, {"rope_theta": 77.0},
                     {"rope_type": "dynamic", "factor": 2.0}],
    "layer_types": [["full_attention"] * 3, ["sliding_attention"] * 3, ["full_attention", "sliding_attention", "full_attention"],
                    ["full_attention", "sliding_attention", "sliding_attention"]],
    "hidden_activation": ["gelu_pytorch_tanh", "gelu", "silu"], "final_logit_softcapping": [30.0], "attn_logit_softcapping": [30.0],
    "hidden_act": ["silu", "gelu", "swish", "relu", "relu2", "gelu_pytorch_tanh"], "activation_function": ["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "gelu_fast"],
    "mlp_only_layers": [[0], [1, 2], [7], [-1], [0, 1, 2]], "num_experts_per_tok": [1, 3, 4, 9], "head_dim": [4, 8, 7],
    "no_rope_layers": [[1, 1, 1], [0, 0, 0], [1, 0], [1, 0, 2], [0, 1, 1, 1]], "no_rope_layer_interval": [2, 3],
    "sliding_window_pattern": [2, "LG", "LLG"], "alpha": [1.0, 20.0],
    "per_layer_config": [{"1": {"head_dim": 8}}, {"0": {"sliding_window": 2}}],
    "quantization_config": [{"quant_method": "fp8"}], "original_max_position_embeddings": [8, 16, 32],
}


def before_5(config):
    """The same model as transformers 4 wrote it."""
    config = dict(config)
    rope = dict(config.pop("rope_parameters"))
    if "sliding_attention" in rope:
        if config["model_type"] == "gemma3_text":
            config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    return config


def whole_models():
    """Yields a name, a text_config, and the config.json around it."""
    for name, (kind, keys) in TEXTS.items():
        if kind in with_images.OWN_TEXT:
            partial = {"partial_rotary_factor": 0.5} if kind == "Glm4v" else {}
            rotated = int(keys.get("head_dim", keys["hidden_size"] // keys["num_attention_heads"]) * partial.get("partial_rotary_factor", 1))
            keys = keys | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0} | partial | with_images.mrope(kind, rotated)}
        config = with_images.config_of(kind, keys)
        config.architectures = [f"{kind}ForConditionalGeneration"]
        whole = config.to_dict()
        whole["vision_config"] = {key: value for key, value in whole["vision_config"].items() if value is not None}
        text = {key: value for key, value in whole.pop("text_config").items() if key not in ("id2label", "label2id", "_name_or_path")}
        yield name, text, {key: value for key, value in whole.items() if key not in ("id2label", "label2id", "_name_or_path")}


def models():
    """Yields a name, a config.json, and None or, if the first is only its text_config, the one around it."""
    yield from ((name, config, None) for name, config in language_models())
    yield from whole_models()


def language_models():
    for name, (family, keys) in MODELS.items():
        config = transformers.AutoConfig.for_model(family, **keys)
        config.architectures = [transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__]
        full = {key: value for key, value in config.to_dict().items() if key not in ("id2label", "label2id", "_name_or_path")}
        yield name, full
        if name in BEFORE_5:
            yield name + " of 4.57", before_5(full)


def other_values(key, value):
    """Values of other types, and other values of the same one."""
    if isinstance(value, bool):
        others = [not value, int(value)]
    elif isinstance(value, int):
        others = [0, -1, value + 1, 2 * value, float(value), True]
    elif isinstance(value, float):
        others = [0, -1.0, 1, 2 * value + 0.25, False]
    else:
        others = [True, False, 0, 1, 3, 0.5]
    others += [None, "x", [1]] + MEANINGFUL.get(key, [])
    return [other for other in others if json.dumps(other) != json.dumps(value)]


def mutations(config):
    """Yields what to set and what to leave out."""
    keys = [key for key in config if key not in ALIKE]
    for key in keys:
        yield {}, [key]
    for key in dict.fromkeys(keys + list(OTHER_KEYS)):
        for value in other_values(key, config.get(key, "")):
            yield {key: value}, []
    for block in ("rope_parameters", "rope_scaling"):
        rope = config.get(block)
        for key in rope or []:
            yield {block: {k: v for k, v in rope.items() if k != key}}, []
        for key in dict.fromkeys([*(rope or []), *IN_ROPE]) if rope else []:
            for value in other_values(key, rope.get(key, "")):
                yield {block: rope | {key: value}}, []


@torch.no_grad()
def computed(config, whole):
    """What transformers computes with a config.json, which may be the text_config in another: numbers, or None if it refuses it."""
    if not all(isinstance(config.get(key), (int, type(None))) and (config.get(key) or 0) < 4096
               for key in ("hidden_size", "vocab_size", "num_hidden_layers", "intermediate_size", "n_embd", "n_layer")):
        return None
    # Without a padding token: the default one of some classes is above these vocabularies.
    config = json.loads(json.dumps(config)) | {"pad_token_id": None}
    with contextlib.redirect_stdout(io.StringIO()):
        cls = transformers.CONFIG_MAPPING[(whole or config)["model_type"]]
        parsed = cls.from_dict(whole | {"text_config": config} if whole else config)
        parsed._attn_implementation = parsed._experts_implementation = "eager"  # these know float64
        make = transformers.AutoModelForImageTextToText if whole else transformers.AutoModelForCausalLM
        model = make.from_config(parsed).double().eval()
    parsed = parsed.get_text_config()
    for name, weight in model.state_dict().items():
        name = name.replace("model.language_model.", "model.")
        seed = int.from_bytes(hashlib.sha256(f"{name} {tuple(weight.shape)}".encode()).digest()[:4], "little")
        values = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        weight.copy_(1 + 0.1 * values if "norm" in name or "ln_" in name else 0.4 * values)
    output = model(TOKENS, labels=TOKENS)
    # llamesh trains without dropout or not at all, so only whether there is any matters.
    def number(key):
        return float(getattr(parsed, key, 0) or 0)

    dropout = max(map(number, ("attention_dropout", "residual_dropout", "embedding_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop")))
    others = [dropout, number("initializer_range"), number("router_jitter_noise")]
    return output.logits.flatten().tolist() + [float(output.loss)] + others


def oracle(config, whole=None, cache={}):
    text = json.dumps([config, whole], sort_keys=True)
    if text not in cache:
        try:
            cache[text] = computed(config, whole)
        except Exception:
            cache[text] = None
    return cache[text]


def alike(a, b):
    return b is not None and len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9) for x, y in zip(a, b))


def difference(before, after):
    """As a JSON patch (RFC 6902) of the top level."""
    patch = [{"op": "remove", "path": f"/{key}"} for key in before if key not in after]
    return patch + [{"op": "add", "path": f"/{key}", "value": value} for key, value in after.items()
                    if key not in before or json.dumps(before[key]) != json.dumps(value)]


def main():
    golden = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__}, "models": {}}
    table = collections.defaultdict(collections.Counter)
    before = json.loads(GOLDEN.read_text())["models"] if sys.argv[2:] else {}
    for name, config, whole in models():
        if sys.argv[2:] and name not in sys.argv[2:]:
            golden["models"][name] = before[name]
            continue
        changes = list(mutations(config))
        changed = [config] + [{k: v for k, v in (config | new).items() if k not in gone} for new, gone in changes]
        files = [whole | {"text_config": text} for text in changed] if whole else changed
        verdicts = subprocess.run(sys.argv[1], input="\n".join(map(json.dumps, files)), text=True, check=True,
                                  capture_output=True).stdout
        # A text is the reason of a refusal.
        original, *verdicts = (v if isinstance(v, dict) else None for v in map(json.loads, verdicts.splitlines()))
        assert original is not None and alike(oracle(config, whole), oracle(original)), name
        entries = []
        for (new, gone), text, verdict in zip(changes, changed[1:], verdicts):
            right = oracle(text, whole)
            if verdict is None:
                outcome = "both refuse" if right is None else "llamesh refuses"
            elif right is None:  # transformers 5 is strict about types, even where a value means nothing
                outcome = "llamesh accepts"
            else:
                outcome = "equal" if alike(right, oracle(verdict)) else "wrong"
            if outcome == "wrong":
                print(f"{name}: {outcome}: {json.dumps(new)} without {gone}: {json.dumps(verdict and difference(original, verdict))}")
            table[name][outcome] += 1
            entries.append([new, gone, None if verdict is None else difference(original, verdict)])
        golden["models"][name] = {"config": config, "whole": whole, "mutations": entries}
    outcomes = ("both refuse", "llamesh refuses", "equal", "llamesh accepts", "wrong")
    print(f"{'model':<24}" + "".join(f"{outcome:>17}" for outcome in outcomes))
    for name, counts in table.items():
        print(f"{name:<24}" + "".join(f"{counts[outcome]:>17}" for outcome in outcomes))
    if sum(counts["wrong"] for counts in table.values()):
        sys.exit("llamesh reads some files as other models than transformers does")
    lines = [f' "made_with": {json.dumps(golden["made_with"])},\n "models": {{']
    for name, model in golden["models"].items():
        whole = f', "whole": {json.dumps(model["whole"])}' if model.get("whole") else ""
        lines.append(f'  {json.dumps(name)}: {{"config": {json.dumps(model["config"])}{whole}, "mutations": [')
        lines.append(",\n".join("   " + json.dumps(entry, separators=(",", ":")) for entry in model["mutations"]))
        lines.append("  ]}" + ("," if name != list(golden["models"])[-1] else ""))
    GOLDEN.write_text("{\n" + "\n".join(lines) + "\n }}\n")


if __name__ == "__main__":
    main()
