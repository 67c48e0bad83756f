"""Writes conversations with a model's Jinja chat template; llamesh starts it (jinja_template.cpp).

Each line of standard input is one JSON value, and so is the line that answers it.

First comes {"template": TEXT, "tokens": {"bos_token": TEXT, ...}, "control": [TEXT, ...],
"separate": [...], "absorbing": [...]}: the last two say which of the control tokens a tokenizer does
not find in a text, and which take the white space behind them. The answer is {}, or an error with
the line -1 if jinja2 is missing.

Then come conversations {"messages": [...], "tools": [...]}; with "prompt": true they end where the
assistant has to answer. The answer is {"parts": [[TEXT, KIND, TURN], ...]}. KIND is "text"; "content"
for text that must not become a control token; or "token". TURN counts the answers; it is -1 outside
of them.

An error is {"error": TEXT, "line": NUMBER}: the template's line, or 0.
"""

import datetime
import json
import re
import sys
import traceback

sys.path[:] = [folder for folder in sys.path if folder]  # no module from the working folder

try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except ImportError:
    jinja2 = None

# What a conversation has instead while the template works on it. These characters are private, and
# at the far end of Unicode.
BEGIN, END, HELD = "\U0010fffb", "\U0010fffc", "\U0010fffd"
RESERVED = re.compile(f"[{BEGIN}{END}{HELD}]")
MARKS = re.compile(f"[{BEGIN}{END}]")
PLACE = re.compile(f"{HELD}([0-9]+){HELD}")
# Templates may write today's date. A fixed one keeps a run's tokens the same on each day; it is the
# one that Llama 3.1's template has for want of another.
TODAY = datetime.datetime(2024, 7, 26)


class BadChat(Exception):
    """A conversation that the template cannot write, with the reason for the user."""


class Renderer:
    def __init__(self, start):
        self.control = start["control"]
        self.numbers = {text: i for i, text in enumerate(self.control)}
        self.controls = any_of(self.control)
        self.separate = any_of(start["separate"])
        self.absorbing = set(start["absorbing"])
        self.tokens = start["tokens"]
        self.template = environment().from_string(start["template"])
        self.header = self.usual_header()
        self.marks_answers = re.search(r"\{%-?\s*generation\s*-?%\}", start["template"]) is not None

    def parts(self, chat):
        messages = self.held(chat["messages"])
        tools = self.held(chat.get("tools"))
        if chat.get("prompt"):
            return self.split(MARKS.sub("", self.render(messages, tools, prompt=True)), -1)
        whole = self.render(messages, tools)
        find = self.marked_answers if self.marks_answers else self.compared_answers
        whole, answers = find(whole, messages, tools)
        parts, at = [], 0
        for turn, (begin, end) in enumerate(answers):
            parts += self.split(whole[at:begin], -1) + self.split(whole[begin:end], turn)
            at = end
        return parts + self.split(whole[at:], -1)

    def render(self, messages, tools, prompt=False):
        return self.template.render(
            messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **self.tokens
        )

    def held(self, value):
        """Puts a place for each control token that is written in a text."""
        if isinstance(value, str):
            return self.controls.sub(lambda found: f"{HELD}{self.numbers[found[0]]}{HELD}", value)
        if isinstance(value, list):
            return [self.held(item) for item in value]
        if isinstance(value, dict):
            return {key: self.held(item) for key, item in value.items()}
        return value

    def marked_answers(self, whole, _messages, _tools):
        """Takes the marks of {% generation %} out of the text."""
        text, borders, at = "", [], 0
        for mark in MARKS.finditer(whole):
            text += whole[at : mark.start()]
            borders.append(len(text))
            at = mark.end()
        text += whole[at:]
        return text, [
            (begin, self.behind_space(text, end)) for begin, end in zip(borders[::2], borders[1::2])
        ]

    def usual_header(self):
        """Returns what the template writes to ask for an answer, if that has a control token."""
        ask = [{"role": "user", "content": "a"}]
        try:
            header = self.header_of(self.render(ask, None, prompt=True), self.render(ask, None))
        except Exception:
            return ""
        return header if self.controls.search(header) else ""

    def usual_answers(self, whole, messages):
        """Returns the answers if each has the usual header, which no content can have, and ends with
        the token that ends the conversation; otherwise None. Most are found so, by one rendering."""
        count = sum(message.get("role") == "assistant" for message in messages)
        tokens = self.tokens_in(whole, 0)
        if not self.header or not tokens or whole.count(self.header) != count:
            return None
        last = tokens[-1]
        if whole[last.end() :].strip():
            return None
        answers, at = [], 0
        for _ in range(count):
            begin = whole.index(self.header, at) + len(self.header)
            at = whole.find(self.header, begin)
            end = whole.find(last[0], begin, at if at >= 0 else len(whole))
            if end < 0 or (at < 0 and end != last.start()):
                return None
            answers.append((begin, self.behind_space(whole, end + len(last[0]))))
        return answers

    def compared_answers(self, whole, messages, tools):
        """Finds answers by comparing with the conversation that ends before each, and behind it."""
        usual = self.usual_answers(whole, messages)
        if usual is not None:
            return whole, usual
        answers = []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            prompt = self.render(messages[:i], tools, prompt=True)
            upto = whole if i + 1 == len(messages) else self.render(messages[: i + 1], tools)
            if whole.startswith(upto) and upto.startswith(prompt):
                begin, end = len(prompt), self.end_of_turn(upto, len(prompt))
            else:
                begin, end = self.searched_answer(i, whole, messages, tools, prompt, upto)
            if answers and begin < answers[-1][1]:
                raise BadChat(told_apart(i, upto, whole))
            answers.append((begin, self.behind_space(whole, end)))
        return whole, answers

    def end_of_turn(self, text, begin):
        """Returns where the answer at the end of a text ends: with its last token, if only white
        space is behind it."""
        tokens = self.tokens_in(text, begin)
        return tokens[-1].end() if tokens and not text[tokens[-1].end() :].strip() else len(text)

    def searched_answer(self, i, whole, messages, tools, prompt, upto):
        """Finds an answer that the template writes otherwise inside the conversation than at its
        end: without its reasoning, behind other tools, or with another last token. A mark in it says
        where it is; it begins behind the token that ends prompts."""
        refused = BadChat(told_apart(i, upto, whole))
        opening = self.tokens_in(prompt, 0)
        for marked in marked_copies(messages[i]):
            text = self.render([*messages[:i], marked, *messages[i + 1 :]], tools)
            mark = text.find(BEGIN)
            if mark >= 0:
                break
        if mark < 0 or not opening:
            raise refused
        first, rest = opening[-1][0], prompt[opening[-1].end() :]
        begin = text.rfind(first, 0, mark) + len(first)
        if begin < len(first) or not whole.startswith(text[:begin]):
            raise refused
        # A prompt may ask for reasoning that the answer does not have.
        begin += common_length(rest, whole[begin:])
        following = whole.find(first, begin)
        limit = following if following >= 0 else len(whole)
        closing = self.tokens_in(upto, 0)
        end = whole.find(closing[-1][0], begin, limit) if closing else -1
        if end >= 0:
            return begin, end + len(closing[-1][0])
        content = text[:mark] if whole.startswith(text[:mark]) else text[:mark].rstrip()
        tokens = self.tokens_in(whole, len(content))
        if not whole.startswith(content) or not tokens or tokens[0].end() > limit:
            raise refused
        return begin, tokens[0].end()

    def header_of(self, prompt, before):
        """Returns what a prompt has more than the conversation before it, whole tokens."""
        begin = common_length(before, prompt)
        cut = [token.start() for token in self.tokens_in(prompt, 0) if token.start() < begin < token.end()]
        return prompt[cut[0] if cut else begin :]

    def tokens_in(self, text, begin):
        return list(self.controls.finditer(text, begin))

    def behind_space(self, text, end):
        """Returns the end of an answer with the white space that its last token absorbs."""
        tokens = self.tokens_in(text[:end], max(end - 100, 0))
        if tokens and tokens[-1].end() == end and tokens[-1][0] in self.absorbing:
            while text[end : end + 1].isspace():
                end += 1
        return end

    def split(self, text, turn):
        parts, at = [], 0
        for place in PLACE.finditer(text):
            parts += self.split_tokens(text[at : place.start()], turn)
            parts.append([self.control[int(place[1])], "content", turn])
            at = place.end()
        return parts + self.split_tokens(text[at:], turn)

    def split_tokens(self, text, turn):
        parts, at = [], 0
        for token in self.separate.finditer(text):
            parts += [[text[at : token.start()], "text", turn], [token[0], "token", turn]]
            at = token.end()
        return [part for part in [*parts, [text[at:], "text", turn]] if part[0]]


def marked_copies(message):
    """Returns an assistant's message with a mark in the name of its call, and one with a mark behind
    its content."""
    if message.get("tool_calls"):
        first, *others = message["tool_calls"]
        call = first.get("function", first)
        call = {**call, "name": f"{call.get('name', '')}{BEGIN}"}
        first = {**first, "function": call} if "function" in first else call
        yield {**message, "tool_calls": [first, *others]}
    yield {**message, "content": (message.get("content") or "") + BEGIN}


def any_of(texts):
    """Returns a pattern for any of these texts, the longest first; for none of them one that matches
    nothing."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def common_length(a, b):
    if b.startswith(a):
        return len(a)
    return next(i for i, (x, y) in enumerate(zip(a + BEGIN, b + END)) if x != y)


def told_apart(index, part, whole):
    at = common_length(part, whole)
    return (
        f"message {index + 1} cannot be found in what it writes for the whole conversation: alone it "
        f"writes {excerpt(part, at)}, but there {excerpt(whole, at)}; mark the answers in the "
        "template with {% generation %} and {% endgeneration %}"
    )


def excerpt(text, at):
    return json.dumps(PLACE.sub("", text[max(at - 30, 0) : at + 30]), ensure_ascii=False)


def environment():
    """Returns the environment in which transformers renders chat templates."""

    class Generation(jinja2.ext.Extension):
        """{% generation %}...{% endgeneration %} around what the assistant has to generate."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("marked")
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def marked(self, caller):
            return BEGIN + caller() + END

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = TODAY.strftime
    return made


def described(error):
    """Returns an error in the template, or from it, with its line there."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"
    ]
    line = getattr(error, "lineno", None) or (lines[-1] if lines else 0)
    text = str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
    return {"error": " ".join(text.split())[:500], "line": line}


def answer(renderer, line):
    found = RESERVED.search(line)
    if found:
        raise BadChat(f"the conversation has the private character U+{ord(found[0]):X}; remove it")
    return {"parts": renderer.parts(json.loads(line))}


def say(value):
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")
    sys.stdout.buffer.flush()


def main():
    start = sys.stdin.buffer.readline()
    if jinja2 is None:
        return say({"error": f"{sys.executable} has no module jinja2", "line": -1})
    try:
        renderer = Renderer(json.loads(start))
    except Exception as error:
        return say(described(error))
    say({})
    for line in sys.stdin.buffer:
        try:
            say(answer(renderer, line.decode()))
        except BadChat as error:
            say({"error": str(error), "line": 0})
        except Exception as error:
            say(described(error))


main()
