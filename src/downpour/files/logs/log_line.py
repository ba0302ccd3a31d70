"""One line of a process's log, which is a JSON object in a line of text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
TEXT_CHARACTERS_MAX = 4_000
TRACE_CHARACTERS_MAX = 24_000
_LAST_SECOND = 253_402_300_799  # of the year 9999, the last one that `datetime` knows
_CUT = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line that a process logged or printed, with the process and its host.

    `at` is in seconds since 1970, by the host's clock. `source` is the logger's name, or `stdout`
    or `stderr` for text that was printed. `trace` is a traceback, in lines. All text is unchanged,
    so pass it through `host/text.py` before a terminal shows it.
    """

    at: Annotated[float, Field(ge=0, le=_LAST_SECOND, allow_inf_nan=False)]
    host: str
    name: str
    pid: int
    level: Level
    source: str
    text: str
    trace: str = ""

    def to_bytes(self) -> bytes:
        """Return it as a line of JSON, with the line end; cut long text."""
        # We avoid `asdict`, which takes longer than all the rest of a line.
        values = {name: getattr(self, name) for name in self.__slots__}
        values["text"] = _encodable(_first(self.text, TEXT_CHARACTERS_MAX))
        if self.trace:
            values["trace"] = _encodable(_last(self.trace, TRACE_CHARACTERS_MAX))
        else:
            del values["trace"]
        return json.dumps(values).encode() + b"\n"

    @classmethod
    def of(cls, line: bytes) -> LogLine | None:
        """Parse a line; None if it is damaged, or comes from another program."""
        try:
            return _ADAPTER.validate_json(line)
        except ValidationError:
            return None


_ADAPTER = TypeAdapter(LogLine)


def _first(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + _CUT


def _last(text: str, most: int) -> str:
    """Return the end of a traceback, which says what was wrong."""
    return text if len(text) <= most else _CUT + text[1 - most :]


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
