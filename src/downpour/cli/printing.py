"""Where the commands print: results on standard output, progress and notes on standard error."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from downpour.errors import SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from downpour.reports import Result


@functools.cache
def out() -> Console:
    """Return the console for results."""
    from rich.console import Console

    return Console()


@functools.cache
def err() -> Console:
    """Return the console for progress and notes."""
    from rich.console import Console

    return Console(stderr=True)


def note(text: str) -> None:
    """Print a line that is not a result, whole even where the terminal is narrow."""
    err().print(text, highlight=False, markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value for a program: no wrapping, no color."""
    print(json.dumps(value, indent=2))  # noqa: T201


def check_format(*, as_json: bool, as_csv: bool) -> None:
    """Refuse two formats at once, before anything is started.

    Raises:
        SpecError: both were asked for.
    """
    if as_json and as_csv:
        raise SpecError("format", "--json --csv", "must be one of the two")


def print_result(result: Result, *, as_json: bool = False, as_csv: bool = False) -> None:
    """Print a result for a person, or for a program."""
    if as_json:
        print(result.to_json())  # noqa: T201 - for programs: no wrapping, no color
    elif as_csv:
        print(result.to_csv(), end="")  # noqa: T201
    else:
        from downpour.reports.tables import result_table

        out().print(result_table(result))
