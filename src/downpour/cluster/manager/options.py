"""The options for starting a manager."""

from __future__ import annotations

from dataclasses import dataclass, field

from downpour.base.errors import SpecError
from downpour.base.values import DEFAULT_PORT
from downpour.host.paths import Credentials

_PATIENCE_MIN, _PATIENCE_MAX = 0.1, 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """The manager's address (port 0: any free port), and its resources.

    `data_dir` holds datasets that are already on this machine, in torchvision's layout. Readers
    retry a file that is missing or short for `patience_seconds`; then the attempt fails. `patience`
    scales that and every other timeout (`core/scheduler/lifecycle.py`). `predictor` is a file from
    `downpour predictor train`, which replaces the shipped one. A `successor` waits until the
    leading manager has ended. An `embedded` manager belongs to one `run`. The run's name marks its
    experiments, so that the next manager finds them after `restarts`. It takes no lock, continues
    no other experiments, and cancels its own when it closes. The manager serves metrics at
    `metrics_port` unless that is None. `on_event` is the command of `--on-event`.
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
    run: str = ""
    restarts: int = 0
    metrics_port: int | None = None
    on_event: str = ""
    credentials: Credentials = field(default_factory=Credentials)

    def arguments(self) -> list[str]:
        """Return the command line that starts this manager as a separate process."""
        words = ["manager", "--shared", self.shared, "--host", self.host, "--port", str(self.port)]
        words += ["--patience", str(self.patience)]
        texts = {
            "--data-dir": self.data_dir,
            "--predictor": self.predictor,
            "--on-event": self.on_event,
        }
        for flag, value in texts.items():
            words += [flag, value] if value else []
        words += ["--successor"] if self.successor else []
        if self.metrics_port is not None:
            words += ["--metrics-port", str(self.metrics_port)]
        return words


def checked_patience(patience: float) -> float:
    """Return `patience` if it is valid.

    Raises:
        SpecError: it is not a number from 0.1 to 1000.
    """
    if not isinstance(patience, int | float) or not _PATIENCE_MIN <= patience <= _PATIENCE_MAX:
        accepted = f"must be a number from {_PATIENCE_MIN} to {_PATIENCE_MAX:g}; 1 is the default"
        raise SpecError("patience", patience, accepted)
    return patience
