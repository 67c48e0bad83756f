#!/usr/bin/env python3
"""Checks what can be counted in the English of comments (src, tests) and docs. Fails above the limits.

    scripts/check_english.py [--list N]    lists the first N fragments, long lines and identifiers of each kind

A fragment is a sentence that begins with Of, What, Where and the like as a noun phrase: "Whether it fits." says less
than "Returns true if it fits."
"""
import pathlib
import re
import sys

MAX_OF_COMMENTS = 22  # per 1,000 words
MAX_OF_DOCS = 20
MAX_FRAGMENTS = 0.5
MAX_COLUMNS = 100
MAX_PRIVATE = 0

FRAGMENT = re.compile(r"(?:^|[.:;]\s+)(Of|What|Where|Those|Whose|Which|Whether|How)\b(?![^.?]*\?)")
COINED = re.compile(r"\bmost_\w+")  # the field says max_
# The field says diagnosis, faulty rank, reference, dry run, multiples, replica on another node, benchmark model.
PRIVATE = re.compile(r"\b(verdicts?|culprits?|twins?|rehears\w*|unities|partner cop(?:y|ies)|yardsticks?)\b", re.I)


def comments(text):
    """Yields whole comments: neighboring // lines are one."""
    block = []
    for line in text.splitlines():
        match = re.search(r"(?:^|\s)//[/!<]*\s?(.*)$", line)
        if match:
            block.append(match.group(1))
        elif block:
            yield " ".join(block)
            block = []
    if block:
        yield " ".join(block)


def prose(text):
    """Returns the lines of a Markdown page without code, tables and headings."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    return [line for line in text.splitlines() if line.strip() and not line.startswith(("    ", "|", "#"))]


class Report:
    def __init__(self, listed):
        self.listed = listed
        self.failed = False

    def check(self, what, value, limit, where=()):
        if value > limit:
            self.failed = True
        print(f"{what}: {value:.2f}".rstrip("0").rstrip(".") + f" (at most {limit})" + (" FAILED" if value > limit else ""))
        for place in list(where)[: self.listed]:
            print(f"  {place}")

    def check_texts(self, name, texts, max_of):
        thousands = max(sum(len(re.findall(r"[A-Za-z']+", text)) for _, text in texts), 1) / 1000
        of = sum(len(re.findall(r"\bof\b", text, re.I)) for _, text in texts)
        fragments = [f"{path}: {text.strip()[:100]}" for path, text in texts for _ in FRAGMENT.findall(text.strip())]
        self.check(f'{name}: "of" in 1,000 words', of / thousands, max_of)
        self.check(f"{name}: fragments in 1,000 words", len(fragments) / thousands, MAX_FRAGMENTS, fragments)

    def check_words(self, texts):
        private = [f"{path}: {match[0]} in: {text[max(match.start() - 40, 0):][:100]}" for path, text in texts for match in PRIVATE.finditer(text)]
        self.check("private words", len(private), MAX_PRIVATE, private)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    report = Report(int(sys.argv[2]) if sys.argv[1:2] == ["--list"] else 0)
    sources = [p for folder in ("src", "tests") for p in sorted((root / folder).rglob("*")) if p.suffix in (".cpp", ".hpp", ".cu", ".cuh")]
    pages = sorted(root.glob("*.md")) + sorted((root / "docs").rglob("*.md"))
    texts = {path: path.read_text(errors="replace") for path in sources + pages}
    name = lambda path: path.relative_to(root)  # noqa: E731
    in_code = [(name(p), c) for p in sources for c in comments(texts[p])]
    in_docs = [(name(p), " ".join(prose(texts[p]))) for p in pages]
    report.check_texts("comments", in_code, MAX_OF_COMMENTS)
    report.check_texts("docs", in_docs, MAX_OF_DOCS)
    report.check_words(in_code + in_docs)
    long = [f"{name(p)}: {line[:80]}" for p in pages for line in prose(texts[p]) if len(line) > MAX_COLUMNS]
    report.check(f"docs: lines above {MAX_COLUMNS} columns", len(long), 0, long)
    coined = [f"{name(p)}: {word}" for p in sources for word in sorted(set(COINED.findall(texts[p])))]
    report.check("identifiers most_*", len(coined), 0, coined)
    return report.failed


if __name__ == "__main__":
    sys.exit(main())
