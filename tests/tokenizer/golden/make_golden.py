#!/usr/bin/env python3
"""Makes the tokenizers of this folder and what the reference implementations say to tricky texts.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    bible -f 'gen1:1-rev22:21' | sed 's/^[^ ]* //' >corpus.txt     # Debian's bible-kjv, public domain
    cd tests/tokenizer/golden && ./make_golden.py corpus.txt

Writes in the folder in which it starts *.json and *.model (small tokenizers trained on the corpus) and
golden.tsv: a line "text <tab> text in hex", then for each tokenizer "file <tab> ids <tab> decoded text in hex,
or = where it is the text". The ids are in base 36.
"""
import json
import os
import random
import sys

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UNUSUAL = r"\d{2}|[A-Z][a-z]*(?=[A-Z ])|[\p{Lu}\p{M}]+?|\.\s|[^\n.]{1,5}"

MISTRAL3 = ["[INST]", "[/INST]", "[TOOL_CALLS]", *(f"[control_{i}]" for i in range(8, 20))]

TEXTS = [
    "", " ", "a", "Hello world", " Hello  world ", "In the beginning God created the heaven and the earth.",
    "don't DON'T I'll we've they're he'd I'm it's 'S 'LL 'Re '\u017f 't's",
    "tabs\tand\t\ttabs \t x", "CRLF\r\nline\r\n\r\nend\r", "\n", "\n\n\n", " \n \n  x", "a\n b\n  c   \n",
    "trailing   ", "   leading", "x" * 300, "ab" * 500, " " * 200 + "x", "\n" * 150, "1234567890" * 3, "3.14159 1,000,000 0x1F \u0661\u0662\u0663 \u00bd\u00b2\u2167",
    "caf\u00e9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m \u1e9b\u0323",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\n\ud55c\uad6d\uc5b4 \ubb38\uc7a5",
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u202eRTL\u202c",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f",
    "z\u0335\u0321\u0308a\u0300\u0301\u0302l\u0327g\u030ao", "NUL \0 in \x01\x02\x1b[0m text\x7f", "\u00a0nbsp\u00a0\u2003em\u3000ideo\u2028ls\u2029ps\u0085nel\u180emvs\u200bzwsp\ufeffbom",
    "\u2581already\u2581\u2581there \u2581x", "<s>text</s> <unk> <0x41> <0xff>",
    "<|endoftext|>one<|endoftext|><|end<|endoftext|>two", "<|begin|>  <|mask|>  between <|mask|>\n<|pad|>end<|pad",
    "a<|begin|>b<|begin|>c <|begin|> d", "price: $5.00!!! (really?) [yes] {no} #tag @user http://x.y/z?a=b&c=d%20e",
    "x=1;\n    if (y) {\n\t\treturn a->b[3];\n    }\n", "\u0130stanbul \u01c5 \u00df \ufb01 \u2460 \u33d2 \ud7a3",
    "MiXeD CaSe CamelCaseWord snake_case_word kebab-case A.B.C. U.S.A.", "\U0010ffff\U00010000\ufffd\uffff",
    "And God said, Let there be light: and there was light. " * 8,
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nhm</think>\n\nYo<|im_end|>\n<|endoftext|>",
    "<s>[INST] What? [/INST] That.</s>[INST]x[/INST] [control_8][control_9]",
    "A\u030a \u212b \u1100\u1161\u11a8 e\u0323\u0302 <|im_end|>\u0338 x\u0300\u0301 \u0958 \ufb1d \u2126 12\u0663\u0301",
]


def fresh_texts(corpus, count):
    rng = random.Random(20260)
    alphabet = "  \n\t\r'\"aeiouTSxyz019.,;-_<|>\u00e9\u0301\u4f60\u05d0\u0663\U0001f600\u200d\u3000\u2581\0"
    for i in range(count):
        if i % 2:
            yield "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 60)))
        else:
            at = rng.randrange(len(corpus) - 300)
            yield corpus[at:at + rng.randint(20, 200)]


def byte_level(name, corpus, pre_tokenizer, size, added=(), processor=None, edit=None, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([corpus], trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=list(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if processor:
        tokenizer.post_processor = processor(tokenizer)
    return save(name, tokenizer, edit)


def save(name, tokenizer, edit=None):
    content = json.loads(tokenizer.to_str())
    if edit:
        edit(content)
    with open(name, "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")
    return Tokenizer.from_file(name)


def special(text, **options):
    return AddedToken(text, special=True, normalized=False, **options)


def pairs_as_text(content):
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]


def ignore_merges(content):
    """A word of the vocabulary that its own merges do not reach: only ignore_merges finds it."""
    content["model"]["ignore_merges"] = True
    vocab = content["model"]["vocab"]
    vocab["\u0120firmament"] = max(max(vocab.values()), max(t["id"] for t in content["added_tokens"])) + 1


def characters(corpus, special_tokens):
    """A model of characters with byte fallback, trained on words, so that no merge spans a space, as in
    SentencePiece."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train([corpus], trainers.BpeTrainer(
        vocab_size=900, show_progress=False,
        special_tokens=special_tokens + [f"<0x{byte:02X}>" for byte in range(256)]))
    return tokenizer


def after(token, id):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}}}


TO_CHARACTERS = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
                 {"type": "Fuse"}]


def llama2(name, corpus, metaspace, control=()):
    """Llama 2's kind of file, which is also Mistral's: characters, byte fallback, no pattern. Mistral's v0.3 has
    Metaspace and hundreds of control tokens."""
    tokenizer = characters(corpus, ["<unk>", "<s>", "</s>", *control])

    def edit(content):
        content["added_tokens"] = content["added_tokens"][:3 + len(control)]
        content["pre_tokenizer"] = None
        if metaspace:
            content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first",
                                        "split": False}
        else:
            content["normalizer"] = json.loads(json.dumps({"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}))
        content["post_processor"] = after("<s>", 1)
        content["decoder"] = {"type": "Sequence", "decoders": [
            *TO_CHARACTERS, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}

    return save(name, tokenizer, edit)


def gemma(name, corpus):
    """Gemma's kind: nothing is prepended, and a Split looks for the spaces that the normalizer has replaced. Line
    ends, blanks and HTML are added tokens, which are not special."""
    special_tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>"]
    tokenizer = characters(corpus, special_tokens + ["\n\n", "\u2581\u2581", "<td>"])

    def edit(content):
        content["added_tokens"] = content["added_tokens"][:9]
        for token in content["added_tokens"][6:]:
            token["special"] = False
        content["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        content["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                    "invert": False}
        content["post_processor"] = after("<bos>", 2)
        content["decoder"] = {"type": "Sequence", "decoders": TO_CHARACTERS}

    return save(name, tokenizer, edit)


def make_byte_level(corpus):
    byte_level_only = pre_tokenizers.ByteLevel(add_prefix_space=False)
    after_split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def sequence(*steps):
        return pre_tokenizers.Sequence(list(steps))

    def template(tokenizer):
        return processors.TemplateProcessing(
            single="<|begin|> $A <|endoftext|>", pair="$A $B",
            special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<|begin|>", "<|endoftext|>")])

    tokens = [special("<|endoftext|>"), special("<|begin|>"), special("<|mask|>", lstrip=True, rstrip=True),
              AddedToken("<|pad|>", normalized=True)]
    return {
        "gpt2.json": byte_level("gpt2.json", corpus, byte_level_only, 900, [special("<|endoftext|>")],
                                lambda t: processors.ByteLevel(trim_offsets=False), pairs_as_text),
        "llama3.json": byte_level(
            "llama3.json", corpus, sequence(pre_tokenizers.Split(Regex(LLAMA3), "isolated"), after_split), 900,
            tokens[:2], template, ignore_merges),
        # Qwen 2 and 3: NFC, single digits, and tokens of chats and of reasoning, of which the latter are not special.
        "qwen.json": byte_level(
            "qwen.json", corpus, sequence(pre_tokenizers.Split(Regex(QWEN), "isolated"), after_split), 600,
            [*map(special, ("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
             AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)],
            lambda t: processors.ByteLevel(trim_offsets=False), None, normalizers.NFC()),
        "digits.json": byte_level(
            "digits.json", corpus, sequence(pre_tokenizers.Digits(individual_digits=True), byte_level_only),
            500, tokens),
        "prefix.json": byte_level("prefix.json", corpus, pre_tokenizers.ByteLevel(add_prefix_space=True), 500,
                                  tokens),
        "unusual.json": byte_level(
            "unusual.json", corpus, sequence(pre_tokenizers.Split(Regex(UNUSUAL), "isolated"), after_split), 400),
        "whole.json": byte_level("whole.json", corpus, after_split, 300),
    }


def make_sentencepiece(corpus):
    rules = "rules.tsv"
    with open(rules, "w", encoding="ascii") as file:  # a small part of NFKC, which takes 240 KB in full
        file.writelines(["A\t20\n", "9\t20\n", "A0\t20\n", "3000\t20\n", "FB01\t66 69\n", "65 301\tE9\n"])
    kinds = {
        "bpe.model": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                          remove_extra_whitespaces=False, vocab_size=700, character_coverage=0.9999),
        # Mistral's v3: control symbols, which no text contains.
        "mistral3.model": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                               remove_extra_whitespaces=False, vocab_size=600, character_coverage=0.9999,
                               control_symbols=",".join(MISTRAL3)),
        "unigram.model": dict(model_type="unigram", vocab_size=500, normalization_rule_tsv=rules),
    }
    for name, options in kinds.items():
        sentencepiece.SentencePieceTrainer.train(
            input=corpus, model_prefix=name.removesuffix(".model"), minloglevel=2, num_threads=1, **options)
        os.remove(name.replace(".model", ".vocab"))
    os.remove(rules)
    return {name: sentencepiece.SentencePieceProcessor(model_file=name) for name in kinds}


def base36(number):
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return digits[number] if number < 36 else base36(number // 36) + digits[number % 36]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    part = "part.txt"  # relative, because SentencePiece writes the names into the models
    with open(part, "w", encoding="utf-8") as file:
        file.write(text[:600_000])  # enough to train on
    hugging_face = make_byte_level(part)
    hugging_face["llama2.json"] = llama2("llama2.json", part, metaspace=False)
    hugging_face["metaspace.json"] = llama2("metaspace.json", part, metaspace=True)
    hugging_face["gemma.json"] = gemma("gemma.json", part)
    hugging_face["mistral3.json"] = llama2("mistral3.json", part, metaspace=True, control=MISTRAL3)
    pieces = make_sentencepiece(part)
    os.remove(part)
    with open("golden.tsv", "w", encoding="ascii") as file:
        for sample in TEXTS + list(fresh_texts(text, 40)):
            print("text", sample.encode().hex(), sep="\t", file=file)
            for name, tokenizer in (hugging_face | pieces).items():
                if name in hugging_face:
                    ids = tokenizer.encode(sample, add_special_tokens=False).ids
                    decoded = tokenizer.decode(ids, skip_special_tokens=False)
                else:
                    ids = tokenizer.encode(sample)
                    decoded = tokenizer.decode(ids)
                told = "=" if decoded == sample else decoded.encode().hex()
                print(name, " ".join(map(base36, ids)), told, sep="\t", file=file)


main()
