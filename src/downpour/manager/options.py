"""How to start a manager, and where one is looked for by whoever was not told."""

from __future__ import annotations

from dataclasses import dataclass, field

from downpour.credentials import Credentials

DEFAULT_PORT = 9090
DEFAULT_MANAGER = f"localhost:{DEFAULT_PORT}"
DEFAULT_SHARED = "shared_dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """Where the manager listens (port 0: any that is free), and what it may use.

    `data_dir` holds datasets that are already on this machine, laid out as torchvision does. A
    file that is missing or short is looked at again for `patience_seconds`; then its attempt has
    failed. A `successor` waits until the manager in office is gone. An `embedded` manager belongs
    to one run: it neither takes up what others have left nor keeps others away, and ends what it
    began.
    """

    shared: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    data_dir: str = ""
    heartbeat_seconds: float = 1.0
    lost_after_seconds: float = 10.0
    patience_seconds: float = 10.0
    successor: bool = False
    embedded: bool = False
    credentials: Credentials = field(default_factory=Credentials)
