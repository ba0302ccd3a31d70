"""Somebody who reads a page and types its blocks for a shell, one after the other.

The blocks of a page become one script. It runs in a folder of its own, with an empty home and
without a network, as real processes. `WALKS` says what the page supposes, and which words a reader
replaces; everything else is typed as it stands on the page.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.docs.commands import SHELLS, calls, typed
from tests.docs.pages import Page

PREAMBLE = """
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || :; wait' EXIT
newest() { ls -t "${DOWNPOUR_SHARED:-shared_dir}/experiments" | sed -n 1p; }
ends() { timeout --preserve-status --signal=INT "$@" || [ $? = 130 ]; }
serves() { until grep -qs '^manager at' "$1"; do kill -0 $! || return; sleep 0.1; done; }
"""
"""`newest` names the last experiment. `ends SECONDS COMMAND` stops what runs until Ctrl-C."""

STAND_FOR = {r"\bID\b": "$(newest)", r"\bFILE\b": "small.toml"}
"""What a reader replaces on every page, after what a page's own words stand for."""
MANAGER, WORKER = ("manager",), ("worker",)
UNTIL_CTRL_C = ("dashboard", "watch")
SECONDS_UNTIL_CTRL_C = 8


@dataclass(frozen=True, kw_only=True)
class Walk:
    """What a page supposes, and what a reader puts in the place of a page's words.

    `before` is a script. `stands_for` has regular expressions. `left_out` has the beginnings of
    lines that are not typed here, and why.
    """

    before: str = ""
    stands_for: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def script(self, page: Page) -> str:
        """Return the script of a page, in bash."""
        lines = [PREAMBLE, self.before, "set -x"]
        for fence in page.fences(*SHELLS):
            lines += [self._as_typed(line) for line in typed(fence)]
        return "\n".join(lines)

    def _as_typed(self, line: str) -> str:
        line = _without_comment(line)
        if not line or any(line.startswith(begin) for begin in self.left_out):
            return ""
        for pattern, replacement in {**self.stands_for, **STAND_FOR}.items():
            line = re.sub(pattern, replacement, line)
        return _until_ctrl_c(line)


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#\s.*", "", line).strip()


def _until_ctrl_c(line: str) -> str:
    """Let servers run beside the next lines, and stop what would show something for ever."""
    words = next(iter(calls(line)), ())
    if words[:1] == MANAGER:
        return f": >manager.log; {line} >manager.log 2>&1 & serves manager.log"
    if words[:1] == WORKER:
        return f"{line} &"
    if words[:1] and (words[0] in UNTIL_CTRL_C or {"--follow", "--dashboard"} & {*words}):
        return f"ends {SECONDS_UNTIL_CTRL_C} {line}"
    return line
