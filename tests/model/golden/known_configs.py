#!/usr/bin/env python3
"""Says of the families below of language models whether llamesh trains them, or why not.

    VENV/bin/python tests/model/golden/known_configs.py build/ci/tests/config_verdicts [NAME...]     # VENV as for make_golden.py

Each config.json is written as transformers' class of that model_type gives it, with its default values, but for those that
do not fit together.
"""

import json
import subprocess
import sys

import transformers

# By model_type: the families whose models are downloaded and fine-tuned most.
NAMES = """llama mistral ministral ministral3 mixtral qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5_text gemma gemma2
gemma3_text gemma3n_text gemma4_text phi phi3 phimoe olmo olmo2 olmo3 olmoe smollm3 exaone4 seed_oss internlm3 hunyuan_v1_dense
hunyuan_v1_moe ernie4_5 ernie4_5_moe glm glm4 glm4_moe glm4_moe_lite granite granitemoe granitemoehybrid arcee apertus
nemotron nemotron_h cohere cohere2 starcoder2 stablelm gpt2 gpt_neo gpt_neox gptj gpt_oss opt bloom falcon falcon_h1 mpt
deepseek_v2 deepseek_v3 minimax minimax_m2 bamba jamba mamba2 lfm2 dots1 bitnet helium persimmon xglm""".split()


# As GLM-4.5 has it (96 heads do not divide the default hidden_size), and DeepSeek-V2-Lite and dots.llm1 (there is no default).
MENDED = {"glm4_moe": {"head_dim": 128}, "deepseek_v2": {"num_experts_per_tok": 6},
          "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6}}


def config_of(name):
    """The config.json, or None if this version of transformers does not have the class."""
    if name not in transformers.CONFIG_MAPPING:
        return None
    config = transformers.AutoConfig.for_model(name, **MENDED.get(name, {}))
    classes = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    architecture = classes.get(name)
    config.architectures = [architecture] if isinstance(architecture, str) else list(architecture or [])[:1]
    return json.loads(config.to_json_string(use_diff=False))


def main():
    configs = {name: config_of(name) for name in sys.argv[2:] or NAMES}
    known = {name: config for name, config in configs.items() if config is not None}
    answers = subprocess.run(sys.argv[1], input="\n".join(map(json.dumps, known.values())), text=True, check=True,
                             capture_output=True).stdout.splitlines()
    trains = 0
    for name, answer in zip(known, map(json.loads, answers), strict=True):
        trains += isinstance(answer, dict)
        reason = "" if isinstance(answer, dict) else answer.removeprefix("config.json: ").split("; llamesh trains")[0]
        print(f"{name:<20}" + (f"refused: {reason}" if reason else "trains"))
    for name in configs.keys() - known.keys():
        print(f"{name:<20}not in transformers {transformers.__version__}")
    print(f"{trains} of {len(known)} families")


if __name__ == "__main__":
    main()
