"""Where the commands print: results on standard output, progress and notes on standard error."""

from __future__ import annotations

from rich.console import Console

from downpour.reports import Result
from downpour.reports.tables import result_table
from downpour.spec import Spec

out = Console()
err = Console(stderr=True)


def print_spec(spec: Spec) -> None:
    """Print the spec that was made, as the TOML that would make it again."""
    err.print(spec.to_toml().strip(), style="dim", highlight=False, markup=False)


def print_result(result: Result, *, as_json: bool = False, as_csv: bool = False) -> None:
    """Print a result for a person, or for a program."""
    if as_json:
        print(result.to_json())  # noqa: T201 - for programs: no wrapping, no color
    elif as_csv:
        print(result.to_csv(), end="")  # noqa: T201
    else:
        out.print(result_table(result))
