"""How to start a manager, and where one is looked for by whoever was not told."""

from __future__ import annotations

from dataclasses import dataclass, field

from downpour.credentials import Credentials
from downpour.errors import SpecError

DEFAULT_PORT = 9090
DEFAULT_MANAGER = f"localhost:{DEFAULT_PORT}"
DEFAULT_SHARED = "shared_dir"

_PATIENCE_MIN, _PATIENCE_MAX = 0.1, 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """Where the manager listens (port 0: any that is free), and what it may use.

    `data_dir` holds datasets that are already on this machine, laid out as torchvision does. A
    file that is missing or short is looked at again for `patience_seconds`; then its attempt has
    failed. `patience` scales that and every other limit there is (`scheduler/timeouts.py`).
    `predictor` is a file that `downpour predictor train` has made, instead of the one shipped. A
    `successor` waits until the leading manager is gone. An `embedded` manager belongs to one
    run: it neither takes up what others have left nor keeps others away, and ends what it began.
    Metrics are served at `metrics_port`, if at all.
    """

    shared: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    data_dir: str = ""
    heartbeat_seconds: float = 1.0
    patience: float = 1.0
    patience_seconds: float = 10.0
    predictor: str = ""
    successor: bool = False
    embedded: bool = False
    metrics_port: int | None = None
    credentials: Credentials = field(default_factory=Credentials)


def checked_patience(patience: float) -> float:
    """Return a patience that is one.

    Raises:
        SpecError: it is no number from 0.1 to 1000.
    """
    if not isinstance(patience, int | float) or not _PATIENCE_MIN <= patience <= _PATIENCE_MAX:
        accepted = f"must be a number from {_PATIENCE_MIN} to {_PATIENCE_MAX:g}; 1 is usual"
        raise SpecError("patience", patience, accepted)
    return patience
