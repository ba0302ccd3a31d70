"""Runs the page in its own process, which ends with the process that started it.

The parent binds the socket, writes the request to the child's standard input and leaves that open.
The child writes a line to its standard output once it serves. It ends when its standard input
closes, which also happens if someone kills the parent.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread

from pydantic import TypeAdapter
from setproctitle import setproctitle

from downpour.base.errors import DownpourError, one_line
from downpour.cluster.launchers.cluster_files import ClusterFiles
from downpour.experiments.page_server.server import PageServer, serve
from downpour.host.child import Child
from downpour.host.paths import Credentials
from downpour.host.process import allow_many_descriptors
from downpour.network.rpc.trust import Trust

_LOOK_SECONDS = 1.0
END_SECONDS = 8.0
"""Longer than viewers have to take the last lines."""

PAGE_LOG = Path("logs", "page")
"""In the shared directory: the errors of a page that follows a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """The task of a page's process: to serve a location, on the socket of a descriptor.

    It ends with its standard input, or with the cluster that a supervisor runs at the location.
    """

    location: str
    host: str
    descriptor: int
    credentials: Credentials
    follows_cluster: bool = False


REQUEST = TypeAdapter(PageRequest)


@contextmanager
def page_beside(
    location: str,
    listener: socket.socket,
    credentials: Credentials,
    served: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Serve a page from another process while the block runs, which does not wait for it.

    The location is a folder's path, or an object store's URL. This closes the listener. A thread
    calls `served` once the page answers.
    """
    page = start_page(location, listener, credentials)

    def tell() -> None:
        if is_served(page):
            served()

    Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        end_page(page)


def start_page(
    location: str,
    listener: socket.socket,
    credentials: Credentials,
    *,
    follows_cluster: bool = False,
) -> Child:
    """Start a page's process; see `page_beside`.

    If it follows a cluster, it outlives this process, and ends after `downpour down` has ended the
    cluster. It writes to one of the cluster's files. If it wrote to this process's output, a reader
    of that output would wait for it.
    """
    host = str(listener.getsockname()[0])
    descriptor = listener.fileno()
    log = Path(location) / PAGE_LOG if follows_cluster else None
    child = Child(__name__, log=log, starts_log=True, answers=True, descriptors=[descriptor])
    request = PageRequest(
        location=location,
        host=host,
        descriptor=descriptor,
        credentials=credentials,
        follows_cluster=follows_cluster,
    )
    line = REQUEST.dump_json(request) + b"\n"
    child.tell(line, is_last=follows_cluster)  # one that has died has said why
    listener.close()
    return child


def is_served(page: Child) -> bool:
    """Wait until a page answers; False if its process has ended instead, which has said why."""
    assert page.process.stdout is not None  # noqa: S101 - a pipe, as started
    with page.process.stdout as told:
        return bool(told.readline())


def end_page(page: Child) -> None:
    """Let a page's process end; it tells its viewers."""
    page.end(END_SECONDS)
    if page.process.stdout is not None:
        page.process.stdout.close()


def main() -> int:
    """Serve until standard input ends; return the exit status."""
    setproctitle("downpour: page")
    # Ctrl-C reaches every process of a terminal; the parent decides when the page ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # It has no terminal, so HUP comes from a program that rotates logs.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    request = REQUEST.validate_json(sys.stdin.buffer.readline())
    listener = socket.socket(fileno=request.descriptor)
    allow_many_descriptors()
    try:
        trust = Trust.load(request.credentials)
        ready = partial(_leave_when_over, request)
        serve(request.location, listener, trust, request.host, ready)
    except DownpourError as error:
        sys.stderr.write(f"downpour: the page has ended: {error}\n")
        return error.exit_status
    except Exception as error:  # noqa: BLE001 - a library of another version may raise anything
        reason = one_line(f"{type(error).__name__}: {error}")
        sys.stderr.write(f"downpour: the page has ended: internal error: {reason}\n")
        return 1
    return 0


def _leave_when_over(request: PageRequest, server: PageServer) -> None:
    def wait() -> None:
        if request.follows_cluster:
            cluster = ClusterFiles(Path(request.location))
            while cluster.is_kept():
                time.sleep(_LOOK_SECONDS)
        else:
            while os.read(sys.stdin.fileno(), 4096):
                pass
        server.leave()

    Thread(target=wait, daemon=True).start()
    with suppress(OSError):  # from a parent that has ended
        os.write(sys.stdout.fileno(), b"\n")


if __name__ == "__main__":
    sys.exit(main())
