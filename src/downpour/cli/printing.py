"""Prints for the commands: results on standard output, progress and notes on standard error."""

from __future__ import annotations

import csv
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from downpour.base.names import AUTO
from downpour.host.text import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from downpour.core.spec import ResolvedSpec, Spec
    from downpour.network.rpc.messages import Status
    from downpour.record import Result

_UNBOUNDED = 10_000
"""The width, in columns, of an output that is not a terminal."""


@functools.cache
def out() -> Console:
    """Return the console for results; it doesn't wrap tables in a file or a pipe."""
    from downpour.show.tables.terminal_tables import SafeConsole

    console = SafeConsole()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return SafeConsole(width=_UNBOUNDED)


@functools.cache
def err() -> Console:
    """Return the console for progress and notes."""
    from downpour.show.tables.terminal_tables import SafeConsole

    return SafeConsole(stderr=True)


@contextmanager
def progress_bar(
    name: str, total: float | None = None, columns: Iterable[Any] = (), **fields: Any
) -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal; yields a function that sets its fields, such as `completed`."""
    from rich.progress import Progress

    with Progress(*columns, console=err(), disable=not err().is_terminal, transient=True) as bars:
        yield functools.partial(bars.update, bars.add_task(name, total=total, **fields))


def say(text: str) -> None:
    """Print a result in one line, even on a narrow terminal."""
    print(one_line(text), flush=True)  # noqa: T201 - importing rich takes 60 ms of processor time


def note(text: str) -> None:
    """Print a note in one line, even on a narrow terminal."""
    print(one_line(text), file=sys.stderr, flush=True)  # noqa: T201 - as above


def print_spec(spec: Spec, comments: Iterable[str] = ()) -> None:
    """Print, as TOML, the fields of a spec that differ from the defaults, below some comments.

    The whole spec is in the experiment's folder, as `spec.toml`.
    """
    lines = "".join(f"# {comment}\n" for comment in comments)
    text = lines + spec.to_toml(without_defaults=True)
    if text:
        err().print(text.rstrip(), style="dim", highlight=False, markup=False, soft_wrap=True)


class SpecOnce:
    """Prints a run's spec once, when its experiment has begun to train, and shows each status.

    It waits until then, because an experiment that fails early should print only the reason.
    Without a worker, an experiment does not train. Comments above the spec give the experiment's
    ID, `remarks`, and the values chosen for `auto`, so users can save the output as a spec file.
    """

    def __init__(
        self, show: Callable[[Status], None], asked: Spec, remarks: Iterable[str] = ()
    ) -> None:
        self._show = show
        self._asked = asked
        self._spec: Spec | None = asked
        self._remarks = [*remarks]

    def resolved(self, spec: ResolvedSpec) -> None:
        """Take the resolved spec, if it is known before its experiment begins."""
        from downpour.core.resolve import explained

        self._spec, why = spec, explained(self._asked, spec)
        self._remarks += [why] if why is not None else []

    def status(self, status: Status) -> None:
        """Show a status; print the spec first if it is due."""
        now = status.experiment
        trains = now is not None and now.state == "running" and status.devices != ""
        if now is not None and self._spec is not None and (trains or now.state == "finished"):
            if self._spec.device == AUTO and status.devices:
                self._remarks.append(f"device = auto: {status.devices}")
            print_spec(self._spec, [now.experiment, *self._remarks])
            self._spec = None
        self._show(status)


def print_json(value: Any) -> None:
    """Print a value for a program: no wrapping, no color; null for NaN and infinity."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False))  # noqa: T201


def print_csv(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows for a program: no wrapping, no color."""
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _plain(value: Any) -> Any:
    """Return a value with None in place of numbers that JSON lacks."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_result(result: Result, *, as_json: bool = False, as_csv: bool = False) -> None:
    """Print a result for a person, or for a program."""
    if as_json:
        print(result.to_json())  # noqa: T201 - for programs: no wrapping, no color
    elif as_csv:
        print(result.to_csv(), end="")  # noqa: T201
    else:
        from downpour.show.tables.terminal_tables import result_table

        out().print(result_table(result))
        if result.model_file:
            say(f"model {result.model_file}")
