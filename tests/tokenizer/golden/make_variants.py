#!/usr/bin/env python3
"""Writes what tokenizers and transformers make of gpt2.json in other settings.

    pip install tokenizers==0.23.3 transformers==5.24.0
    cd tests/tokenizer/golden && ./make_variants.py

splits.json has the ids for every behavior of a Split. special_tokens.json has the ids for special tokens that are
named in the files beside a tokenizer.json.
"""
import json
import pathlib
import tempfile

import tokenizers
import transformers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERNS = [{"Regex": LLAMA3}, {"Regex": r"\s"}, {"Regex": r"\p{Lu}|\d{2}"}, {"String": "th"}, {"String": "."}]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
SPLIT_TEXTS = ["", " ", "..", "the.the", "In the  beginning\n\nGod created ", "ththaththth 1611 A.B. ", "x\u00e9 \u4f60\u3000\u597d."]

TEXTS = ["a<x>b <x><y> ", "<z>other Q\n<|endoftext|> <y>", " the  <x> <z> \t<y>Q"]


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True} | flags


def typed(content, **flags):
    return {"__type": "AddedToken"} | token(content, **flags)


END = token("<|endoftext|>")
X = {"id": 900} | token("<x>", special=False)
CASES = [
    {"why": "no file"},
    {"why": "the decoder adds tokens in the order of their ids",
     "tokenizer_config": {"added_tokens_decoder": {"901": token("<y>", special=False), "0": END, "900": token("<x>")}}},
    {"why": "the decoder's flags replace those of tokenizer.json", "more": [X],
     "tokenizer_config": {"added_tokens_decoder": {"900": token("<x>", lstrip=True, rstrip=True)}}},
    {"why": "flags that the decoder leaves out: normalized unless special",
     "tokenizer_config": {"added_tokens_decoder": {"900": {"content": "<x>"}, "901": {"content": "<x><y>"},
                                                   "902": {"content": "<z>", "special": True}}}},
    {"why": "names are added in the order of their kinds, once each",
     "tokenizer_config": {"pad_token": "<x>", "eos_token": "<y>", "bos_token": "<z>", "mask_token": "<x>"}},
    {"why": "a token of the vocabulary becomes an added token",
     "tokenizer_config": {"bos_token": "Q", "eos_token": "<|endoftext|>"}},
    {"why": "names with flags",
     "tokenizer_config": {"bos_token": typed("<x>", lstrip=True, special=False),
                          "pad_token": typed("<z>", rstrip=True, normalized=True), "sep_token": None}},
    {"why": "a name does not change the flags of an added token", "more": [{**X, "rstrip": True}],
     "tokenizer_config": {"eos_token": typed("<x>", lstrip=True), "extra_special_tokens": ["<x>"]}},
    {"why": "a list follows the names",
     "tokenizer_config": {"extra_special_tokens": ["<x>", typed("<y>", lstrip=True)], "eos_token": "<z>"}},
    {"why": "a list with the old name", "tokenizer_config": {"additional_special_tokens": ["<y>", "<x>"]}},
    {"why": "the old name counts if the new list is empty",
     "tokenizer_config": {"additional_special_tokens": ["<y>"], "extra_special_tokens": []}},
    {"why": "otherwise it does not",
     "tokenizer_config": {"additional_special_tokens": ["<y>"], "extra_special_tokens": ["<x>"]}},
    {"why": "tokens for a model's own purposes are known", "more": [X],
     "tokenizer_config": {"image_token": "<x>", "extra_special_tokens": {"audio_token": "<|endoftext|>"}}},
    {"why": "special_tokens_map.json goes before tokenizer_config.json",
     "tokenizer_config": {"eos_token": "<z>", "bos_token": "<y>"},
     "special_tokens_map": {"eos_token": {"content": "<x>", "lstrip": True, "rstrip": False, "normalized": False,
                                          "single_word": False}, "additional_special_tokens": ["<z>"]}},
    {"why": "a null in it takes a name away",
     "tokenizer_config": {"eos_token": "<|endoftext|>", "pad_token": "<x>"}, "special_tokens_map": {"pad_token": None}},
    {"why": "its list counts only if there is no other",
     "tokenizer_config": {"additional_special_tokens": []}, "special_tokens_map": {"additional_special_tokens": ["<x>"]}},
    {"why": "its list extends one with the new name",
     "tokenizer_config": {"extra_special_tokens": ["<x>"]}, "special_tokens_map": {"extra_special_tokens": ["<y>", "<x>"]}},
    {"why": "with a decoder the other files do not count",
     "tokenizer_config": {"added_tokens_decoder": {}, "eos_token": "<z>"}, "special_tokens_map": {"eos_token": "<x>"},
     "added_tokens": {"<y>": 900}},
    {"why": "added_tokens.json in the order of its ids, normalized unless special",
     "tokenizer_config": {"eos_token": "<y>"}, "added_tokens": {"<y>": 901, "<x>": 900, "<x><y>": 902}},
    {"why": "a name with flags does not make its tokens special",
     "tokenizer_config": {"eos_token": typed("<x>")}, "added_tokens": {"<x><y>": 901, "<x>": 900},
     "special_tokens_map": {"additional_special_tokens": ["<x><y>"]}},
    {"why": "flags in tokenizer.json go before added_tokens.json", "more": [{**X, "lstrip": True}],
     "added_tokens": {"<x>": 900, "<|endoftext|>": 0}},
]


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


def expected(base, case):
    with tempfile.TemporaryDirectory() as folder:
        files = {name: case[name] for name in ("tokenizer_config", "special_tokens_map", "added_tokens") if name in case}
        own = base | {"added_tokens": base["added_tokens"] + case.get("more", [])}
        for name, content in (files | {"tokenizer": own}).items():
            (pathlib.Path(folder) / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    return case | {"size": len(tokenizer), "bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id,
                   "ids": [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]}


def main():
    with open("gpt2.json", encoding="utf-8") as file:
        base = json.load(file)
    splits = [{"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
              for pattern in PATTERNS for behavior in BEHAVIORS for invert in (False, True)]
    write("splits.json", SPLIT_TEXTS, "splits", [{"split": split, "ids": split_ids(base, split)} for split in splits])
    write("special_tokens.json", TEXTS, "cases", [expected(base, case) for case in CASES])


main()
