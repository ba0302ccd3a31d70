"""Checks the URL parameters of a request for lines of the logs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from downpour.base.errors import SpecError
from downpour.experiments.reading.logs import LogFilter, span_until
from downpour.experiments.reading.submission import submission_seconds
from downpour.files.logs.log_line import LEVELS, Level

_CURSOR = re.compile(r"[0-9a-f]{8}\.[0-9]{1,12}", re.ASCII)
_SECONDS = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,6})?", re.ASCII)
_AROUND_SECONDS = 2.0
"""Margin: we know a submission to the second, and each host has its own clock."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A viewer's request: the lines of a filter, after a cursor, within an experiment's time."""

    after: str
    span: LogFilter
    wanted: LogFilter

    @classmethod
    def of(cls, asked: Mapping[str, str], about: Mapping[str, Any], exported: float) -> LogQuery:
        """Return the request that a URL makes.

        Args:
            asked: the URL's parameters: `after`, `worker`, `level`, and `from` and `to` in seconds
                since the submission. All may be absent.
            about: the experiment, as its page knows it.
            exported: when the manager wrote its record, in seconds since 1970; 0 if it has not.

        Raises:
            SpecError: a parameter is invalid.
        """
        after = asked.get("after", "")
        if after and not _CURSOR.fullmatch(after):
            raise SpecError("after", after, "must be the value of next in the last answer")
        experiment, ended = str(about.get("id", "")), about.get("ended_at")
        begin, end = span_until(experiment, math.inf if ended is None else ended)
        span = LogFilter(begin=begin, end=max(end, exported))
        start = submission_seconds(experiment) or float(about.get("start", 0.0))
        wanted = replace(
            span,
            begin=max(begin, start + _seconds(asked, "from", -math.inf) - _AROUND_SECONDS),
            end=min(span.end, start + _seconds(asked, "to", math.inf) + _AROUND_SECONDS),
            level=_level(asked.get("level", LEVELS[0])),
            of=asked.get("worker", ""),
        )
        return cls(after, span, wanted)


def _level(given: str) -> Level:
    for known in LEVELS:
        if known == given:
            return known
    raise SpecError("level", given, f"must be one of {', '.join(LEVELS)}")


def _seconds(asked: Mapping[str, str], name: str, otherwise: float) -> float:
    given = asked.get(name, "")
    if not given:
        return otherwise
    if not _SECONDS.fullmatch(given):
        raise SpecError(name, given, "must be seconds since the submission, such as 12.5")
    return float(given)
