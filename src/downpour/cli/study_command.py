"""The options of the commands that run a study, and the code that runs it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typer

from downpour.cli.launch_options import Launching
from downpour.cli.options import RESULTS
from downpour.cli.printing import err, note, out, print_json
from downpour.host.credentials import FILES, Credentials
from downpour.host.event_command import command_for

if TYPE_CHECKING:
    from rich.console import RenderableType

    from downpour.experiments.client import Client
    from downpour.experiments.studies import Study, StudyFolder
    from downpour.experiments.studies.runner import OnKept

StudyT = TypeVar("StudyT", bound="Study")
_FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """The options of `downpour grid` and `downpour tune`.

    Without a `manager`, `launching` starts new processes. If `tensorboard` names a folder, the
    study writes event files there. `on_event` is a command, as `checked_command` returns it.
    """

    out_dir: Path | None
    shared: Path
    data_dir: Path | None
    manager: str
    tensorboard: Path | None
    credentials: Credentials
    launching: Launching
    on_event: str = ""

    def check(self, study: Study) -> None:
        """Refuse a study if the workers that we would start could not train every run.

        Raises:
            SpecError: the workers lack a required label; names the field.
        """
        for run in study.samples() if not self.manager else ():
            self.launching.check(run.spec)

    @contextmanager
    def client(self) -> Iterator[Client | None]:
        """Return a client of the manager, if there is one.

        SIGTERM ends the block as Ctrl-C does, because users stop a detached process with `kill`.
        """
        from downpour.experiments.client import Client

        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if not self.manager:
            yield None
            return
        with Client(self.manager, credentials=self.credentials, connect_seconds=0.0) as client:
            yield client

    def event_writer(self, kept: Iterable[Path]) -> OnKept | None:
        """Write event files of the records in `kept`; returns a function that writes later ones."""
        if self.tensorboard is None:
            return None
        from downpour.experiments.event_files import EndedRuns

        runs = EndedRuns(self.tensorboard)
        for record in kept:
            runs.write(record)
        return runs.write

    def words(self) -> list[str]:
        """Return the options as command-line words, for a detached process."""
        options = {
            "--shared": self.shared,
            "--data-dir": self.data_dir,
            "--manager": self.manager,
            "--tensorboard": self.tensorboard,
            "--on-event": self.on_event,
            **{f"--{name.replace('_', '-')}": getattr(self.credentials, name) for name in FILES},
        }
        given = {option: str(value) for option, value in options.items() if value}
        words = [word for pair in given.items() for word in pair]
        return words if self.manager else [*words, *self.launching.words()]


@dataclass(frozen=True, slots=True)
class StudyCommand(Generic[StudyT]):
    """A command that runs one kind of study.

    Args:
        name: The subcommand of `downpour`.
        tables: Returns tables of the ended runs.
        draw: Draws the results after the study has run.
        files: Returns the paths of result files to print.
    """

    name: str
    tables: Callable[[StudyFolder[StudyT]], list[RenderableType]]
    draw: Callable[[StudyFolder[StudyT]], None] | None = None
    files: Callable[[StudyFolder[StudyT]], list[Path]] | None = None

    def run(
        self, study: StudyT, options: StudyOptions, *, detach: bool, status: bool, as_json: bool
    ) -> None:
        """Run a study's missing runs, here or detached; or only show its progress.

        Raises:
            Exit: a run failed; the status is 1.
        """
        from downpour.experiments.studies import StudyFolder
        from downpour.experiments.studies.status import status_of

        folder = StudyFolder((options.out_dir or RESULTS / study.name).absolute(), study)
        folder.check()
        now = status_of(folder)
        if status or now.running or (detach and not now.progress.left):
            self._print(folder, as_json=as_json)
            return
        options.check(study)
        if detach:
            self._detach(folder, options)
        else:
            is_successful = self._run(folder, options)
            self._print(folder, as_json=as_json)
            if not is_successful:
                raise typer.Exit(_FAILED)

    def _detach(self, folder: StudyFolder[StudyT], options: StudyOptions) -> None:
        from downpour.experiments.studies.detached import detach
        from downpour.experiments.studies.lock import LOG_NAME

        process = detach(self.name, folder, options.words())
        log = folder.path / LOG_NAME
        note(f"process {process} runs the study and writes {log}; `kill {process}` stops it")

    def _run(self, folder: StudyFolder[StudyT], options: StudyOptions) -> bool:
        """Run the missing runs, and return whether the study succeeded."""
        from downpour.experiments.running.surroundings import Surroundings
        from downpour.experiments.studies import Embedded, Remote, run_study
        from downpour.experiments.studies.display import StudyDisplay

        on_kept = options.event_writer(folder.records())
        with options.client() as client, StudyDisplay(err(), note) as display:
            launching = options.launching
            where = Surroundings.of(
                options.shared, options.data_dir, on=launching.launcher, on_name=launching.on
            )
            command = command_for(options.on_event)
            backend = (
                Embedded(where, command)
                if client is None
                else Remote(client, folder.request, command)
            )
            progress = run_study(folder, backend, display, on_kept)
        if self.draw is not None:
            self.draw(folder)
        return progress.is_successful

    def _print(self, folder: StudyFolder[StudyT], *, as_json: bool) -> None:
        """Print the results so far, the progress, and the paths of the files."""
        from downpour.experiments.studies.status import status_of

        status = status_of(folder)
        files = self.files(folder) if self.files is not None else []
        if as_json:
            named: dict[str, Any] = {"files": list(map(str, files))} if self.files else {}
            print_json({**status.to_dict(), **named})
            return
        for table in self.tables(folder):
            out().print(table)
        for line in (status, *files):
            out().print(str(line), highlight=False, markup=False, soft_wrap=True)
