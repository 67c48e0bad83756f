#!/usr/bin/env python3
"""Writes the golden data of preference training (DPO and IPO) with TRL's own DPOTrainer.

    python3 -m venv VENV
    VENV/bin/pip install torch==2.15.0 transformers==5.24.0 trl==1.16.0 peft==0.21.2      # "made_with" has what was used
    VENV/bin/python make_preference.py [FOLDER]

preference_model/     a tiny random Llama as a Hugging Face folder, fp32, without a tokenizer
preference_adapter/   the LoRA adapter with which training starts, as PEFT writes it: A is random, B is zero
preference.jsonl      the pairs. Tokens are bytes: those of the prompt, those of the answer, then 0 as the end of the text. The
                      answer and its 0 are in the loss, the prompt isn't.
preference.json       "made_with", and for each of "dpo", "ipo", "dpo_lora" and "ipo_lora":
    loss_type ... lora          the settings. Weight decay is on matrices only, as transformers' Trainer and llamesh have it.
    reference                   per pair of the file: the sum of the log-probabilities of the tokens in the loss, before training
    loss ... logps_rejected     one value per step, before its update. A step has 4 pairs in the file's order, the fourth step the
                first 4 again. All but grad_norm are means over these pairs; grad_norm is not clipped. Log-probabilities
                (logps_) are sums over a document; rewards are beta times their difference to the reference, for IPO, too.
All in float32 on one CPU thread. TRL divides for IPO by the number of tokens in the loss, the final 0 included.
"""

import importlib.metadata
import json
import math
import os
import pathlib
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here is from the hub
import datasets
import peft
import safetensors.torch
import tokenizers
import torch
import transformers
import trl

STEPS, PAIRS_PER_STEP, SEED = 10, 4, 1
MODEL = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
         "attention_bias": False, "mlp_bias": False, "bos_token_id": None, "eos_token_id": 0}
STD = 0.15  # so large that documents differ noticeably
LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
ADAMW = {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.01}
CASES = {"dpo": {"loss_type": "sigmoid", "beta": 0.3, "lr": 2e-3}, "ipo": {"loss_type": "ipo", "beta": 0.2, "lr": 2e-3},
         "dpo_lora": {"loss_type": "sigmoid", "beta": 0.3, "lr": 1e-2, "lora": LORA},
         "ipo_lora": {"loss_type": "ipo", "beta": 0.2, "lr": 1e-2, "lora": LORA}}
METRICS = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected")
PAIRS = [  # prompt, chosen, rejected
    ("Name a large animal. ", "An elephant.", "A small brown ant."),
    ("Is water wet? ", "Yes, it is.", "I would rather not say."),
    ("Two plus two is ", "four.", "five, or perhaps six."),
    ("What do bees make? ", "Bees make honey.", "Bees make honey and also cheese."),  # one begins as the other
    ("Describe the sea in one line: ", "A wide blue field that never lies still.", "The sea is wet and that ok."),  # 129 tokens
    ("Say hello. ", "Hello there, how do you do?", "Go away!"),
    ("Color of the sky: ", "blue!", "green"),
    ("How are you? ", "Very well, thank you.", "I am a table."),
    ("Finish: once upon a ", "time there was a king.", "potato potato potato potato potato."),
    ("Best drink? ", "Fresh water.", "Fresh paint."),
    ("Count to 3: ", "1, 2, 3", "3, 9, 27, 81, 243"),
    ("When it is night, we see ", "the moon and the stars.", "a bright sun."),
]


def write_model(folder):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**MODEL))
    random = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * STD + (1 if parameter.dim() == 1 else 0))
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()


def load_model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def lora_config(name):
    return peft.LoraConfig(task_type="CAUSAL_LM", base_model_name_or_path=name, **LORA)


def write_adapter(folder, model):
    adapted = peft.get_peft_model(load_model(model), lora_config(model.name))
    random = torch.Generator().manual_seed(SEED)
    for name, parameter in adapted.named_parameters():
        if ".lora_A." in name:
            torch.nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=random)
        assert ".lora_B." not in name or not parameter.any()
    adapted.peft_config["default"].base_model_name_or_path = model.name  # peft has put the path there
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"].sort()  # the order of a set, otherwise another in each run
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))


def byte_tokenizer():
    """With it TRL itself makes documents' tokens: bytes, and 0 at the end. The padding is also 0, but for masks."""
    end = "<end>"
    vocabulary = {end: 0} | {chr(i): i for i in range(1, 256)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges=[]))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end)


def make_trainer(case, records, folder, output):
    config = trl.DPOConfig(
        output_dir=output, use_cpu=True, bf16=False, report_to="none", disable_tqdm=True, gradient_checkpointing=False,
        loss_type=[case["loss_type"]], beta=case["beta"], per_device_train_batch_size=PAIRS_PER_STEP, optim="adamw_torch",
        learning_rate=case["lr"], adam_beta1=ADAMW["betas"][0], adam_beta2=ADAMW["betas"][1], adam_epsilon=ADAMW["eps"],
        weight_decay=ADAMW["weight_decay"])
    trainer = trl.DPOTrainer(
        load_model(folder / "preference_model"), args=config, train_dataset=datasets.Dataset.from_list(records),
        processing_class=byte_tokenizer(), peft_config=lora_config("preference_model") if "lora" in case else None)
    if "lora" in case:
        start = safetensors.torch.load_file(folder / "preference_adapter" / "adapter_model.safetensors")
        peft.set_peft_model_state_dict(trainer.model, start)
    assert (trainer.ref_model is None) == ("lora" in case)
    trainer.model.train()
    for group in trainer.create_optimizer().param_groups:
        assert all((parameter.dim() == 2) == (group["weight_decay"] > 0) for parameter in group["params"])
    return trainer


def batches_of(trainer, records):
    """The batches that TRL's collator makes, after a look at their tokens."""
    examples = list(trainer.train_dataset)
    for example, record in zip(examples, records, strict=True):
        assert example["prompt_ids"] == list(record["prompt"].encode())
        for answer in ("chosen", "rejected"):
            assert example[f"{answer}_ids"] == [*record[answer].encode(), 0]
        assert 2 * len(example["prompt_ids"]) + len(example["chosen_ids"]) + len(example["rejected_ids"]) <= 129
    return [trainer.data_collator(examples[i : i + PAIRS_PER_STEP]) for i in range(0, len(examples), PAIRS_PER_STEP)]


def reference_of(trainer, batches):
    with_reference = trainer.ref_model if trainer.ref_model is not None else trainer.model
    columns = zip(*(trainer.compute_ref_log_probs(with_reference, batch) for batch in batches))
    return {answer: torch.cat(column).tolist() for answer, column in zip(("chosen", "rejected"), columns)}


def plain_loss(model, batch, reference, case):
    """The same loss without TRL: of a model that hasn't TRL's head, against log-probabilities that are given."""
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    counted = batch["completion_mask"][:, 1:]
    of_tokens = torch.log_softmax(logits, -1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    ratios = (of_tokens * counted).sum(1) - torch.tensor(reference["chosen"] + reference["rejected"])
    if case["loss_type"] == "ipo":
        chosen, rejected = (ratios / counted.sum(1)).chunk(2)
        return (chosen - rejected - 1 / (2 * case["beta"])).square().mean().item()
    chosen, rejected = ratios.chunk(2)
    return -torch.nn.functional.logsigmoid(case["beta"] * (chosen - rejected)).mean().item()


def train(case, records, folder, output):
    trainer = make_trainer(case, records, folder, output)
    model, batches = trainer.model, batches_of(trainer, records)
    reference = reference_of(trainer, batches)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    lists = {name: [] for name in ("loss", "grad_norm", *(metric.replace("/", "_") for metric in METRICS))}
    for step in range(STEPS):
        at = step % len(batches)
        mine = {answer: values[at * PAIRS_PER_STEP :][:PAIRS_PER_STEP] for answer, values in reference.items()}
        plain = plain_loss(model, batches[at], mine, case)
        trainer._metrics["train"].clear()
        trainer.optimizer.zero_grad()
        loss = trainer.compute_loss(model, dict(batches[at]))
        loss.backward()
        assert abs(loss.item() - plain) < 1e-5, (step, loss.item(), plain)
        lists["loss"].append(loss.item())
        lists["grad_norm"].append(torch.nn.utils.get_total_norm([parameter.grad for parameter in trained]).item())
        for metric in METRICS:
            (value,) = trainer._metrics["train"][metric]
            lists[metric.replace("/", "_")].append(value)
        trainer.optimizer.step()
    assert reference_of(trainer, batches) == reference  # nothing has trained it
    return {"reference": reference} | lists


def check(case, values):
    if case["loss_type"] == "sigmoid":
        assert abs(values["loss"][0] - math.log(2)) < 1e-5
    else:
        assert abs(values["loss"][0] * (2 * case["beta"]) ** 2 - 1) < 1e-4
    for name in ("rewards_chosen", "rewards_rejected", "rewards_margins"):
        assert abs(values[name][0]) < 1e-5, (name, values[name][0])
    assert values["loss"][-1] < values["loss"][0]


def main():
    torch.set_num_threads(1)
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    write_model(folder / "preference_model")
    write_adapter(folder / "preference_adapter", folder / "preference_model")
    records = [dict(zip(("prompt", "chosen", "rejected"), pair)) for pair in PAIRS]
    (folder / "preference.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "trl", "peft")}
    parts = [f' "made_with": {json.dumps(versions)}']
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as output:
            values = train(case, records, folder, output)
        check(case, values)
        settings = case | ADAMW | {"pairs_per_step": PAIRS_PER_STEP}
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in (settings | values).items())
        parts.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
        print(f"{name}: loss {values['loss'][0]:.6f} -> {values['loss'][-1]:.6f}")
    (folder / "preference.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")
    for written in (*folder.glob("preference*/*"), *folder.glob("preference.json*")):
        written.chmod(0o644)


if __name__ == "__main__":
    main()
