"""The commands that serve in the foreground: manager, worker, and dashboard, the live page."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from downpour.base import options as base
from downpour.base.errors import ComeAgain, DownpourError, SpecError, require
from downpour.base.names import check_device
from downpour.base.options import argument, checked_seconds, flag, option
from downpour.base.values import PAGE_PORT, checked_labels
from downpour.cli import common
from downpour.cli.common import checked_number, command
from downpour.cli.printing import SIGNALLED, note, outlive_readers
from downpour.cluster.options import ManagerOptions, WorkerOptions, checked_patience
from downpour.host.child import checked_command, notice_at
from downpour.host.paths import TOKEN_NAME, Credentials, is_object_store
from downpour.host.process import on_leaving, set_up_log, waiting_for_leave

if TYPE_CHECKING:
    from downpour.experiments.page_server.server import PageServer
    from downpour.network.rpc import Address
    from downpour.network.rpc.trust import Trust


_HERE = "127.0.0.1"


def listen_for_page(
    host: str, port: int, trust: Trust, field: str = "port", *, or_any: bool = False
) -> socket.socket:
    """Return a socket for a page; with `or_any`, at any free port if this one is taken."""
    from downpour.network.rpc.server import listen

    try:
        return listen(host, port, trust, field)
    except SpecError as error:
        in_use = getattr(error.__cause__, "errno", None) == errno.EADDRINUSE
        if not (or_any and in_use):
            raise
        return listen(host, 0, trust, field)


def page_url(listener: socket.socket, trust: Trust) -> str:
    """Return the URL at which a browser, here or elsewhere, finds the page."""
    host, port = listener.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        host = socket.gethostname()
    scheme = "https" if trust.serving is not None else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"


def page_socket(
    credentials: Credentials, port: int | None, *, wanted: bool
) -> socket.socket | None:
    """Return a socket on loopback for a page; None if no option asks for a page.

    Args:
        credentials: the token that viewers must enter.
        port: the value of `--dashboard-port`.
        wanted: the value of `--dashboard`.
    """
    if not wanted and port is None:
        return None
    require("--dashboard", "dashboard")
    from downpour.network.rpc.trust import Trust

    trust, usual = Trust.load(credentials), PAGE_PORT if port is None else port
    return listen_for_page(_HERE, usual, trust, "dashboard_port", or_any=port is None)


def page_on(
    listener: socket.socket | None, shared: Path | str, credentials: Credentials
) -> AbstractContextManager[None]:
    """Serve a page of a shared directory while a block runs, if there is a socket.

    It prints the page's URL as soon as the page answers.
    """
    if listener is None:
        return nullcontext()
    from downpour.experiments.page_server.process import page_beside
    from downpour.network.rpc.trust import Trust

    url = page_url(listener, Trust.load(credentials))
    return page_beside(str(shared), listener, credentials, lambda: note(f"page at {url}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _DashboardOptions:
    folder: Path | str | None = argument(
        "A shared directory, or a folder of results: one experiment's, a grid's, a search's, or "
        "one that holds several.",
        "[FOLDER]",
        None,
        default="the shared directory",
        reads="location",
    )
    shared: Path | str = base.location()
    host: str = option(
        _HERE,
        "The address to listen on. If other machines can reach it, the page asks for the token.",
        "ADDRESS",
    )
    port: int = base.port(value=PAGE_PORT)


@command
def dashboard(options: _DashboardOptions, credentials: Credentials) -> None:
    """Show experiments as a live page until Ctrl-C.

    The page only reads records, so you can run it on any machine that sees the folder or the
    bucket, with or without a manager.
    """
    require("downpour dashboard", "dashboard")
    from downpour.experiments.page_server.server import serve
    from downpour.host.process import allow_many_descriptors, on_interrupt
    from downpour.network.rpc.trust import Trust

    outlive_readers()
    allow_many_descriptors()
    trust = Trust.load(credentials)
    place = str(options.folder or options.shared)
    with listen_for_page(options.host, options.port, trust) as listener:

        def ready(server: PageServer) -> None:
            on_leaving(lambda _: server.leave())
            on_interrupt(server.leave)
            note(f"page at {page_url(listener, trust)} of {place}")

        serve(place, listener, trust, options.host, ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The log of a manager or a worker."""

    log: Path | None = option(
        None, "Append the log to this file.", "FILE", default="standard error"
    )
    verbose: bool = flag("Log more.", flag="--verbose -v")


def begin(options: LogOptions) -> None:
    """Set up the log, and let signals end the process until it needs an orderly end.

    In a container, the kernel drops SIGTERM for the first process unless that process handles it.
    """
    outlive_readers()
    on_leaving(lambda number: sys.exit(SIGNALLED + number))
    level = logging.INFO if options.verbose else logging.WARNING
    try:
        set_up_log(level, "%(asctime)s %(levelname)s %(name)s: %(message)s", options.log)
    except OSError as error:
        raise SpecError("log", str(options.log), f"cannot be written: {error.strerror}") from None
    logging.getLogger("downpour.membership").setLevel(logging.INFO)


def _say_where(url: str) -> None:
    note(f"metrics at {url}")


def with_token(credentials: Credentials, shared: Path | str) -> Credentials:
    """Return credentials with a token, and create the token if it is missing."""
    from downpour.files.store.shared_directory import make_token

    if not credentials.token_file and is_object_store(shared):
        accepted = "needs --token-file, because a token does not belong in an object store"
        raise SpecError("make_token", value=True, accepted=accepted)
    path = Path(credentials.token_file or Path(shared) / TOKEN_NAME)
    if make_token(path):
        note(f"made a token: {path}")
    return replace(credentials, token_file=str(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """The token and the page of `downpour manager`."""

    make_token: bool = flag(
        "Create the token file if it is missing, readable by this user only: DIR/token, or the "
        "file that --token-file names.",
        title="Trust",
    )
    dashboard: bool = common.dashboard()
    dashboard_port: int | None = common.dashboard_port()


@command
def manager(
    options: ManagerOptions, serving: ServingOptions, log: LogOptions, credentials: Credentials
) -> None:
    """Serve as the manager until Ctrl-C.

    It accepts experiments and assigns their shards to workers. It also continues experiments that
    an earlier manager of the same shared directory left unfinished. If other machines can reach it,
    it needs a token or TLS.
    """
    begin(log)
    if options.metrics_port is not None:
        require("--metrics-port", "metrics")
    if serving.make_token:
        credentials = with_token(credentials, options.shared)
    checked_patience(options.patience)
    if options.on_event:
        options = replace(options, on_event=checked_command(options.on_event))
    options = replace(options, credentials=credentials)
    listener = page_socket(credentials, serving.dashboard_port, wanted=serving.dashboard)
    _serve(options, listener)


def _serve(options: ManagerOptions, listener: socket.socket | None) -> None:
    """Serve until a signal comes, along with a live page if there is a socket for one."""
    from downpour.cluster.manager.process import run_manager

    with ExitStack() as beside:

        def ready(address: object) -> None:
            note(f"manager at {address}, shared directory {options.shared}")
            # Only now, because the manager may have just created the shared directory.
            beside.enter_context(page_on(listener, options.shared, options.credentials))

        run_manager(options, ready, _say_where)


_COUNT_MAX = 1000
_PROCESSES_MAX = 256


@command
def worker(options: WorkerOptions, log: LogOptions, credentials: Credentials) -> None:
    """Serve as a worker until Ctrl-C.

    It trains the shards that the manager assigns. You can start it before the manager; it finds the
    leader through the shared directory.

    SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C tell it to leave; a second Ctrl-C ends it at once.
    The exit status is 75 if the worker found no manager: the same command may succeed later. It is
    2 for mistakes that you can correct.
    """
    check_device(options.device)
    _check(options)
    begin(log)
    if options.metrics_port is not None:
        require("--metrics-port", "metrics")
    for name in ("connect_seconds", "drain_seconds", "alone_seconds"):
        checked_seconds(name, getattr(options, name))
    checked_labels(options.labels)
    options = replace(options, credentials=credentials)
    if options.count == 1:
        _run_one(options)
    else:
        _run_several(options, log.log)


def _check(options: WorkerOptions) -> None:
    checked_number("place", options.place, 0, _COUNT_MAX)
    if options.notice:
        notice_at(options.notice)
    if options.ready_file and not Path(options.ready_file).parent.is_dir():
        raise SpecError("ready_file", options.ready_file, "must be in a folder that exists")
    if options.processes is not None:
        checked_number("processes", options.processes, 1, _PROCESSES_MAX)


def _run_one(options: WorkerOptions) -> None:
    from downpour.cluster.worker.process import run_worker
    from downpour.network.discovery import manager_may_come

    try:
        run_worker(options, _say, _say_where)
    except DownpourError as error:
        raise (ComeAgain(str(error)) if manager_may_come(error) else error) from error


def _say(here: Address, manager: Address, device: str) -> None:
    note(f"worker at {here}, manager {manager}, trains on {device}")


def _run_several(options: WorkerOptions, log: Path | None) -> None:
    """Run workers as processes; exit with the status of the first one that failed."""
    checked_number("count", options.count, 1, _COUNT_MAX)
    if options.advertise.rpartition(":")[2].isdigit():
        raise SpecError("advertise", options.advertise, "needs no port with --count")
    from downpour.cluster.launchers.ssh import run_group
    from downpour.cluster.worker.process import default_name

    named = replace(options, name=options.name or default_name(os.environ))
    ends = run_group(named, log, waiting_for_leave())
    for name, ended in ends.items():
        if ended.status != 0:
            note(f"{name}: {ended.reason or f'it exited with status {ended.status}'}")
            raise typer.Exit(ended.status or 1)
