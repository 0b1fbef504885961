"""The commands that the pages show, as they are written there.

A block of commands is indented by four spaces, or fenced and marked console or
sh, or between .EX and .EE in the man page. Where a line of it begins with a
prompt ($ or "name$"), such lines are commands and the others what they print;
else all lines are. Fences with another word, or none, are not read.
"""
import glob
import os
import re

import rig

PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/softhca.1",
         *sorted(os.path.relpath(p, rig.ROOT) for p in
                 glob.glob(f"{rig.ROOT}/docs/*.md") + glob.glob(f"{rig.ROOT}/docs/d*/*.md"))]
PROMPT = re.compile(r"^(\w*\$) ")


class Block:
    """commands: (command, lines printed below it); kind: console, sh or ""."""

    def __init__(self, page, line, kind, lines):
        self.page, self.line, self.kind = page, line, kind
        self.commands = []
        prompts = any(PROMPT.match(text) for text in lines)
        joined = None
        for text in lines:
            if joined is not None:
                joined += " " + text.strip()
            elif prompts and not PROMPT.match(text):
                if self.commands:
                    self.commands[-1][1].append(text)
                continue
            else:
                joined = PROMPT.sub("", text).strip()
            if joined.endswith("\\"):
                joined = joined[:-1].rstrip()
                continue
            if joined and not joined.startswith("#"):
                self.commands.append((joined, []))
            joined = None

    def __str__(self):
        return f"{self.page}:{self.line}"


def markdown(page, text):
    lines = text.split("\n")
    i, blank = 0, True
    while i < len(lines):
        if m := re.match(r"```(\w*)", lines[i]):
            end = next(j for j in range(i + 1, len(lines)) if lines[j].startswith("```"))
            if m[1] in ("console", "sh"):
                yield Block(page, i + 1, m[1], lines[i + 1:end])
            i = end
        elif blank and lines[i].startswith("    "):
            end = next((j for j in range(i, len(lines)) if lines[j] and not lines[j].startswith("    ")), len(lines))
            yield Block(page, i + 1, "", [line[4:] for line in lines[i:end]])
            i = end - 1
        blank = not lines[i].strip()
        i += 1


def roff(page, text):
    for m in re.finditer(r"^\.EX\n(.*?)^\.EE$", text, re.M | re.S):
        plain = m[1].replace("\\-", "-").replace("\\e", "\\")
        yield Block(page, text[:m.start()].count("\n") + 1, "", plain.split("\n"))


def read(page):
    with open(os.path.join(rig.ROOT, page)) as f:
        return f.read()


def blocks():
    """Of a page in two languages those of one: test_tutorial.py compares them."""
    for page in PAGES:
        if page.endswith(".zh.md"):
            continue
        yield from (markdown if page.endswith(".md") else roff)(page, read(page))
