#!/usr/bin/env python3
"""Checks that the error texts that pages quote are still those of the sources.

    test/lint/error_texts_doc.py [ROOT]

A page quotes them in blocks that begin with ```text, one text per paragraph, wrapped as it likes.
Angle brackets enclose what varies, such as <rank 2>. Each fixed part between them must be a piece
of a string literal, or several such pieces that the program joins, each whole except for the first
one's beginning and the last one's end. Neighboring literals count as one: the formatter splits long
ones.
"""

import ast
import re

import tree

# How many texts each quotes, at least.
PAGES = {"docs/guides/troubleshooting.md": 50, "docs/guides/fault-tolerance.md": 1}
LIBRARY = ("core", "ops", "controller", "bindings")
BLOCK = re.compile(r"^```text\n(.*?)^```$", re.M | re.S)
VARIES = re.compile(r"<[^<>]*>")
# A quote says something only if it has a fixed part as long as this.
DISTINCTIVE = 12
# Shorter pieces, unless they are punctuation, would join to anything.
PIECE = 4
# The parts of C++ that matter here. Comments come first, so that no quote in them counts.
CPP = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>\w*)\((?P<raw>.*?)\)(?P=mark)"|"(?P<text>(?:[^"\\\n]|\\.)*)"'
    r"|'(?:[^'\\\n]|\\.)'|(?P<other>[^\s])",
    re.S,
)
ESCAPE = re.compile(r"\\(.)", re.S)
PLAIN = {"n": " ", "t": " "}
# What may stand between two literals of one text.
GLUE = {","}
GAP = "\0"


def words(text):
    return re.sub(r"\s+", " ", text)


def in_cpp(source):
    """Its string literals; GAP where something else stands between them."""
    parts = [GAP]
    glue = False
    for token in CPP.finditer(source):
        text = token["raw"] if token["text"] is None else token["text"]
        if text is not None:
            parts.append(ESCAPE.sub(lambda match: PLAIN.get(match[1], match[1]), text))
            glue = False
        elif token["other"] is None:
            continue
        elif token["other"] in GLUE and not glue:
            glue = True
        else:
            parts.append(GAP)
    return "".join(parts)


def in_python(source):
    parts = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            values = [v.value if isinstance(v, ast.Constant) else GAP for v in node.values]
            parts.append("".join(str(value) for value in values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts.append(node.value)
    return GAP.join(parts)


class Literals:
    """What the sources' string literals hold."""

    def __init__(self, text):
        self._whole = {run for run in words(text).split(GAP) if run}
        self._text = GAP + GAP.join(sorted(self._whole)) + GAP

    def have(self, part):
        if part in self._text:
            return True
        ends = range(1, len(part))
        reached = {k for k in ends if _is_piece(part[:k]) and part[:k] + GAP in self._text}
        for k in ends:  # from where pieces end to where the next ones do
            if k in reached:
                reached |= {
                    end
                    for end in range(k + 1, len(part))
                    if part[k:end] in self._whole and _is_piece(part[k:end])
                }
        return any(_is_piece(part[k:]) and GAP + part[k:] in self._text for k in reached)


def _is_piece(text):
    return len(text) >= PIECE or not re.search(r"\w", text)


def literals(root):
    found = []
    for folder in LIBRARY:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cc", ".h", ".hpp"):
                found.append(in_cpp(path.read_text()))
            elif path.suffix == ".py":
                found.append(in_python(path.read_text()))
    return Literals(GAP.join(found))


def quotes(page):
    """Line by line: the texts that it quotes."""
    for block in BLOCK.finditer(page):
        line = page.count("\n", 0, block.start(1)) + 1
        for paragraph in re.split(r"\n\s*\n", block[1]):
            yield line, words(paragraph).strip()
            line += paragraph.count("\n") + 2


def check(root):
    known = literals(root)
    errors = []
    for name, at_least in PAGES.items():
        page = (root / name).read_text()
        count = 0
        for line, text in quotes(page):
            count += 1
            fixed = [part for part in VARIES.split(text) if re.search(r"\w", part)]
            if max((len(part) for part in fixed), default=0) < DISTINCTIVE:
                errors.append(f"{name}:{line}: too little of this text is fixed: {text}")
            errors += [
                f"{name}:{line}: no string literal has: {part.strip()}"
                for part in fixed
                if not known.have(part)
            ]
        if count < at_least:
            errors.append(f"{name}: {count} texts found; at least {at_least} were expected")
    return errors


if __name__ == "__main__":
    tree.run(check)
