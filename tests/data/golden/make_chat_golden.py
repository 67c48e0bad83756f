"""Renders 1,000 random conversations with transformers and writes chat_golden.tsv beside this file.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install transformers==4.46.3 xxhash
    /tmp/golden/bin/python tests/data/golden/make_chat_golden.py FOLDER

The models' templates are not part of this repository. FOLDER holds them as NAME.jinja or
NAME.ANYTHING.jinja, where NAME is llamesh's name: the `chat_template` of a model's
tokenizer_config.json, byte for byte. src/data/known_chat_templates.cpp says which model has which,
and its hashes tell whether a file is the right one.

Lines in chat_golden.tsv:

    template NAME HASH   XXH3-64 of one file
    render NAME HASH...  XXH3-64 of the texts of conversations 0 to 9, 10 to 19, ..., each followed
                         by a NUL
    ids NAME FILE IDS... TALK in the tokenizer tests/tokenizer/golden/FILE; `plain` has the text in
                         docs/data.md

tests/data/chat_template_test.cpp makes the same conversations from the same numbers.
"""

import pathlib
import sys

import xxhash
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

CONVERSATIONS = 1000
GROUP = 10
WITHOUT_SYSTEM = ("mistral-v0", "mistral-v3")
FRAGMENTS = [
    "Hello", " world", " ", "  ", "\n", "\n\n", "\t", "\u00e9", "\u65e5\u672c", "\U0001f642",
    "\u00a0", "\u3000", "\x1c", "\u0085", "{{ bos_token }}", "{% raw %}", "'", '"', "\\n",
    "<|im_end|>", "</s>", "[/INST]", "<<SYS>>", "<|eot_id|>", "<s>", "1", ".", ",",
    "What is 2 + 2?", "\r\n", "\u200b", "\ufeff",
]  # fmt: skip

TALK = [
    {"role": "user", "content": "In the beginning"},
    {"role": "assistant", "content": "God created the heaven"},
    {"role": "user", "content": "and the earth. And  the\nearth"},
    {"role": "assistant", "content": "was without form,\n\nand void"},
]
TOKENIZERS = {
    "chatml": "qwen.json",
    "mistral-v3": "mistral3.json",
    "llama2": "llama2.json",
    "mistral-v1": "llama2.json",
    "zephyr": "metaspace.json",
}

# Tokenizers for `plain`, each with its BOS and EOS.
PLAIN_TOKENIZERS = {
    "llama2.json": ("<s>", "</s>"),
    "llama3.json": ("<|begin|>", "<|endoftext|>"),
    "qwen.json": (None, "<|endoftext|>"),
    "gpt2.json": ("<|endoftext|>", "<|endoftext|>"),
}


class Numbers:
    """Knuth's linear congruential generator (MMIX)."""

    def __init__(self, seed):
        self.state = (seed + 1) * 0x9E3779B97F4A7C15 % 2**64

    def below(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit


def content(numbers, least):
    return "".join(
        FRAGMENTS[numbers.below(len(FRAGMENTS))] for _ in range(least + numbers.below(8))
    )


def conversation(number):
    numbers = Numbers(number)
    messages = []
    if numbers.below(2) == 1:
        messages.append({"role": "system", "content": content(numbers, 0)})
    for _ in range(1 + numbers.below(4)):
        messages.append({"role": "user", "content": content(numbers, 0)})
        messages.append({"role": "assistant", "content": content(numbers, 1)})
    return messages


def rendered(tokenizer, template, name):
    hashes = []
    for first in range(0, CONVERSATIONS, GROUP):
        digest = xxhash.xxh3_64()
        for number in range(first, first + GROUP):
            messages = conversation(number)
            if name in WITHOUT_SYSTEM and messages[0]["role"] == "system":
                del messages[0]
            text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
            digest.update(text.encode() + b"\0")
        hashes.append(digest.hexdigest())
    return hashes


def ids(template, name):
    folder = pathlib.Path(__file__).parents[2] / "tokenizer/golden"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / TOKENIZERS[name]), bos_token="<s>", eos_token="</s>"
    )
    found = tokenizer.apply_chat_template(TALK, chat_template=template)
    return f"ids {name} {TOKENIZERS[name]} {' '.join(map(str, found))}"


def plain_ids():
    folder = pathlib.Path(__file__).parents[2] / "tokenizer/golden"
    docs = (pathlib.Path(__file__).parents[3] / "docs/data.md").read_text()
    lines = [line.strip() for line in docs.split("\n")]
    template = next(line for line in lines if line.startswith("{{ bos_token"))
    found = []
    for name, (bos, eos) in PLAIN_TOKENIZERS.items():
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / name), bos_token=bos, eos_token=eos
        )
        ids = tokenizer.apply_chat_template(TALK, chat_template=template, return_dict=False)
        found.append(f"ids plain {name} {' '.join(map(str, ids))}")
    return found


def main():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(BPE()), bos_token="<s>", eos_token="</s>"
    )
    lines, results, talks = [], {}, []
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        name = path.name.removesuffix(".jinja")
        for suffix in (".escaped", ".newline", ".transformers"):
            name = name.removesuffix(suffix)
        template = path.read_bytes().decode()
        lines.append(f"template {name} {xxhash.xxh3_64_hexdigest(template.encode())}")
        if name in TOKENIZERS and name not in results:
            talks.append(ids(template, name))
        hashes = rendered(tokenizer, template, name)
        if results.setdefault(name, hashes) != hashes:
            sys.exit(f"{path} renders other texts than the files before it")
    lines += [f"render {name} {' '.join(hashes)}" for name, hashes in results.items()]
    lines += talks + plain_ids()
    output = pathlib.Path(__file__).with_name("chat_golden.tsv")
    output.write_text("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
