#!/usr/bin/env python3
"""Writes the golden models of this folder as Hugging Face folders, by transformers' own save_pretrained().

    VENV/bin/python tests/model/golden/make_hf_folders.py [FOLDER [NAME...]]     # VENV as for make_golden.py

hf/gqa_8_2, qwen2, mistral, mixtral, gemma3 are one file, hf/llama3_rope, qwen3, olmo2, gpt2, qwen3_moe several with an index; hf/tied_6_3 and
hf/tied_4_2 have a tied head. hf/lora and lora_* are the models beside which the adapters of hf/NAME_adapter lie, as PEFT writes them. hf/gpt2_hub is gpt2 as on the hub: without the prefix `transformer.`, and with the buffers
of causal masks. All fp32, so that the numbers are those of NAME.bin to the bit.
"""

import json
import pathlib
import sys

import numpy
import safetensors.torch
import torch
import transformers

import other_families
import with_images

HERE = pathlib.Path(__file__).parent
LLAMAS = ("gqa_8_2", "tied_6_3", "llama3_rope", "tied_4_2")  # by transformers 4.45.2
OTHERS = ("qwen2", "mistral", "qwen3", "olmo2", "gpt2", "mixtral", "qwen3_moe")  # by 4.57.1
LATER = ("gemma3", "olmo3", "exaone4", "smollm3", "ministral", "seed_oss", "phi3", "hunyuan", "ernie", "glm4",
         "granite", "arcee", "gemma", "nemotron", "starcoder2", "apertus", "qwen2_moe", "olmoe", "glm4_moe", "minimax_m2", "glm",
         "gemma2", "cohere", "cohere2", "longrope", "shortrope", "ministral3", "granite4",
         "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "gpt_oss", "internlm3", "mimo", "internlm2", "ling2", "helium", "dots1")  # by 5.24.0
ADAPTED = ("lora", "lora_qwen2", "lora_gpt2", "lora_glm4", "lora_deepseek", "lora_phi3", "lora_gpt2_attn")  # by 5.24.0 and peft 0.21.2
WITH_IMAGES = {"gemma3": "Gemma3", "ministral3": "Mistral3", "qwen2": "Qwen2VL", "qwen3": "Qwen3VL", "gqa_8_2": "SmolVLM"}  # by 5.24.0
SHARD_SIZE = {"llama3_rope": "20KB", "qwen3": "30KB", "olmo2": "20KB", "gpt2": "50KB", "qwen3_moe": "30KB"}


def as_loaded(weights, model):
    """The golden weights as transformers 5 has them: experts stacked, gate and up in one."""
    if model.config.model_type == "minimax_m2":
        renamed = (".block_sparse_moe.", ".mlp."), (".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj.")
        for theirs, ours in renamed:
            weights = {name.replace(theirs, ours): tensor for name, tensor in weights.items()}
    for name, parameter in model.named_parameters():
        if parameter.dim() < 3 or model.config.model_type == "gpt_oss":
            continue
        experts, _, last = name.rpartition(".")
        matrices = [torch.cat([weights.pop(f"{experts}.{i}.{part}.weight")
                               for part in last.replace("gate_up", "gate_proj up").split()]) for i in range(len(parameter))]
        weights[name] = torch.stack(matrices)
    return weights


def golden(name):
    """The description and the weights of a golden model."""
    description = json.loads((HERE / f"{name}.json").read_text())
    values = numpy.fromfile(HERE / f"{name}.bin", "<f4")
    weights = {}
    for key, entry in description["tensors"].items():
        if key.startswith("weights/"):
            size = int(numpy.prod(entry["shape"]))
            tensor = values[entry["offset"] : entry["offset"] + size].reshape(entry["shape"]).copy()
            weights[key.removeprefix("weights/")] = torch.from_numpy(tensor)
    return description, weights


def write_as_on_the_hub(folder, model):
    model.config.save_pretrained(folder)
    tensors = {k: v.contiguous() for k, v in model.transformer.state_dict().items()}
    positions = model.config.n_positions
    for i in range(model.config.n_layer):
        tensors[f"h.{i}.attn.bias"] = torch.ones(positions, positions).tril().view(1, 1, positions, positions)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def write_adapter(folder, name, model, lora, weights):
    import peft  # not needed for the other models

    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path=name, **lora))
    peft.set_peft_model_state_dict(adapted, {f"base_model.model.{key}": value for key, value in weights.items()})
    adapted.save_pretrained(folder / f"{name}_adapter")
    (folder / f"{name}_adapter" / "README.md").unlink()


def write_with_images(folder, name, text, weights):
    """The model as the language model of one that takes images, whose other parts are random. Ministral 3's folder has the
    names that the model has in memory, as other tools write them; Qwen2-VL's config.json is as on the hub."""
    torch.manual_seed(1)
    kind = WITH_IMAGES[name]
    keys = text.to_dict()
    if kind in with_images.OWN_TEXT:
        own = getattr(transformers, f"{kind}TextConfig")().to_dict()
        keys = {key: value for key, value in keys.items() if key in own and key != "model_type"}
        keys["rope_parameters"] |= with_images.mrope(kind, keys.get("head_dim") or text.hidden_size // text.num_attention_heads)
    config = with_images.config_of(kind, keys, tie_word_embeddings=text.tie_word_embeddings)
    model = with_images.model_of(kind, config)
    inner = "model.text_model." if kind == "SmolVLM" else "model.language_model."
    named = {key.replace("model.", inner, 1): value for key, value in weights.items()}
    missing, unexpected = model.load_state_dict(named, strict=False)
    assert not unexpected and not any(inner in n for n in missing), (missing, unexpected)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"size": 28}\n')
    if name == "ministral3":
        tensors = {key: value.contiguous() for key, value in model.state_dict().items()}
        safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    if kind == "Qwen2VL":
        whole = json.loads((folder / "config.json").read_text())
        flat = {key: value for key, value in whole.pop("text_config").items() if key not in ("model_type", "dtype")} | whole
        rope = flat.pop("rope_parameters")
        flat |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]}}
        (folder / "config.json").write_text(json.dumps(flat, indent=2, sort_keys=True) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "hf"
    for name in sys.argv[2:] or LLAMAS + OTHERS + LATER + ADAPTED:
        description, weights = golden(name)
        keys = description["config"]
        if keys.get("model_type") in other_families.NAMES:
            other_families.write_folder(folder / name, keys, weights)
            continue
        if "model_type" not in keys:
            keys = {"model_type": "llama", "max_position_embeddings": 512} | keys
        lora = keys.pop("llamesh_lora", None)
        adapters = {key: weights.pop(key) for key in list(weights) if ".lora_" in key}
        config = transformers.AutoConfig.for_model(**keys)
        model = transformers.AutoModelForCausalLM.from_config(config)
        missing, unexpected = model.load_state_dict(as_loaded(weights, model), strict=False)
        assert not unexpected and all(n == "lm_head.weight" or ".act_fn." in n for n in missing), (missing, unexpected)
        model.save_pretrained(folder / name, max_shard_size=SHARD_SIZE.get(name, "5GB"))
        if name in WITH_IMAGES:
            write_with_images(folder / f"{name}_images", name, config, weights)
        if lora:
            write_adapter(folder, name, model, lora, adapters)
        if name == "gpt2":
            write_as_on_the_hub(folder / "gpt2_hub", model)


if __name__ == "__main__":
    main()
