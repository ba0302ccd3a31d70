"""Keeps the prose of a file and drops the rest, line for line, so that flags name the right line.

Each passage (a paragraph, a list item, a comment, a message) ends with `¶`. Code spans become one
word each, because what they hold is not English.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

END = "¶"
CODE = "`x`"

Piece = tuple[int, str]
"""A line number, counted from 0, and the text that belongs there."""

MARKDOWN = MarkdownIt("commonmark").enable("table")
SPANS = re.compile(r"``[^`]+``|`[^`]+`")
ENTRIES = re.compile(r"\s*(?:[-*] |\d+\. |[\w.*]+(?: \([^)]*\))?:(?:\s|$))")
PRAGMAS = re.compile(r"#\s*(?:noqa|type:|pragma|!|%%|fmt:|ruff:|mypy:)")
THRIFT = re.compile(r"/\*.*?\*/|//[^\n]*|#[^\n]*", re.DOTALL)
WORDS_MIN = 4
"""Shorter literals are names and keys rather than messages."""

WORDS_SHARE_MIN = 0.6
"""Literals with fewer words among their pieces are code."""


def prose_of(path: Path, text: str) -> str:
    """Return the prose in a file's text, on the lines where it stands there."""
    readers = {".md": _markdown, ".py": _python, ".thrift": _thrift}
    lines: list[list[str]] = [[] for _ in range(text.count("\n") + 1)]
    for number, piece in readers[path.suffix](text):
        lines[number].append(piece)
    return "\n".join(" ".join(pieces) for pieces in lines)


def _markdown(text: str) -> Iterator[Piece]:
    inside_table = False
    for token in MARKDOWN.parse(text):
        if token.type in {"table_open", "table_close"}:
            inside_table = token.type == "table_open"
        if token.type == "inline" and token.map and not inside_table:
            said = "".join(map(_said, token.children or []))
            yield from _passage(token.map[0], said.split("\n"))


def _said(token: Token) -> str:
    if token.type in {"softbreak", "hardbreak"}:
        return "\n"
    if token.type == "code_inline":
        return CODE
    return token.content if token.type == "text" else ""


def _without_literals(lines: list[str]) -> Iterator[str]:
    """Yield lines, with empty ones in place of the indented blocks behind `::`."""
    literal = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indent <= literal:
            literal = None
        yield "" if literal is not None else line
        if line.rstrip().endswith("::"):
            literal = indent


def _python(text: str) -> Iterator[Piece]:
    tree = ast.parse(text)
    docstrings = set(_docstrings(tree))
    for node in docstrings:
        lines = list(_without_literals(str(node.value).split("\n")))
        if node.col_offset == 0:  # indented blocks are tables and drawings
            lines = ["" if line.startswith("    ") else line for line in lines]
        yield from _paragraphs(node.lineno - 1, lines)
    yield from _messages(tree, docstrings)
    yield from _comments(text)


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield strings that are statements: docstrings, and those below attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as literal):
                yield literal


def _messages(node: ast.AST, docstrings: set[ast.Constant]) -> Iterator[Piece]:
    """Yield literals that are sentences: help, errors, what commands print."""
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else CODE for part in node.values)
        yield from _message(node.lineno, "".join(map(str, parts)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node not in docstrings:
            yield from _message(node.lineno, node.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _messages(child, docstrings)


def _message(line: int, text: str) -> Iterator[Piece]:
    words = len(re.findall(r"(?<!\S)[A-Za-z][a-z'-]*[,.:;]?(?!\S)", text))
    if words >= max(WORDS_MIN, WORDS_SHARE_MIN * len(text.split())):
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*] )", text):
            yield line - 1, " ".join(SPANS.sub(CODE, paragraph).split()) + END


def _comments(text: str) -> Iterator[Piece]:
    """Yield blocks of comments as passages, and comments behind code one by one."""
    block: list[str] = []
    begin = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or PRAGMAS.match(token.string):
            continue
        line, column = token.start[0] - 1, token.start[1]
        comment = token.string.lstrip("#")
        if token.line[:column].strip():
            yield from _paragraphs(line, [comment])
        elif line == begin + len(block):
            block.append(comment)
        else:
            yield from _paragraphs(begin, block)
            begin, block = line, [comment]
    yield from _paragraphs(begin, block)


def _thrift(text: str) -> Iterator[Piece]:
    for comment in THRIFT.finditer(text):
        lines = [re.sub(r"^[\s/*#]+|[\s/*]+$", "", line) for line in comment[0].split("\n")]
        yield from _paragraphs(text.count("\n", 0, comment.start()), lines)


def _paragraphs(begin: int, lines: list[str]) -> Iterator[Piece]:
    """Split lines at empty ones, and before items of a list."""
    passage: list[str] = []
    for number, line in enumerate(lines):
        if passage and (not line.strip() or ENTRIES.match(line)):
            yield from _passage(begin + number - len(passage), passage)
            passage = []
        if line.strip():
            passage.append(ENTRIES.sub("", line, count=1) if _is_item(line) else line)
    yield from _passage(begin + len(lines) - len(passage), passage)


def _is_item(line: str) -> bool:
    return bool(re.match(r"\s*(?:[-*] |\d+\. )", line))


def _passage(begin: int, lines: list[str]) -> Iterator[Piece]:
    """Yield the lines of one passage, whose code spans may run from one line to the next."""
    whole = SPANS.sub(lambda span: CODE + "\n" * span[0].count("\n"), "\n".join(lines))
    if whole.strip():
        for number, line in enumerate((whole + END).split("\n")):
            yield begin + number, line.strip()
