"""Families that transformers has no class of, as their own code makes them of classes that it has. Ling 2's own code runs as it
is, with transformers 4.57.1 and a clone of github.com/inclusionAI/Ling-V2 in PYTHONPATH.

Their config.json files and tensors are written here by the names that they have on the hub.
"""

import json

import safetensors.torch
import torch
import transformers


class MiMoConfig(transformers.Qwen2Config):
    model_type = "mimo"
    num_nextn_predict_layers: int = 0


class MiMoForCausalLM(transformers.Qwen2ForCausalLM):
    config_class = MiMoConfig


class InternLM2Config(transformers.LlamaConfig):
    model_type = "internlm2"
    attention_bias: bool = True
    rms_norm_eps: float = 1e-6


class InternLM2ForCausalLM(transformers.LlamaForCausalLM):
    config_class = InternLM2Config


FAMILIES = {"mimo": (MiMoConfig, MiMoForCausalLM), "internlm2": (InternLM2Config, InternLM2ForCausalLM)}
NAMES = (*FAMILIES, "bailing_moe")
INTERNLM2_NAMES = (("model.embed_tokens", "model.tok_embeddings"), ("lm_head", "output"), ("self_attn.o_proj", "attention.wo"),
                   ("mlp.gate_proj", "feed_forward.w1"), ("mlp.up_proj", "feed_forward.w3"),
                   ("mlp.down_proj", "feed_forward.w2"), ("input_layernorm", "attention_norm"),
                   ("post_attention_layernorm", "ffn_norm"))


def register():
    try:
        from models.modeling_bailing_moe_v2 import BailingMoeV2Config, BailingMoeV2ForCausalLM

        BailingMoeV2Config.model_type = "bailing_moe"  # as its published models have it
        FAMILIES["bailing_moe"] = BailingMoeV2Config, BailingMoeV2ForCausalLM
        torch.set_default_dtype(torch.float64)  # its mask holds float64's least number in the default type
    except ImportError:
        pass
    for name, (config, model) in FAMILIES.items():
        transformers.AutoConfig.register(name, config)
        transformers.AutoModelForCausalLM.register(config, model)


def published_config(config):
    """The config.json as the family's own code reads it."""
    if config.get("model_type") != "internlm2":
        return config
    rope = config["rope_parameters"]
    left_out = ("attention_bias", "mlp_bias", "head_dim", "rope_parameters")
    return {key: value for key, value in config.items() if key not in left_out} | {
        "bias": config["attention_bias"], "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": rope["rope_type"], "factor": rope["factor"]}}


def as_published(config, tensors):
    """The tensors by the family's own names. InternLM2 fuses q, k and v: each kv head's key and value follow on its queries."""
    if config.model_type != "internlm2":
        yield from tensors
        return
    tensors = dict(tensors)
    for name, tensor in tensors.items():
        if ".k_proj." in name or ".v_proj." in name:
            continue
        if ".q_proj." in name:
            parts = [tensors[name.replace("q_proj", part)].unflatten(0, (config.num_key_value_heads, -1))
                     for part in ("q_proj", "k_proj", "v_proj")]
            name, tensor = name.replace("self_attn.q_proj", "attention.wqkv"), torch.cat(parts, 1).flatten(0, 1)
        for theirs, ours in INTERNLM2_NAMES:
            name = name.replace(theirs, ours)
        yield name, tensor


def write_folder(folder, config, weights):
    """A folder as on the hub; for MiMo, another one with a layer that predicts further tokens."""
    if config["model_type"] == "mimo" and not config["num_nextn_predict_layers"]:
        predicting = weights | {"model.mtp_layers.0.input_proj.weight": torch.ones(4, 8)}
        write_folder(folder.with_name("mimo_mtp"), config | {"num_nextn_predict_layers": 1}, predicting)
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}\n')
