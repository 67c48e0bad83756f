#!/usr/bin/env python3
"""Shows that folders as transformers 4.57 writes them are read as those of version 5, and writes configs_4_57.json.

    ninja -C build/ci llamesh config_verdicts
    VENV/bin/python tests/model/golden/older_transformers.py build/ci [NAME...]     # VENV with transformers 4.57.1

For each golden folder in hf/ whose class 4.57 has, also those of models that take images: llamesh exports it, 4.57 loads
the export, has the golden logits with it, and saves it again. That folder has 4.57's names (rope_theta, rope_scaling,
num_experts, torch_dtype). llamesh must read the same config and the same weights from it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
IMAGES = "_images"
OWN_TEXT = ("qwen3_vl_text",)  # classes that AutoConfig does not know


def as_version_5_computes():
    """Version 5 never takes an expert of a group that is not chosen. 4.57 gives these a score of 0, which is above the others'
    if their biases are negative enough, as some are in glm4_moe."""
    fill = torch.Tensor.masked_fill
    torch.Tensor.masked_fill = lambda tensor, mask, value: fill(tensor, mask, float("-inf") if value == 0.0 else value)


def golden_logits(name):
    description = json.loads((HERE / f"{name}.json").read_text())
    entry = description["tensors"]["logits"]
    values = numpy.fromfile(HERE / f"{name}.bin", "<f4", count=int(numpy.prod(entry["shape"])), offset=4 * entry["offset"])
    return torch.tensor(description["tokens"]), torch.from_numpy(values).view(entry["shape"])


def run(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def verdict(build, folder):
    """What llamesh makes of a folder's config.json."""
    config = json.loads((folder / "config.json").read_text())
    read = json.loads(subprocess.run(build / "tests/config_verdicts", input=json.dumps(config), check=True, capture_output=True,
                                     text=True).stdout)
    assert isinstance(read, dict), read
    return read


def check(build, name, work):
    """Returns the config.json that transformers saves, and how far its logits are from the golden ones."""
    llamesh, source = build / "src/llamesh", HERE / "hf" / name
    exported, saved = work / name, work / f"{name}.saved"
    run(llamesh, "convert", "--from", f"hf:{source}", "--to", f"{exported}.checkpoint")
    run(llamesh, "convert", "--from", f"{exported}.checkpoint", "--to", f"hf:{exported}")
    auto = transformers.AutoModelForImageTextToText if name.endswith(IMAGES) else transformers.AutoModelForCausalLM
    model, report = auto.from_pretrained(exported, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    # The other parts of some models have other names.
    assert not report["mismatched_keys"] and all("vision_tower" in n for n in report["unexpected_keys"]), report
    assert all("vision_tower" in n for n in report["missing_keys"]), report
    # xIELU's coefficients, which 4.57 keeps in bf16.
    model.float().load_state_dict(load_file(exported / "model.safetensors"), strict=False)
    tokens, expected = golden_logits(name.removesuffix(IMAGES))
    with torch.no_grad():
        logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
    difference = (logits - expected).abs().max().item()
    assert difference < 1e-4, difference
    model.save_pretrained(saved)
    assert verdict(build, saved) == verdict(build, source)
    if not report["missing_keys"]:
        run(llamesh, "diff", saved, source)
    return json.loads((saved / "config.json").read_text()), difference


def main():
    build, file = pathlib.Path(sys.argv[1]), HERE / "configs_4_57.json"
    configs = json.loads(file.read_text()) if sys.argv[2:] else {}
    worst = 0.0
    as_version_5_computes()
    for folder in sorted((HERE / "hf").iterdir()):
        name = folder.name
        golden = HERE / f"{name.removesuffix(IMAGES)}.json"
        if name not in (sys.argv[2:] or [name]) or not golden.exists() or "llamesh_lora" in json.loads(golden.read_text())["config"]:
            continue
        config = json.loads((folder / "config.json").read_text())
        if any(part.get("model_type", "") not in ("", *transformers.CONFIG_MAPPING)
               for part in (config, config.get("text_config", {})) if part.get("model_type") not in OWN_TEXT):
            print(f"{name}: not in transformers {transformers.__version__}")
            continue
        with tempfile.TemporaryDirectory() as work:
            configs[name], difference = check(build, name, pathlib.Path(work))
        worst = max(worst, difference)
        print(f"{name}: logits within {difference:.1e}", flush=True)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(configs[name], sort_keys=True)}" for name in sorted(configs))
    file.write_text(f"{{\n{lines}\n}}\n")
    print(f"transformers {transformers.__version__}: {len(configs)} folders, logits within {worst:.1e} of the golden ones")


os.environ["TRANSFORMERS_OFFLINE"] = "1"
main()
