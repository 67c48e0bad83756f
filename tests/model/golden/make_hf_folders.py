#!/usr/bin/env python3
"""Writes the golden models of this folder as Hugging Face folders, by transformers' own save_pretrained().

    VENV/bin/python tests/model/golden/make_hf_folders.py [FOLDER [NAME...]]     # VENV as for make_golden.py

hf/gqa_8_2 is one file, hf/llama3_rope several with an index, hf/tied_6_3 and hf/tied_4_2 have a tied head; all fp32, so
that the numbers are those of NAME.bin to the bit.
"""

import json
import pathlib
import sys

import numpy
import torch
import transformers

HERE = pathlib.Path(__file__).parent
SHARD_SIZE = {"llama3_rope": "20KB"}


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


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "hf"
    for name in sys.argv[2:] or ("gqa_8_2", "tied_6_3", "llama3_rope", "tied_4_2"):
        description, weights = golden(name)
        config = transformers.LlamaConfig(**description["config"], max_position_embeddings=512)
        model = transformers.LlamaForCausalLM(config)
        missing, unexpected = model.load_state_dict(weights, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        model.save_pretrained(folder / name, max_shard_size=SHARD_SIZE.get(name, "5GB"))


if __name__ == "__main__":
    main()
