"""`downpour grid` and `downpour tune`: many runs from one file."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from downpour.cli.launch_options import Launching, refuse_both, refuse_own_data, with_launcher
from downpour.cli.options import (
    RESULTS,
    SHARED,
    Allow,
    AsJson,
    DataDir,
    Detach,
    ManagerElsewhere,
    OnEvent,
    OnlyStatus,
    OutDir,
    Shared,
    TensorBoard,
    allow_code,
    path_option,
    with_credentials,
)
from downpour.cli.printing import err, note, out, print_json
from downpour.host.event_command import checked_command, command_for
from downpour.host.extras import require
from downpour.host.paths import FILES, Credentials

if TYPE_CHECKING:
    from rich.console import RenderableType

    from downpour.experiments.client import Client
    from downpour.experiments.studies import Grid, Search, Study, StudyFolder
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
        """Refuse a study if the workers that we would start could not train every run."""
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
        from downpour.show.event_files import EndedRuns

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
        """Run a study's missing runs, here or detached; or only show its progress."""
        from downpour.experiments.studies import StudyFolder
        from downpour.experiments.studies.folder import status_of

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
        from downpour.experiments.studies.folder import LOG_NAME
        from downpour.experiments.studies.runner import detach

        process = detach(self.name, folder, options.words())
        log = folder.path / LOG_NAME
        note(f"process {process} runs the study and writes {log}; `kill {process}` stops it")

    def _run(self, folder: StudyFolder[StudyT], options: StudyOptions) -> bool:
        """Run the missing runs, and return whether the study succeeded."""
        from downpour.experiments.running.surroundings import Surroundings
        from downpour.experiments.studies import Embedded, Remote, run_study
        from downpour.experiments.studies.runner import StudyDisplay

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
        from downpour.experiments.studies.folder import status_of

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


@with_launcher
@with_credentials
def grid(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", parser=path_option("FILE"), help="A TOML file with the grid."
        ),
    ],
    out_dir: OutDir = None,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    manager: ManagerElsewhere = "",
    tensorboard: TensorBoard = None,
    on_event: OnEvent = "",
    *,
    allow: Allow = None,
    detach: Detach = False,
    status: OnlyStatus = False,
    as_json: AsJson = False,
    credentials: Credentials,
    launching: Launching,
) -> None:
    """Run a grid of experiments, or its missing runs.

    FILE holds a name, fields of the spec, `workers`, and `trials`: the number of runs of each
    setting, with seed, seed + 1 and so on. A list is an axis of the grid. If a value is itself a
    list (betas), the axis is a list of lists. For task_options, model_options and dataset_options
    the axis is a list of tables, and a list inside a table is a value. Each `[[experiment]]` is a
    named grid that inherits the fields above it. Without `shards`, each worker gets one.

    The command runs every setting once before it runs any twice, and skips runs that have finished.
    You can stop it at any time and restart it, even after you have added repetitions or values to
    the file. While another process runs the grid, the command shows its progress. `downpour report
    DIR` writes tables and figures of the results.
    """
    refuse_both(detach=detach, status=status)
    refuse_own_data(context, manager)
    allow_code(allow, file)
    require("downpour grid", "report")
    from downpour.experiments.studies import Grid

    options = StudyOptions(
        out_dir=out_dir,
        shared=shared,
        data_dir=data_dir,
        manager=manager,
        tensorboard=tensorboard,
        credentials=credentials,
        launching=launching,
        on_event=checked_command(on_event) if on_event else "",
    )
    command = StudyCommand("grid", _tables_of_grid)
    command.run(Grid.from_file(file), options, detach=detach, status=status, as_json=as_json)


def _tables_of_grid(folder: StudyFolder[Grid]) -> list[RenderableType]:
    """Return a table of the ended runs for each subgrid."""
    from downpour.experiments.studies import grid_results
    from downpour.show.tables.terminal_tables import study_table

    return [study_table(subgrid) for subgrid in grid_results(folder).subgrids]


@with_launcher
@with_credentials
def tune(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", parser=path_option("FILE"), help="A TOML file with the search."
        ),
    ],
    out_dir: OutDir = None,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    manager: ManagerElsewhere = "",
    tensorboard: TensorBoard = None,
    on_event: OnEvent = "",
    *,
    allow: Allow = None,
    detach: Detach = False,
    status: OnlyStatus = False,
    as_json: AsJson = False,
    credentials: Credentials,
    launching: Launching,
) -> None:
    """Search for settings of high accuracy.

    FILE holds a name, fields of the spec, `workers`, and a table `[search]`. For each field to
    search, the table has a list of values, or a range as { low = 0.001, high = 0.3, log = true };
    an option is written "model_options.dropout". It may also have `trials` (the number of runs),
    `seed`, `pruner` (median, halving or none) and `objective` (accuracy, loss or a task's metric).
    Without `shards`, each worker gets one.

    Each run is an experiment. Optuna chooses its values from the results of the runs before it, and
    the command cancels runs that fall behind. You can stop the command at any time and restart it,
    even with more runs. It then skips ended runs, but repeats a run that failed for a reason other
    than its values, such as a lost worker. While another process runs the search, the command shows
    its progress. DIR holds each run, the spec of the best one as best.toml, and a figure as
    search.png and search.svg.

    The search compares runs by their results on the test examples, so the best run's result is too
    optimistic for other examples.
    """
    refuse_both(detach=detach, status=status)
    refuse_own_data(context, manager)
    allow_code(allow, file)
    if not status:
        require("downpour tune", "tune")
    from downpour.experiments.studies import Search
    from downpour.experiments.studies.search import draw_search, search_files

    options = StudyOptions(
        out_dir=out_dir,
        shared=shared,
        data_dir=data_dir,
        manager=manager,
        tensorboard=tensorboard,
        credentials=credentials,
        launching=launching,
        on_event=checked_command(on_event) if on_event else "",
    )
    command = StudyCommand("tune", _tables_of_search, draw_search, search_files)
    command.run(Search.from_file(file), options, detach=detach, status=status, as_json=as_json)


def _tables_of_search(folder: StudyFolder[Search]) -> list[RenderableType]:
    """Return a table of the runs that have ended."""
    from downpour.experiments.studies.search import SearchPlan
    from downpour.show.tables.terminal_tables import search_table

    result = SearchPlan(folder.study, folder.ended()).result
    return [search_table(result)] if result.runs else []
