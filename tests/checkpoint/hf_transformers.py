"""hf_transformers.py LLAMESH: transformers loads what llamesh exports, and computes the golden logits with it. Then
llamesh trains each family from a folder on 4 ranks, and transformers has the same loss with the result.

Exits with 77 (skipped) where PyTorch or transformers is missing.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    import transformers
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

tests = pathlib.Path(__file__).resolve().parent.parent
golden = tests / "model" / "golden"
sys.path.append(str(golden))
import with_images  # noqa: E402


def convert(llamesh, ranks, source, target, *options):
    command = [tests / "mpirun.sh", str(ranks), llamesh, "convert", "--from", source, "--to", target, *options]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def load(folder, dtype, auto=transformers.AutoModelForCausalLM):
    eager = {"attn_implementation": "eager"}
    if int(transformers.__version__.split(".")[0]) >= 5:
        eager["experts_implementation"] = "eager"  # the others refuse sizes as small as these
    model, report = auto.from_pretrained(
        folder, torch_dtype=dtype, output_loading_info=True, **eager
    )
    # transformers may or may not report a tied head as missing.
    assert not report["unexpected_keys"] and not report["mismatched_keys"], report
    assert set(report["missing_keys"]) <= ({"lm_head.weight"} if model.config.tie_word_embeddings else set()), report
    return model


def check(llamesh, name, ranks, work):
    description = json.loads((golden / f"{name}.json").read_text())
    entry = description["tensors"]["logits"]
    values = numpy.fromfile(golden / f"{name}.bin", "<f4")[entry["offset"] :]
    expected = torch.from_numpy(values[: int(numpy.prod(entry["shape"]))].reshape(entry["shape"]).copy())
    tokens = torch.tensor(description["tokens"])

    convert(llamesh, ranks, f"hf:{golden}/hf/{name}", f"{work}/{name}.checkpoint")
    convert(llamesh, ranks, f"{work}/{name}.checkpoint", f"hf:{work}/{name}", "--max-shard-size", "20KB")
    convert(llamesh, ranks, f"{work}/{name}.checkpoint", f"hf:{work}/{name}.bf16", "--dtype", "bf16")
    original = load(golden / "hf" / name, torch.float32)
    exported = load(f"{work}/{name}", torch.float32)
    in_bf16 = load(f"{work}/{name}.bf16", torch.bfloat16)
    assert str(exported.config.torch_dtype) in ("torch.float32", "float32"), exported.config
    with torch.no_grad():
        logits = exported(input_ids=tokens, use_cache=False).logits
        assert torch.equal(logits, original(input_ids=tokens, use_cache=False).logits), name
    difference = (logits - expected).abs().max().item()
    assert difference < 1e-4, (name, difference)
    of_bf16 = dict(in_bf16.named_parameters())
    for parameter, value in original.named_parameters():
        assert torch.equal(of_bf16[parameter], value.bfloat16()), (name, parameter)
    return difference


INPUTS = """
run: {{name: trained, folder: {work}/{name}.run}}
model: {{hf: {folder}}}
mesh: {{ranks_per_node: 2}}
sharding: {{strategy: hybrid_shard}}
data: {{train: {work}/tokens.bin, format: tokens, token_dtype: uint16, sequence_length: {length}}}
optimizer: {{lr: 1e-2}}
train: {{steps: 4, micro_batch: 1, global_batch: 8, threads: 1}}
"""


def check_training(llamesh, name, work, folder=None, auto=transformers.AutoModelForCausalLM):
    """Trains from a folder, by default a golden one, and returns how far llamesh's loss with the result is from
    transformers'."""
    length, rows = 32, 9
    folder = folder or golden / "hf" / name
    vocabulary = transformers.AutoConfig.from_pretrained(folder).get_text_config().vocab_size
    tokens = numpy.random.default_rng(1).integers(vocabulary, size=rows * length + 1).astype("<u2")
    tokens.tofile(f"{work}/tokens.bin")
    inputs = pathlib.Path(f"{work}/{name}.yaml")
    inputs.write_text(INPUTS.format(work=work, name=name, folder=folder, length=length))
    mpirun = [str(tests / "mpirun.sh")]
    subprocess.run([*mpirun, "4", llamesh, "train", str(inputs)], check=True, stdout=subprocess.DEVNULL)
    convert(llamesh, 2, f"{work}/{name}.run", f"hf:{work}/{name}.trained")
    command = ["evaluate", f"{work}/{name}.trained", f"{work}/tokens.bin", "--token-dtype", "uint16"]
    command += ["--sequence-length", str(length), "--json"]
    printed = subprocess.run([*mpirun, "1", llamesh, *command], check=True, stdout=subprocess.PIPE)
    stream = torch.from_numpy(tokens.astype("i8"))
    original = load(folder, torch.float32, auto)
    losses = []
    for model in (original, load(f"{work}/{name}.trained", torch.float32, auto)):
        with torch.no_grad():
            logits = model(input_ids=stream[:-1].view(rows, length), use_cache=False).logits
        losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), stream[1:]).item())
    before, after = losses
    assert after < before - 1e-3, (name, before, after)
    difference = abs(after - json.loads(printed.stdout)["loss"])
    assert difference < 2e-5, (name, after, printed.stdout)
    return difference


def can_compute_glm4v():
    """transformers 4.57 cannot compute the model for text alone: it takes its three positions for one."""
    return int(transformers.__version__.split(".")[0]) >= 5


def check_images(llamesh, kind, work):
    """llamesh trains the language model of one that takes images, as transformers computes it for text."""
    five = int(transformers.__version__.split(".")[0]) >= 5
    partial = {"partial_rotary_factor": 0.5} if kind in ("Glm4v", "Glm46V") else {}
    text = {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "vocab_size": 54, "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
            "initializer_range": 0.2}
    if kind in with_images.OWN_TEXT:
        mrope = with_images.mrope(kind, 6 if partial else 12)
        theta = {"rope_theta": 500.0}
        text |= ({"rope_parameters": {"rope_type": "default"} | theta | partial | mrope} if five
                 else {"rope_scaling": {"rope_type": "default"} | mrope} | theta | partial)
    if kind in ("Gemma3", "Qwen3VL"):
        text["head_dim"] = 12
    tied = {"tie_word_embeddings": kind in ("Gemma3", "InternVL", "Qwen2VL")}
    if kind not in with_images.OWN_TEXT or not five:  # whose text classes do not have it since version 5
        text |= tied
    torch.manual_seed(1)
    model = with_images.model_of(kind, with_images.config_of(kind, text, **tied))
    folder = f"{work}/{kind}"
    model.save_pretrained(folder)
    difference = check_training(llamesh, kind + ".images", work, folder, type(model))
    trained = load(f"{work}/{kind}.images.trained", torch.float32, type(model)).state_dict()
    for name, value in model.state_dict().items():
        is_text = "language_model." in name or "text_model." in name or name.startswith("lm_head.")
        assert torch.equal(trained[name], value) != is_text, name
    return difference


def check_refused(folder):
    try:
        load(folder, torch.float32)
    except Exception as error:
        assert "is not a multiple of the number of attention heads" in str(error), error
    else:
        raise AssertionError(f"transformers {transformers.__version__} loads {folder}: the warning of an export is wrong")


def check_float8(llamesh, work, name, whole, block=(16, 12)):
    """llamesh reads matrices in float8 as PyTorch does, times their scales: one for each block, and for `whole` one alone."""
    from safetensors.torch import load_file, save_file

    source, folder = golden / "hf" / name, pathlib.Path(f"{work}/float8.{name}")
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": block, "activation_scheme": "static"}
    (folder / "config.json").write_text(json.dumps(config))
    stored, expected = {}, load_file(source / "model.safetensors")
    for name, weight in list(expected.items()):
        stored[name] = weight
        if "_proj" not in name or weight.dim() < 2:
            continue
        rows, columns = weight.shape if whole in name else block
        scales = torch.stack([torch.stack([part.abs().max() / 448 for part in strip.split(columns, 1)])
                              for strip in weight.split(rows, 0)])
        spread = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: weight.shape[0], : weight.shape[1]]
        stored[name] = (weight / spread).to(torch.float8_e4m3fn)
        expected[name] = stored[name].float() * spread
        stored[f"{name}_scale_inv"] = scales.squeeze() if whole in name else scales
        stored[name.replace(".weight", ".activation_scale")] = torch.tensor(1.0)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    convert(llamesh, 2, f"hf:{folder}", f"{folder}.checkpoint")
    convert(llamesh, 2, f"{folder}.checkpoint", f"hf:{folder}.read")
    read = load_file(f"{folder}.read/model.safetensors")
    assert set(read) == set(expected), set(read) ^ set(expected)
    for name, weight in expected.items():
        assert torch.equal(read[name], weight), name
    assert "quantization_config" not in pathlib.Path(f"{folder}.read/config.json").read_text()


def check_mxfp4(llamesh, work):
    """llamesh reads experts in MXFP4 as transformers does. The numbers are random; sizes are multiples of a block's."""
    from safetensors.torch import load_file, save_file

    folder = pathlib.Path(f"{work}/mxfp4")
    config = transformers.GptOssConfig(hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                                       num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                                       vocab_size=54, pad_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    torch.manual_seed(1)
    for name, tensor in list(stored.items()):
        if not name.endswith("_proj"):
            continue
        del stored[name]
        experts, inputs, outputs = tensor.shape
        blocks = (experts, outputs, inputs // 32)
        stored[f"{name}_blocks"] = torch.randint(256, (*blocks, 16), dtype=torch.uint8)
        stored[f"{name}_scales"] = torch.randint(100, 130, blocks, dtype=torch.uint8)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))
    convert(llamesh, 2, f"hf:{folder}", f"{folder}.checkpoint")
    convert(llamesh, 2, f"{folder}.checkpoint", f"hf:{folder}.read")
    dequantized = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=transformers.Mxfp4Config(dequantize=True))
    read = load_file(f"{folder}.read/model.safetensors")
    for name, parameter in dequantized.named_parameters():
        assert torch.equal(read[name].float(), parameter.float()), name
    assert len(read) == len(list(dequantized.named_parameters())), set(read)
    return len(read)


def main(llamesh):
    models = {"gqa_8_2": 1, "tied_4_2": 2, "llama3_rope": 1}
    odd = golden / "hf" / "tied_6_3"  # hidden size no multiple of the heads: 5.4 warns on export
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 4):
        models[odd.name] = 2
    else:
        check_refused(odd)
    families = ("qwen2", "mistral", "qwen3", "olmo2", "gpt2", "gpt2_hub", "mixtral", "qwen3_moe")
    known = tuple(map(int, transformers.__version__.split(".")[:2])) >= (4, 51)  # Qwen 3
    if known:
        models |= {"qwen2": 1, "mistral": 2, "qwen3": 1, "olmo2": 2, "gpt2": 1, "mixtral": 2, "qwen3_moe": 1}
    if tuple(map(int, transformers.__version__.split(".")[:2])) >= (4, 53):  # layer_types
        models["gemma3"] = 2
        families += ("gemma3",)
    newer = {"olmo3": "Olmo3", "exaone4": "Exaone4", "smollm3": "SmolLM3", "ministral": "Ministral", "seed_oss": "SeedOss",
             "phi3": "Phi3", "hunyuan": "HunYuanDenseV1", "ernie": "Ernie4_5", "glm4": "Glm4", "granite": "Granite",
             "arcee": "Arcee", "gemma": "Gemma", "nemotron": "Nemotron", "starcoder2": "Starcoder2",
             "apertus": "Apertus", "qwen2_moe": "Qwen2Moe", "olmoe": "Olmoe", "glm4_moe": "Glm4Moe",
             "minimax_m2": "MiniMaxM2", "glm": "Glm", "gemma2": "Gemma2", "cohere": "Cohere", "cohere2": "Cohere2",
             "longrope": "Phi3", "shortrope": "Phi3", "ministral3": "Ministral3",
             "granite4": "GraniteMoeHybrid", "deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3", "glm4_moe_lite": "Glm4MoeLite",
             "gpt_oss": "GptOss", "internlm3": "InternLM3", "helium": "Helium",
             "dots1": "Dots1"}
    newer = [name for name, prefix in newer.items() if hasattr(transformers, f"{prefix}Config")]
    models |= dict.fromkeys(newer, 2)
    families += tuple(newer)
    with tempfile.TemporaryDirectory() as work:
        if "gpt_oss" in newer:
            check_mxfp4(llamesh, work)
        check_float8(llamesh, work, "gqa_8_2", whole="q_proj")
        check_float8(llamesh, work, "deepseek_v3", whole="q_b_proj")  # whose rows are in another order
        worst = max(check(llamesh, name, ranks, work) for name, ranks in models.items())
        trained = max(check_training(llamesh, name, work) for name in families) if known else None
        images = [kind for kind in with_images.known() if known and (kind != "Glm4v" or can_compute_glm4v())]
        worst_of_images = max((check_images(llamesh, kind, work) for kind in images), default=None)
    if known:
        print(f"{len(families)} folders trained: losses within {trained:.1e} of transformers'")
        print(f"{len(images)} models with images trained: losses within {worst_of_images:.1e}")
    print(f"transformers {transformers.__version__}: {len(models)} exported models, logits within {worst:.1e} of the "
          "golden ones")


os.environ["TRANSFORMERS_OFFLINE"] = "1"
main(sys.argv[1])
