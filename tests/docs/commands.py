"""The commands that pages show, taken out of their blocks as a shell would take them."""

import re
import shlex
from dataclasses import dataclass

from tests.docs.pages import Fence, Page

SHELLS = ("sh", "bash", "console")
_PROMPT = re.compile(r"^(?:[\w-]*\$|#) +", re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_ENDS = {"&", "&&", "|", "||", ";", "(", ")", ">", ">>", "2>", "<"}


@dataclass(frozen=True)
class Shown:
    """A call of `downpour` on a page."""

    fence: Fence
    words: tuple[str, ...]

    def __str__(self) -> str:
        """Say where it is, and what."""
        return f"{self.fence.page}: {shlex.join(['downpour', *self.words])}"


def shown(page: Page) -> list[Shown]:
    """Return the calls of `downpour` in a page's blocks for a shell."""
    return [
        Shown(fence, words)
        for fence in page.fences(*SHELLS)
        for line in typed(fence)
        for words in calls(line)
    ]


def typed(fence: Fence) -> list[str]:
    """Return the lines that a reader types: those after a prompt, or all if none has one."""
    text = fence.text.replace("\\\n", " ")
    lines = text.splitlines()
    if fence.language == "console" or _PROMPT.search(text):
        prompted = [_PROMPT.sub("", line) for line in lines if _PROMPT.match(line)]
        return prompted or lines
    return lines


def calls(line: str) -> list[tuple[str, ...]]:
    """Return the words after `downpour` of each call in a line."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[tuple[str, ...]] = []
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in _ENDS:
            words.append(word)
            continue
        while words and _ASSIGNMENT.match(words[0]):
            words.pop(0)
        if words and words[0].rpartition("/")[2] == "downpour":
            found.append(tuple(words[1:]))
        words = []
    return found
