#!/usr/bin/env python3
"""Writes what the tokenizers library makes of hard texts with the pipeline of every family of models.

    pip install tokenizers==0.23.3
    cd tests/tokenizer/golden && ./make_families.py

families.json has the texts (those of golden.tsv and more), one byte-level model whose merges span whatever a
pipeline would cut, and for each pipeline the model's ids in base 36, or the number of an earlier pipeline that has
the same. The pipelines of docs/models.md:

| families | pipeline | from |
|---|---|---|
| gpt2 | ByteLevel with its regex: gpt2.json | [1] |
| llama 2, mistral v0.1, mixtral, phi3 (Phi-3), ernie4_5, nemotron | Prepend, Replace: llama2.json | [1] |
| mistral v0.3 | Metaspace: mistral3.json | [1] |
| llama 3, smollm3, arcee, glm, glm4, glm4_moe, glm4_moe_lite | Split by Llama 3's regex: llama3.json | [1] |
| qwen2, qwen3, qwen2_moe, qwen3_moe | NFC, the same with single digits: qwen.json | [1] |
| gemma; gemma2, gemma3_text | Replace; then a Split that has nothing to do: gemma.json | [1], [3] |
| the rest | PIPELINES below | in each |

[1] the census of tokenizer.json files on the hub in github.com/actual-computer/toks, docs/coverage.md
[2] llama.cpp, src/llama-vocab.cpp, with the models of convert_hf_to_gguf_update.py; its regexes are adapted
[3] transformers 5.24, models/*/tokenization_*.py
[4] tiktoken, tiktoken_ext/openai_public.py

Sure are those of [1], which quotes the files. Less so, as no file was at hand:

- smollm3 has Llama 3's vocabulary; arcee and, by its name, apertus are taken to have the files of the models whose
  row they are in;
- starcoder2, granite 3, exaone4, hunyuan_v1_dense: [2] has the regex that their texts need, not the file's spelling;
- seed_oss: [2] and [1] have Seed-Coder's. Seed-OSS has as many tokens (155136), so that it is probably the same;
- cohere and cohere2: [3] builds this pipeline in code, and [2] agrees;
- exaone4, apertus, bailing_moe: whether a normalizer stands before them; [2] quotes bailing_moe's regex from the file;
- ernie4_5 and nemotron (Minitron): taken to be SentencePiece models, and their tokenizer.json of Llama 2's kind;
- kimi_k2 has no tokenizer.json, but tiktoken's file and code of its own, with the regex in [1]. The code also cuts
  runs of 25,000 characters with or without white space, which no tokenizer.json can.
"""
import json
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = GPT2 | {"use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}
NFC = {"type": "NFC"}

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def by_case(digits, after="", behind="", without=""):
    """GPT-4o's regex and its relatives: words of upper-case and then lower-case letters."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return (rf"{before}[{UPPER}{without}]*[{LOWER}{without}]+{after}"
            rf"|{before}[{UPPER}{without}]+[{LOWER}{without}]*{after}"
            rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{behind}]*|\s*[\r\n]+|\s+(?!\S)|\s+")


O200K = by_case(r"\p{N}{1,3}", CONTRACTION, "/")
TEKKEN = by_case(r"\p{N}", "", "/")
KIMI = r"[\p{Han}]+|" + by_case(r"\p{N}{1,3}", CONTRACTION, "", r"&&[^\p{Han}]")
SEED = (LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}{1}").replace(r"]+[\r\n]*", r"\r\n]+")
        .replace(r"\r", "\r").replace(r"\n", "\n"))
LING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
DEEPSEEK_LETTERS = r"\s?[A-Za-z" + (
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943") + "]+"
DEEPSEEK_V3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^~r~n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
               r"""| ?[\p{P}\p{S}]+[~r~n]*|\s*[~r~n]+|\s+(?!\S)|\s+""").replace("~r", "\r").replace("~n", "\n")


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def pieces(regex):
    return split(regex, "Removed", True)


PIPELINES = [
    {"families": "gpt_oss", "from": "[1], [4]", "steps": [split(O200K), BYTES]},
    {"families": "minimax_m2, phi3 (Phi-4-mini)", "from": "[1]", "steps": [pieces(O200K), BYTES]},
    {"families": "ministral, ministral3, apertus", "from": "[1], [3] fix_mistral_regex",
     "steps": [split(TEKKEN), BYTES]},
    {"families": "olmo2, olmo3, phi3 (Phi-4), granite and granitemoehybrid (4)", "from": "[1]",
     "steps": [pieces(LLAMA3), BYTES]},
    {"families": "deepseek_v2", "from": "[1]",
     "steps": [split("[\r\n]"), split(DEEPSEEK_LETTERS),
               split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"), split(r"\s+$"),
               split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), DIGITS, BYTES]},
    {"families": "deepseek_v3, hunyuan_v1_dense", "from": "[1], [2]",
     "steps": [split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK_V3), BYTES]},
    {"families": "kimi_k2", "from": "[1]", "steps": [split(KIMI), BYTES]},
    {"families": "cohere, cohere2", "from": "[2] command-r, [3]", "normalizer": NFC, "steps": [DIGITS, GPT2]},
    {"families": "cohere2 (Tiny Aya)", "from": "[1], [2] tiny_aya", "normalizer": NFC,
     "steps": [split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(O200K), BYTES]},
    {"families": "starcoder2, granite (3)", "from": "[2] starcoder, refact", "steps": [DIGITS, GPT2]},
    {"families": "olmoe, exaone4", "from": "[3] gpt_neox, [2] exaone4", "normalizer": NFC, "steps": [GPT2]},
    {"families": "seed_oss", "from": "[1], [2] seed-coder", "steps": [split(SEED), BYTES]},
    {"families": "bailing_moe, bailing_moe_v2", "from": "[2] bailingmoe", "steps": [split(LING), BYTES]},
]

TEXTS = [
    "I'VE we'Ll HE'S it'd've O'Neil's 'tis rock'n'roll's CAN'Tt THEY'REx I'm\u00e9",
    "HTMLParser getHTTPUrl iPhone XMLs abcDEF ABCdef \u01c5abc \u02b0A\u02b0 \u0410\u0411\u0432\u0413 \u05d0A\u05d1b",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>It's <\uff5cbegin\u2581of\u2581sentence",
    "a.\n/b!\n/c.\n/d!\n/e.\n/f!\n/g.\n/h!\n/i.\n/j", "end.\n/path//\r\n/x\n//\n /y ?/\n!\n\n/ a/\r/b", "a\t\n  /b \r\r\n\n  c \u2028 d\n\u3000e",
    "1 12 123 1234 12345678901 1a12b123c1234d x1234567 1,234,567.89 12_345 1234\u00bd 1234\u00b2 12\u0301 99\u0663\u0664\u0665\u0666",
    "\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e 2024\u5e743\u6708 \u6771\u4eac\u3067\u30c6\u30b9\u30c8\u3001\u3005\u3007\u3006\u303b \u9fa6\u3400\uf900\U00020000\U00030000 Han\u6f22Kana",
    "\uff01\uff0f\uff1a\uff5e\u2018\u201c\u201f\u3000\u3002 \uff21\uff22\uff41 !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ -a.b_c$d (e) 'f \u00bfg \u20ach",
    "\u0e01\u0e33\u0e25\u0e31\u0e07\u0e17\u0e33 \u0939\u093f\u0928\u094d\u0926\u0940 \u0995\u09be \ua9a0\ua9b4 \uac00\ub098\ub2e4abc\ub77c \u10d0\u10d1 \u10a0\u10a1 \u13a0\u1c90\u1e00\u1f7d\u1fd3\u1fdb \u2126\u212a\ufb00 \u01bb\u01c0\u0294\u0295",
    "ends in blanks  \t ", "x \u00a0\u3000", "a  \n", "\x01a \x02 b\x03\x04c \x7fd \u200be \u00adf\ufeff g\ue000h \u0378i \x01\u0301",
    # Characters of Unicode 15 and 16, which are newer than PCRE2's in some releases: an emoji among letters, a heart,
    # Chinese, Garay's letters and digits, a mark; and of Unicode 17, which only Digits has.
    "so\U0001fae8what \U0001fa77! a\U0001fac6b \U0001f6dc1", "\u6f22\U00031350\U000323af\U0002ebf0x y\U00031350 \U00031350\u3042",
    "\U00010d50\U00010d70\U00010d71 \U00010d4a\U00010d6f \U00010d40\U00010d41 1\U0001e4f01 a\u0897 \U00011de01\U00016ff4 \u1c89\u1c8a \U00010d6ea\U00010d8e",
    "e\u0301\u0301 \u1100\u1161\u11a8\u11a8 \u0915\u093c \ufb1d\u05b4 o\u0328\u0304 A\u030a's \u03a9\u0301'LL",
]


def texts():
    with open("golden.tsv", encoding="ascii") as file:
        hard = [bytes.fromhex(line.split("\t")[1]).decode() for line in file if line.startswith("text\t")]
    rng = random.Random(20261)
    alphabet = " \n\t\r'/sStTlLmMdDaAzZ019.,-_!\u00e9\u0301\u4f60\u3042\u05d0\u0663\U0001f600\u3000\u3002\x01\u02b0"
    drawn = ["".join(rng.choice(alphabet) for _ in range(40)) for _ in range(12)]
    return [text for text in hard if len(text.encode()) < 180] + TEXTS + drawn


def model_of(samples):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.train_from_iterator(samples, trainers.BpeTrainer(
        vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<|endoftext|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"])
    tokenizer.decoder = decoders.ByteLevel()
    return json.loads(tokenizer.to_str())


def base36(number):
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return digits[number] if number < 36 else base36(number // 36) + digits[number % 36]


def ids(base, pipeline, samples):
    steps = {"normalizer": pipeline.get("normalizer"),
             "pre_tokenizer": {"type": "Sequence", "pretokenizers": pipeline["steps"]}}
    tokenizer = Tokenizer.from_str(json.dumps(base | steps))
    return [" ".join(map(base36, tokenizer.encode(text, add_special_tokens=False).ids)) for text in samples]


def one_line_each(items):
    return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in items) + "\n]"


def main():
    samples = texts()
    base = model_of(samples)
    told = [ids(base, pipeline, samples) for pipeline in PIPELINES]
    lines = [pipeline | {"ids": [first if (first := [t[i] for t in told].index(one)) < at else one
                                 for i, one in enumerate(told[at])]} for at, pipeline in enumerate(PIPELINES)]
    with open("families.json", "w", encoding="utf-8") as file:
        file.write(f'{{"texts":{one_line_each(samples)},\n"tokenizer":{json.dumps(base, separators=(",", ":"))},\n'
                   f'"pipelines":{one_line_each(lines)}}}\n')


main()
