#!/usr/bin/env python3
"""Writes what tokenizers makes of gpt2.json in other settings.

    pip install tokenizers==0.23.3
    cd tests/tokenizer/golden && ./make_variants.py

splits.json has the ids for every behavior of a Split.
"""
import json

import tokenizers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERNS = [{"Regex": LLAMA3}, {"Regex": r"\s"}, {"Regex": r"\p{Lu}|\d{2}"}, {"String": "th"}, {"String": "."}]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
SPLIT_TEXTS = ["", " ", "..", "the.the", "In the  beginning\n\nGod created ", "ththaththth 1611 A.B. ", "x\u00e9 \u4f60\u3000\u597d."]


def one_line_each(items):
    return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in items) + "\n]"


def write(name, texts, key, items):
    with open(name, "w", encoding="utf-8") as file:
        file.write(f'{{"texts":{json.dumps(texts)},\n"{key}":{one_line_each(items)}}}\n')


def split_ids(base, split):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    steps = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(base | {"pre_tokenizer": steps}))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in SPLIT_TEXTS]


def main():
    with open("gpt2.json", encoding="utf-8") as file:
        base = json.load(file)
    splits = [{"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
              for pattern in PATTERNS for behavior in BEHAVIORS for invert in (False, True)]
    write("splits.json", SPLIT_TEXTS, "splits", [{"split": split, "ids": split_ids(base, split)} for split in splits])


main()
