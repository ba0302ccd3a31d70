"""The options for starting a manager."""

from __future__ import annotations

from dataclasses import dataclass, field

from downpour.base import options
from downpour.base.errors import SpecError
from downpour.base.options import flag, loaders_of, option, words_of
from downpour.host.paths import Credentials

_PATIENCE_MIN, _PATIENCE_MAX = 0.1, 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """How to start a manager: the options of `downpour manager`, and what a launcher adds."""

    shared: str = options.location()
    host: str = option(
        "127.0.0.1", "The address to listen on; 0.0.0.0 or :: for all networks.", "ADDRESS"
    )
    port: int = options.port()
    data_dir: str = options.data_dir(value="")
    successor: bool = flag("Wait until the leading manager is gone, then take over.")
    patience: float = options.patience()
    predictor: str = option(
        "",
        "The predictor of completion times, as `downpour predictor train` writes it.",
        "FILE",
        default="the one that is shipped",
    )
    metrics_port: int | None = options.metrics_port()
    on_event: str = options.on_event()
    loaders: str = options.loaders()
    heartbeat_seconds: float = 1.0
    patience_seconds: float = 10.0
    """How long readers retry a file that is missing or short; then the attempt fails."""
    embedded: bool = False
    """It belongs to one `run`: it takes no lock, and closing it cancels its experiments."""
    run: str = ""
    """The run's name marks its experiments, so that the next manager finds them."""
    restarts: int = 0
    credentials: Credentials = field(default_factory=Credentials)

    def __post_init__(self) -> None:
        """Check what users may set."""
        loaders_of(self.loaders)

    def arguments(self) -> list[str]:
        """Return the command line that starts this manager as a separate process."""
        return ["manager", *words_of(self)]


def checked_patience(patience: float) -> float:
    """Return `patience` if it is valid."""
    if not isinstance(patience, int | float) or not _PATIENCE_MIN <= patience <= _PATIENCE_MAX:
        accepted = f"must be a number from {_PATIENCE_MIN} to {_PATIENCE_MAX:g}; 1 is the default"
        raise SpecError("patience", patience, accepted)
    return patience
