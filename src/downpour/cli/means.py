"""With what a grid or a search is trained, as options say it; and the same once more, detached."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from downpour.cli.printing import note
from downpour.credentials import FILES, Credentials

if TYPE_CHECKING:
    from downpour.api import Client
    from downpour.studies.detached import Results
    from downpour.studies.grid_runner import OnKept


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What `downpour experiment` and `downpour tune` take beside their file and folder.

    Without a `manager` it is processes of this machine that train. Event files are written where
    `tensorboard` names a folder.
    """

    shared: Path
    data_dir: Path | None
    manager: str
    tensorboard: Path | None
    credentials: Credentials

    @contextmanager
    def client(self) -> Iterator[Client | None]:
        """Call the manager, if there is one; `kill` ends the block as Ctrl-C does."""
        from downpour.api import Client

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if not self.manager:
            yield None
            return
        with Client(self.manager, credentials=self.credentials, connect_seconds=0.0) as client:
            yield client

    def event_writer(self, kept: Iterable[Path]) -> OnKept | None:
        """Write event files of the records that were kept before; returns what writes of more."""
        if self.tensorboard is None:
            return None
        from downpour.reports.event_files import EndedRuns

        runs = EndedRuns(self.tensorboard)
        for record in kept:
            runs.write(record)
        return runs.write

    def detach(self, command: str, folder: Results) -> None:
        """Have a command fill a folder by the same means, in a process that goes on by itself."""
        from downpour.studies.detached import detach
        from downpour.studies.lock import LOG_NAME

        process = detach(command, folder, self._words())
        log = folder.path / LOG_NAME
        note(f"process {process} runs it and writes {log}; `kill {process}` stops it")

    def _words(self) -> list[str]:
        """Write the options that say the same."""
        said = {
            "--shared": self.shared,
            "--data-dir": self.data_dir,
            "--manager": self.manager,
            "--tensorboard": self.tensorboard,
            **{f"--{name.replace('_', '-')}": getattr(self.credentials, name) for name in FILES},
        }
        return [word for option, value in said.items() if value for word in (option, str(value))]
