"""hf_peft.py LLAMESH: llamesh trains adapters beside golden models on 4 ranks. PEFT loads the folders that it exports,
has the same loss with them, and the same logits as transformers with the merged folder. Then llamesh goes on from a
folder that PEFT wrote, and computes the loss that PEFT has with it.

Exits with 77 (skipped) where PyTorch, transformers or PEFT is missing.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import peft
    import torch
    import transformers
except ImportError as missing:
    print(f"SKIPPED: {missing}")
    sys.exit(77)

tests = pathlib.Path(__file__).resolve().parent.parent
golden = tests / "model" / "golden" / "hf"
LENGTH, ROWS = 32, 9
INPUTS = """
run: {{name: adapters, folder: {work}/{run}}}
model: {{hf: {golden}/{name}, lora: {lora}}}
mesh: {{ranks_per_node: 2}}
sharding: {{strategy: hybrid_shard}}
data: {{train: {work}/tokens.bin, format: tokens, token_dtype: uint16, sequence_length: {length}}}
optimizer: {{lr: {lr}}}
train: {{steps: 8, micro_batch: 1, global_batch: 8, threads: 1}}
"""


def run(llamesh, ranks, *arguments):
    command = [tests / "mpirun.sh", ranks, llamesh, *arguments]
    return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE).stdout


def loss_of_llamesh(llamesh, work, *model):
    printed = run(llamesh, 1, "evaluate", *model, f"{work}/tokens.bin", "--token-dtype", "uint16", "--sequence-length",
               LENGTH, "--json")
    return json.loads(printed)["loss"]


def logits_of(model, stream):
    with torch.no_grad():
        return model.eval()(input_ids=stream[:-1].view(ROWS, LENGTH), use_cache=False).logits


def loss_of(logits, stream):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), stream[1:]).item()


def load(folder):
    eager = {"attn_implementation": "eager"}
    if int(transformers.__version__.split(".")[0]) >= 5:
        eager["experts_implementation"] = "eager"  # the others refuse sizes as small as these
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **eager).float()


def train(llamesh, work, name, lora, to, lr):
    inputs = pathlib.Path(f"{work}/{name}.yaml")
    inputs.write_text(INPUTS.format(work=work, golden=golden, name=name, lora=lora, length=LENGTH, run=to, lr=lr))
    run(llamesh, 4, "train", inputs)


def near(a, b, limit, what):
    assert abs(a - b) < limit, (what, a, b)


def check(llamesh, work, name, lora):
    """Trains, exports both ways, and returns how far the merged logits are from PEFT's."""
    stream = torch.from_numpy(numpy.fromfile(f"{work}/tokens.bin", "<u2").astype("i8"))
    train(llamesh, work, name, lora, to=f"{name}.run", lr=1e-2)
    run(llamesh, 2, "convert", "--from", f"{work}/{name}.run", "--to", f"{work}/{name}.adapter")
    run(llamesh, 2, "convert", "--from", f"{work}/{name}.run", "--to", f"{work}/{name}.merged", "--merge")
    before = loss_of(logits_of(load(golden / name), stream), stream)
    adapted = logits_of(peft.PeftModel.from_pretrained(load(golden / name), f"{work}/{name}.adapter"), stream)
    merged = logits_of(load(f"{work}/{name}.merged"), stream)
    loss = loss_of(adapted, stream)
    assert loss < before - 1e-3, (name, before, loss)
    near(loss, loss_of_llamesh(llamesh, work, f"{work}/{name}.run"), 2e-5, name)
    near(loss, loss_of_llamesh(llamesh, work, golden / name, "--adapter", f"{work}/{name}.adapter"), 2e-5, name)
    difference = (adapted - merged).abs().max().item()
    assert difference < 1e-4, (name, difference)
    return difference


def check_of_peft(llamesh, work, name):
    """A folder that PEFT wrote gives the same loss, and a run begins with it."""
    stream = torch.from_numpy(numpy.fromfile(f"{work}/tokens.bin", "<u2").astype("i8"))
    folder = golden / f"{name}_adapter"
    loss = loss_of(logits_of(peft.PeftModel.from_pretrained(load(golden / name), folder), stream), stream)
    near(loss, loss_of_llamesh(llamesh, work, golden / name, "--adapter", folder), 2e-5, name)
    train(llamesh, work, name, f"{{from: {folder}}}", to=f"{name}.from_peft", lr=1e-30)  # which changes nothing
    near(loss, loss_of_llamesh(llamesh, work, f"{work}/{name}.from_peft"), 2e-5, name)


def main(llamesh):
    models = {"lora": "{rank: 3, alpha: 7, rslora: true}", "lora_gpt2": "{rank: 2, targets: [c_fc, c_proj]}",
              "lora_qwen2": "{rank: 5, alpha: 8, targets: [q_proj, v_proj, down_proj], init: gaussian}",
              "lora_glm4": "{rank: 3, alpha: 5, targets: [q_proj, k_proj, v_proj, down_proj]}",
              "lora_deepseek": "{rank: 3, alpha: 5, targets: [q_a_proj, q_b_proj, kv_a_proj_with_mqa, kv_b_proj, o_proj]}",
              "lora_phi3": "{rank: 3, alpha: 5, targets: [all-linear]}",
              "lora_gpt2_attn": "{rank: 2, alpha: 3, targets: [c_attn, c_fc]}"}
    with tempfile.TemporaryDirectory() as work:
        tokens = numpy.random.default_rng(1).integers(42, size=ROWS * LENGTH + 1).astype("<u2")
        tokens.tofile(f"{work}/tokens.bin")
        worst = max(check(llamesh, work, name, lora) for name, lora in models.items())
        for name in models:
            check_of_peft(llamesh, work, name)
    print(f"peft {peft.__version__}: {len(models)} exported adapters, merged logits within {worst:.1e} of its own")


os.environ["TRANSFORMERS_OFFLINE"] = "1"
main(sys.argv[1])
