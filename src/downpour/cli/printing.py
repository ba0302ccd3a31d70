"""Prints for the commands, and ends them: an exit status, and streams that close quietly.

Results go to standard output, progress and notes to standard error.

    0    everything went well
    2    the request is invalid: the user can correct it
    75   a worker found no manager: the same command may succeed later
    1    any other failure
    130  Ctrl-C
    129  SIGHUP: the terminal was closed
    143  SIGTERM: another process ended the command and everything that it had started
    141  the reader closed the pipe (`downpour list | head -1`): prints nothing

An unexpected exception is also one line, which names a file with the traceback.
DOWNPOUR_TRACEBACK=1 prints the traceback of any error.

If the caller has closed a stream, we give its descriptor to the null device, so that no file of a
command can get it. We write a similar character, or a number, for each character that the encoding
lacks. A command without a log shows warnings through logging's handler of last resort. We make that
handler write each warning in one line, because warnings may quote text from other machines.
"""

from __future__ import annotations

import codecs
import csv
import errno
import functools
import io
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.exceptions import TyperException

from downpour.base.errors import DownpourError, one_line
from downpour.base.names import AUTO
from downpour.host.process import LogFormatter, Terminated

if TYPE_CHECKING:
    from rich.console import Console

    from downpour.core.spec import ResolvedSpec, Spec
    from downpour.network.rpc.messages import Status
    from downpour.record import Result


_UNBOUNDED = 10_000
"""The width, in columns, of an output that is not a terminal."""
_CHECKED = ("best", "init", "outer", "states")
_FIXED = ("code", "code_bundle", "data_key", *(f"{x}_checksum" for x in _CHECKED))


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

    Fields that a submission fixes are left out. If the spec continues an experiment, its epochs
    include the earlier ones. The whole spec is in the experiment's folder, as `spec.toml`.
    """
    fields = type(spec).model_fields
    shown = {name: fields[name].get_default(call_default_factory=True) for name in _FIXED}
    if spec.rounds_before:
        done, total = spec.meetings.epochs_before, spec.meetings.epochs_in_all
        comments = [*comments, f"epoch {done + 1} of {total} comes next, from {spec.init_from}"]
        shown |= {"rounds_before": 0, "init_from": None, "epochs": total}
    lines = "".join(f"# {comment}\n" for comment in comments)
    text = lines + spec.replace(**shown).to_toml(without_defaults=True)
    if text:
        err().print(text.rstrip(), style="dim", highlight=False, markup=False, soft_wrap=True)


class RunNotes:
    """Shows each status of a run, and prints its spec, and why it has waited for a minute.

    The spec comes once, when the experiment has begun to train, because an experiment that fails
    early should print only the reason. Without a worker, an experiment does not train. Comments
    above the spec give the experiment's ID, `remarks`, and the values chosen for `auto`, so users
    can save the output as a spec file.
    """

    def __init__(
        self, show: Callable[[Status], None], asked: Spec, remarks: Iterable[str] = ()
    ) -> None:
        from downpour.cluster.manager.status import WaitingWatch

        self._show = show
        self._waiting = WaitingWatch()
        self._asked = asked
        self._spec: Spec | None = asked
        self._remarks = [*remarks]

    def resolved(self, spec: ResolvedSpec) -> None:
        """Take the resolved spec, if it is known before its experiment begins."""
        from downpour.core.resolve import explained

        self._spec, why = spec, explained(self._asked, spec)
        self._remarks += [why] if why is not None else []

    def status(self, status: Status) -> None:
        """Show a status; print the spec or a remark first if it is due."""
        now = status.experiment
        trains = now is not None and now.state == "running" and status.devices != ""
        if now is not None and self._spec is not None and (trains or now.state == "finished"):
            if self._spec.device == AUTO and status.devices:
                self._remarks.append(f"device = auto: {status.devices}")
            print_spec(self._spec, [now.experiment, *self._remarks])
            self._spec = None
        if waits := self._waiting.take(status, time.monotonic()):
            note(f"# {waits.reason}; `downpour logs` says more")
        self._show(status)


def print_json(value: Any) -> None:
    """Print a value for a program: no wrapping, no color; null for NaN and infinity."""
    from downpour.record.view import plain

    print(json.dumps(plain(value), indent=2, allow_nan=False))  # noqa: T201


def print_csv(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows for a program: no wrapping, no color."""
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


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


VARIABLE = "DOWNPOUR_TRACEBACK"
LINE_CHARACTERS_MAX = 1000
_FAILED = 1
_ASKED_WRONGLY = 2
SIGNALLED = 128  # shells add a signal's number to this
_INTERRUPTED = SIGNALLED + signal.SIGINT
_HUNG_UP = 141  # 128 + SIGPIPE: shells report a program that writes into a closed pipe like this
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def report_error(error: BaseException) -> int:
    """Print an error in one line, and return the exit status."""
    if os.environ.get(VARIABLE):
        _print("".join(traceback.format_exception(error)))
    line, status = _line_and_status(error)
    if line:
        _print(f"downpour: {_in_one_line(line)}\n")
    return status


def final_status(status: int) -> int:
    """Return the status of a command that raised nothing; Typer turns Ctrl-C into a status."""
    return report_error(KeyboardInterrupt()) if status == _INTERRUPTED else status


def _line_and_status(error: BaseException) -> tuple[str, int]:
    match error:
        case DownpourError():
            return str(error), error.exit_status
        case TyperException():
            return error.format_message(), error.exit_code
        case SystemExit():
            # Rich and Typer exit with 1 if the reader has left; a signal handler exits with its
            # own.
            return "", error.code if isinstance(error.code, int) and error.code != 1 else _HUNG_UP
        case KeyboardInterrupt() | typer.Abort():
            number = signal.Signals(Terminated.last)
            by = "" if number is signal.SIGINT else f" by {number.name}"
            return f"stopped{by}", SIGNALLED + number
        case OSError():
            return _line_and_status_of_os(error)
    return "out of memory" if isinstance(error, MemoryError) else _internal_error(error), _FAILED


def _line_and_status_of_os(error: OSError) -> tuple[str, int]:
    """Describe an error of the operating system; one without a file name concerns a stream."""
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}", _FAILED
    if isinstance(error, BrokenPipeError):
        return "", _HUNG_UP
    if error.errno in _FULL:
        return f"output: {error.strerror}", _FAILED
    if isinstance(error, FileNotFoundError) and not _has_working_directory():
        return "the working directory is gone; change to one that exists", _ASKED_WRONGLY
    return _internal_error(error), _FAILED


def _internal_error(error: BaseException) -> str:
    """Write the traceback to a file, and return a line that names it."""
    line = f"internal error: {type(error).__name__}: {error}"
    try:
        descriptor, path = tempfile.mkstemp(prefix="downpour-", suffix=".txt", text=True)
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return f"{line} ({VARIABLE}=1 shows where)"
    return f"{_in_one_line(line, LINE_CHARACTERS_MAX // 2)} (its traceback is in {path})"


def _in_one_line(text: str, most: int = LINE_CHARACTERS_MAX) -> str:
    """Return text as one short line; control characters from other processes are escaped."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def _has_working_directory() -> bool:
    try:
        return Path.cwd().is_dir()
    except OSError:
        return False


def _print(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # standard error is closed, so we cannot print at all
        return


_FALLBACK = "downpour"
_SIMILAR = ("-", "-", "-", "...", "x", "<=", ">=", "->", "u", "+-", '"', '"')
_LOOKS_LIKE = dict(zip("·–−…×≤≥→µ±“”", _SIMILAR, strict=True))


def prepare() -> None:
    """Replace closed streams, and make every character printable, in logs as well."""
    codecs.register_error(_FALLBACK, _similar)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_FALLBACK)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogFormatter())


def outlive_readers() -> None:
    """Let this process, a server, go on if the reader of its output goes away."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(getattr(getattr(stream, "buffer", None), "raw", None), io.FileIO):
            stream.flush()
            lasting = io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False))
            text = io.TextIOWrapper(
                lasting, encoding=stream.encoding, errors=stream.errors, line_buffering=True
            )
            setattr(sys, name, text)


class _Lasting(io.FileIO):
    """A stream that writes to the null device once its reader, or its terminal, is gone."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in {errno.EPIPE, errno.EIO}:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def abandon_broken() -> None:
    """Redirect streams that can no longer be written to the null device.

    Otherwise the interpreter prints an error when it flushes them at its end.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Replace the descriptor, because the interpreter flushes its buffers once more when it
            # ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _similar(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    beyond = error.object[error.start : error.end]
    codec = "unicode_escape"
    similar = [_LOOKS_LIKE.get(one) or one.encode(codec).decode("ascii") for one in beyond]
    return "".join(similar), error.end
