"""Compares render_chats.py with transformers and TRL, on 1,000 random conversations per template.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install transformers==5.24.0 jinja2
    /tmp/golden/bin/pip download --no-deps trl==1.16.0 && unzip trl-*.whl 'trl/chat_templates/*'
    /tmp/golden/bin/python tests/data/golden/jinja_templates.py trl/chat_templates

For each NAME.jinja: the text is that of transformers' apply_chat_template, byte for byte. Where there
is NAME_training.jinja, TRL's copy with {% generation %} blocks: its answers beside those that are
found by comparing. Prints one line per template; exits with 1 if a text differs.
The templates are not part of this repository.
"""

import itertools
import json
import pathlib
import subprocess
import sys

import datetime

from transformers.utils import chat_template_utils

from make_chat_golden import Numbers, content

CONVERSATIONS = 1000
PROGRAM = pathlib.Path(__file__).parents[3] / "src/data/render_chats.py"
# What is written in all of them; texts hold them too, and then they are not control tokens.
CONTROL = [
    "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|begin_of_text|>", "</s>", "<s>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>",
    "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<bos>", "<eos>", "<|endoftext|>",
    "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<｜User｜>", "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>", "<|return|>", "<|start|>", "<|message|>", "<|channel|>", "<|observation|>",
    "<|turn>", "<turn|>", "<|channel>", "<channel|>", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]",
]  # fmt: skip
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class FixedDate(datetime.datetime):
    """llamesh's date; transformers has today's."""

    @classmethod
    def now(cls):
        return datetime.datetime(2024, 7, 26)


class Renderer:
    def __init__(self, template, python):
        self.process = subprocess.Popen(
            [python, "-c", PROGRAM.read_text()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        start = {"template": template, "tokens": TOKENS, "control": CONTROL, "separate": [], "absorbing": []}
        self.start = self.ask(start)

    def ask(self, value):
        self.process.stdin.write(json.dumps(value, ensure_ascii=False) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def conversation(number, with_system, with_tools):
    """Returns messages, some with reasoning or a tool's call and answer, and the tools or None."""
    numbers = Numbers(number)
    messages, tools = [], None
    if with_system and numbers.below(2) == 1:
        messages.append({"role": "system", "content": content(numbers, 0)})
    if with_tools and numbers.below(3) == 0:
        tools = [TOOL]
    for _ in range(1 + numbers.below(4)):
        messages.append({"role": "user", "content": content(numbers, 1)})
        if tools and numbers.below(2) == 0:
            call = {"name": "weather", "arguments": {"city": content(numbers, 1)}}
            messages.append(
                {"role": "assistant", "content": "", "tool_calls": [{"id": "call12345", "type": "function", "function": call}]}
            )
            messages.append({"role": "tool", "tool_call_id": "call12345", "name": "weather", "content": content(numbers, 1)})
        answer = {"role": "assistant", "content": content(numbers, 1)}
        if numbers.below(3) == 0:
            answer["reasoning_content"] = content(numbers, 1)
            answer["thinking"] = answer["reasoning_content"]
        messages.append(answer)
    return messages, tools


def expected(template, messages, tools):
    try:
        texts, _ = chat_template_utils.render_jinja_template([messages], tools=tools, chat_template=template, **TOKENS)
    except Exception as error:
        return None, error
    return texts[0], None


def answers(parts):
    """Returns where answers begin and end; white space behind one counts for nothing."""
    found, at = [], 0
    for is_answer, pieces in itertools.groupby(parts, lambda part: part[2] >= 0):
        text = "".join(part[0] for part in pieces)
        if is_answer:
            found.append((at, at + len(text.rstrip())))
        at += len(text)
    return found


def compare(path, python):
    template = path.read_text()
    ours = Renderer(template, python)
    training = path.with_name(path.stem + "_training.jinja")
    blocks = Renderer(training.read_text(), python) if training.exists() else None
    same = refused = unmarked = other_marks = compared = 0
    problems, first = [], ""
    for number in range(CONVERSATIONS):
        messages, tools = conversation(number, "gemma" not in path.stem, "tool" in template)
        text, error = expected(template, messages, tools)
        answer = ours.ask({"messages": messages, "tools": tools})
        if text is None:
            refused += 1
            if "error" not in answer:
                problems.append(f"transformers refuses {number}: {error}")
            continue
        if "error" in answer:
            unmarked += 1
            first = first or answer["error"]
            continue
        if "".join(part[0] for part in answer["parts"]) != text:
            problems.append(f"conversation {number} is another text")
            continue
        same += 1
        if blocks is None:
            continue
        theirs = blocks.ask({"messages": messages, "tools": tools})
        if "error" in theirs or "".join(part[0] for part in theirs["parts"]) != text:
            continue
        compared += 1
        found, blocked = answers(answer["parts"]), answers(theirs["parts"])
        # TRL counts the beginning of an answer that add_generation_prompt writes.
        if [end for _, end in found] != [end for _, end in blocked] or any(
            mine < other for (mine, _), (other, _) in zip(found, blocked)
        ):
            other_marks += 1
            first = first or f"{text!r}: {found} but {blocked}"
    ours.close()
    if blocks:
        blocks.close()
    print(
        f"{path.stem}: {same} the same, {refused} refused by both, {unmarked} without answers, "
        f"{other_marks} of {compared} with other answers than TRL's {first[:1500] if '-v' in sys.argv else ''}"
    )
    for problem in problems[:3]:
        print("   ", problem)
    return not problems


def main():
    chat_template_utils.datetime = FixedDate
    folder, python = pathlib.Path(sys.argv[1]), sys.executable
    paths = [path for path in sorted(folder.glob("*.jinja")) if not path.stem.endswith("_training")]
    sys.exit(0 if all([compare(path, python) for path in paths]) else 1)


if __name__ == "__main__":
    main()
