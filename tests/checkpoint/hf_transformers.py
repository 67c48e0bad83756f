"""hf_transformers.py LLAMESH: transformers loads what llamesh exports, and computes the golden logits with it.

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


def convert(llamesh, ranks, source, target, *options):
    command = [tests / "mpirun.sh", str(ranks), llamesh, "convert", "--from", source, "--to", target, *options]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def load(folder, dtype):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, torch_dtype=dtype, attn_implementation="eager", output_loading_info=True
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


def check_refused(folder):
    try:
        load(folder, torch.float32)
    except Exception as error:
        assert "is not a multiple of the number of attention heads" in str(error), error
    else:
        raise AssertionError(f"transformers {transformers.__version__} loads {folder}: the warning of an export is wrong")


def main(llamesh):
    models = {"gqa_8_2": 1, "tied_4_2": 2, "llama3_rope": 1}
    odd = golden / "hf" / "tied_6_3"  # hidden size no multiple of the heads: 5.4 warns on export
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 4):
        models[odd.name] = 2
    else:
        check_refused(odd)
    with tempfile.TemporaryDirectory() as work:
        worst = max(check(llamesh, name, ranks, work) for name, ranks in models.items())
    print(f"transformers {transformers.__version__}: {len(models)} exported models, logits within {worst:.1e} of the "
          "golden ones")


os.environ["TRANSFORMERS_OFFLINE"] = "1"
main(sys.argv[1])
