"""The manager as a process: opens the shared directory, serves, and runs until told to stop."""

from __future__ import annotations

import logging
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

from downpour.manager.driver import Driver
from downpour.manager.effects import Effects
from downpour.manager.options import ManagerOptions
from downpour.manager.roster import Roster
from downpour.manager.service import ManagerService
from downpour.rpc import Address, Trust, serve_manager
from downpour.scheduler import Scheduler, SchedulerOptions
from downpour.store import SharedDirectory

log = logging.getLogger(__name__)

_FILES = 65536


class Manager:
    """A running manager; `close` stops it. Usable in a test as well as in a process."""

    def __init__(self, options: ManagerOptions) -> None:
        """Open the shared directory, bind the port and begin to serve.

        Raises:
            SharedDirectoryError: the folder cannot serve.
            SpecError: the port is in use, a credential is wrong, or others could reach the port
                and nothing would be asked of them.
        """
        trust = Trust.load(options.credentials)
        shared = replace(
            SharedDirectory.open(Path(options.shared), create=True),
            patience_seconds=options.patience_seconds,
        )
        data_dir = Path(options.data_dir) if options.data_dir else None
        core = Scheduler(SchedulerOptions(lost_after_seconds=options.lost_after_seconds))
        self._roster = Roster()
        self._effects = Effects(self._roster, data_dir)
        self._driver = Driver(core, self._effects)
        self._effects.attach(self._driver.post, lambda: self._driver.now_seconds)
        self._service = ManagerService(
            options, trust, shared, self._driver, self._effects, self._roster
        )
        self._server = serve_manager(self._service, options.host, options.port, trust=trust)
        self._service.announce()
        self._driver.start()
        self._server.start()

    @property
    def address(self) -> Address:
        """Where it answers."""
        return self._server.address

    def close(self) -> None:
        """Answer nobody any more, let what is running end."""
        self._driver.end_waits()
        self._server.stop()
        self._driver.stop()
        self._effects.close()
        self._roster.close()
        self._service.withdraw()


def run_manager(options: ManagerOptions, ready: Callable[[Address], None]) -> None:
    """Serve until SIGTERM or SIGINT; calls `ready` with the address once it answers."""
    stop = SimpleQueue[None]()  # a signal handler may put here; setting an Event can deadlock

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)
        stop.put(None)

    _allow_many_files()
    manager = Manager(options)
    try:
        signal.signal(signal.SIGTERM, leave)
        signal.signal(signal.SIGINT, leave)
        log.info("manager serves at %s", manager.address)
        ready(manager.address)
        stop.get()
    finally:
        manager.close()


def _allow_many_files() -> None:
    """Use what the system allows: each worker takes two descriptors, a waiting experiment one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
