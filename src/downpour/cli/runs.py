"""The commands that start workers and train: run, and grid and tune for many runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from downpour.base import options as base
from downpour.base.errors import LaunchError, MachineTaken, last_line, require
from downpour.base.options import argument, flag, option, words_of
from downpour.base.values import DEFAULT_SHARED
from downpour.cli import common
from downpour.cli.common import RESULTS, allow_code, allow_own_code, command, refuse_both
from downpour.cli.printing import RunNotes, err, note, out, print_json, print_result, say
from downpour.cli.serving import page_on, page_socket
from downpour.cli.spec_options import FoundSpec, SpecRequest
from downpour.cli.up_and_down import LaunchOptions, dry_run, refuse_own_data, workers
from downpour.cluster.disturbances import Disturbances
from downpour.cluster.launchers import Launching, LaunchPlan
from downpour.cluster.options import ManagerOptions
from downpour.core.spec import Spec
from downpour.host.child import checked_command, command_for
from downpour.host.paths import Credentials

if TYPE_CHECKING:
    from downpour.experiments.studies import Grid, Search, StudyFolder
    from downpour.experiments.surroundings import Surroundings
    from downpour.record import Result
    from downpour.show.tables.live import ProgressDisplay


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunOptions:
    workers: int | None = workers(
        text="Worker processes; also the number of shards if the spec gives none.",
        default="one a shard, but no more than this machine's cores",
    )
    shared: Path = common.shared()
    data_dir: Path | None = base.data_dir()
    patience: float = base.patience()
    tensorboard: Path | None = common.tensorboard()
    log: tuple[str, ...] = option(
        (),
        "Also log each epoch: csv:FILE, mlflow, wandb (offline) or trackio. Repeatable.",
        "NAME[:TARGET]",
        default=False,
    )
    on_event: str = base.on_event()
    slow: tuple[str, ...] = option(
        (),
        "Slow a worker down on purpose: worker-3=0.25 runs at a quarter of its speed. Add "
        ",pauses=6/10 for a pause of 6 s in every 10 s. Repeatable.",
        "WORKER=SPEED",
        default=False,
    )
    kill: tuple[str, ...] = option(
        (),
        "Kill a process on purpose: worker-2@round3 (from 1), or manager@20s after training began. "
        "The manager restarts; a worker stays away unless ,restart follows. Repeatable.",
        "WHO@WHEN",
        default=False,
    )
    dashboard: bool = common.dashboard()
    dashboard_port: int | None = common.dashboard_port()
    allow: tuple[str, ...] = common.allow()
    resume: str | None = common.resume()
    as_json: bool = common.as_json()
    as_csv: bool = common.as_csv()
    dry_run: bool = dry_run()


@command
def run(options: _RunOptions, request: FoundSpec, launching: LaunchOptions) -> None:
    """Train with workers that this command starts.

    The spec comes from FILE, from options, or both. Without FILE, the command trains the one spec
    in the current folder, unless --dataset, --model or --task says what to train. If there is none,
    it trains a small network on the digits dataset. Modules next to FILE need no --allow. When
    training begins, the command prints the experiment's ID and the fields that differ from the
    defaults.
    """
    refuse_both(json=options.as_json, csv=options.as_csv)
    spec = request.spec
    launching.check(spec)
    disturbances = Disturbances.of(options.slow, options.kill)
    allow_code(options.allow, request.file)
    allow_own_code(spec, request.file)
    if options.resume is not None:
        spec = _with_code_here(spec)
    if options.dry_run:
        _show_plan(spec, str(options.shared.absolute()), launching)
        return
    from downpour.experiments.surroundings import Surroundings
    from downpour.files.store import SharedDirectory

    place = Surroundings(
        options.shared,
        options.data_dir,
        options.patience,
        launching.launcher,
        launching.on,
        disturbances,
    )
    # Credentials in the environment belong to another cluster.
    no_credentials = Credentials()
    listener = page_socket(no_credentials, options.dashboard_port, wanted=options.dashboard)
    if listener is not None:  # the page reads an existing folder
        SharedDirectory.open(options.shared, create=True)
    with page_on(listener, options.shared, no_credentials):
        result = _trained(replace(request, spec=spec), launching.workers, place, options)
    print_result(result, as_json=options.as_json, as_csv=options.as_csv)


def _trained(
    request: SpecRequest, workers: int | None, place: Surroundings, options: _RunOptions
) -> Result:
    """Train, and show the progress; leave out the spec if a program reads the output."""
    from downpour.experiments.following import Watching
    from downpour.experiments.surroundings import explained, idle_cores
    from downpour.experiments.training import train
    from downpour.show.tables.live import LINE_SECONDS, ProgressDisplay

    spec, quiet = request.spec, options.as_json or options.as_csv
    remarks = [request.remark] if request.remark else []
    remarks += [] if workers is not None else [explained(spec, is_here=place.is_here)]
    if idle := idle_cores(spec, workers, is_here=place.is_here):
        remarks.append(idle)
    display = ProgressDisplay(err(), line_seconds=LINE_SECONDS)
    with _said_if_interrupted(display, spec, options.shared), display:
        shown = RunNotes(display.show, spec, remarks)
        watching = Watching(
            on_resolved=shown.resolved,
            on_status=display.show if quiet else shown.status,
            on_event=command_for(options.on_event),
            tensorboard=options.tensorboard,
            loggers=options.log,
            progress=False,
            note=note,
        )
        return train(spec, workers, place, watching)


@contextmanager
def _said_if_interrupted(display: ProgressDisplay, spec: Spec, shared: Path) -> Iterator[None]:
    """Say how far an interrupted run came, and how to continue it."""
    try:
        yield
    except (KeyboardInterrupt, MachineTaken):
        last = display.last
        if last is not None and last.rounds_done:
            done = "{} of {} epochs are done".format(*last.epochs)
            more = f" --shared {shared}" if shared != Path(DEFAULT_SHARED) else ""
            modules = {name.partition(":")[0].partition(".")[0] for name in spec.factories.values()}
            more += "".join(f" --allow {module}" for module in sorted(modules))
            note(f"{done}; `downpour run --resume {last.experiment}{more}` continues")
        raise


def _show_plan(spec: Spec, shared: str, launching: Launching) -> None:
    from downpour.core.resolve import resolve
    from downpour.experiments.surroundings import workers_for

    number = workers_for(spec, launching.workers, is_here=False)  # other runs need no plan
    resolve(spec, number)  # refuses a spec that no run can train
    plan = LaunchPlan(
        ManagerOptions(shared=shared, embedded=True),
        number,
        threads=spec.threads,
        device=spec.device,
        needs=spec.needs,
        **launching.settings,
    )
    for line in launching.planned(plan).splitlines():
        say(line)


def _with_code_here(spec: Spec) -> Spec:
    """Let a resumed experiment use this machine's code, and note each changed file."""
    from downpour.learning.user_code import fixed_code

    code = fixed_code(spec.factories, {})
    for file in sorted(spec.code.keys() | code.keys()):
        if spec.code.get(file) != code.get(file):
            has = "has changed since" if file in code else "cannot be imported here, but"
            note(f"{file} {has} the experiment trained with it")
    return spec.replace(code=code)


_FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _StudyOptions:
    out_dir: Path | None = option(
        None, "The folder for results.", "DIR", default="./results/NAME", flag="--out"
    )
    shared: Path = common.shared()
    data_dir: Path | None = base.data_dir()
    manager: str = option(
        "",
        "Train on this manager's cluster, with its workers.",
        "HOST:PORT",
        default="new processes on this machine",
    )
    tensorboard: Path | None = common.tensorboard()
    on_event: str = base.on_event()
    allow: tuple[str, ...] = common.allow()
    detach: bool = flag(
        "Run in the background, without this terminal; DIR/log.txt shows the progress."
    )
    status: bool = flag("Only show the progress; starts nothing.")
    as_json: bool = common.as_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class _GridOptions(_StudyOptions):
    file: Path = argument("A TOML file with the grid.", "FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TuneOptions(_StudyOptions):
    file: Path = argument("A TOML file with the search.", "FILE")


@dataclass(frozen=True, slots=True)
class _StudyRun:
    """A call of one of these commands."""

    study: Grid | Search
    options: _StudyOptions
    credentials: Credentials
    launching: Launching

    def run(self) -> None:
        """Run a study's missing runs, here or detached; or only show its progress."""
        from downpour.experiments.studies import StudyFolder
        from downpour.experiments.studies.folder import LOG_NAME, status_of

        options, study = self.options, self.study
        folder = StudyFolder((options.out_dir or RESULTS / study.name).absolute(), study)
        folder.check()
        now = status_of(folder)
        if options.status or now.running or (options.detach and not now.left):
            self._print(folder)
            if now.left and not now.running and (log := folder.path / LOG_NAME).is_file():
                last = last_line(log.read_text("utf-8", errors="replace"))
                raise LaunchError(f"the detached process has ended: {last}; see {log}")
            return
        for run in study.samples() if not options.manager else ():
            self.launching.check(run.spec)
        if options.detach:
            self._detach(folder)
        else:
            is_successful = self._run(folder)
            self._print(folder)
            if not is_successful:
                raise typer.Exit(_FAILED)

    def _detach(self, folder: StudyFolder[Any]) -> None:
        from downpour.experiments.studies.folder import LOG_NAME
        from downpour.experiments.studies.running import detach

        options = replace(self.options, out_dir=None, allow=(), detach=False, as_json=False)
        words = [*words_of(options), *words_of(self.credentials)]
        words += [] if options.manager else self.launching.words()
        command = self.study.file_name.removesuffix(".toml")
        process = detach(command, folder, words)
        log = folder.path / LOG_NAME
        note(f"process {process} runs the study and writes {log}; `kill {process}` stops it")

    def _run(self, folder: StudyFolder[Any]) -> bool:
        """Run the missing runs, and return whether the study succeeded."""
        from downpour.experiments.client import Client
        from downpour.experiments.studies import Embedded, Remote, Search, run_study
        from downpour.experiments.studies.folder import REQUEST_NAME
        from downpour.experiments.studies.running import Backend, StudyDisplay
        from downpour.experiments.studies.search import draw_search
        from downpour.experiments.surroundings import Surroundings
        from downpour.show.event_files import EndedRuns

        options, launching = self.options, self.launching
        on_kept = None
        if options.tensorboard is not None:
            on_kept = EndedRuns(options.tensorboard).write
            for record in folder.records():
                on_kept(record)
        on_event, manager = command_for(options.on_event), options.manager
        # SIGTERM does as Ctrl-C does, because users stop a detached process with `kill`.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with ExitStack() as stack:
            if manager:
                client = Client(manager, credentials=self.credentials, connect_seconds=0.0)
                stack.enter_context(client)
                backend: Backend = Remote(client, folder.path / REQUEST_NAME, on_event)
            else:
                on, name = launching.launcher, launching.on
                place = Surroundings(options.shared, options.data_dir, on=on, on_name=name)
                backend = Embedded(place, on_event)
            display = stack.enter_context(StudyDisplay(err(), note))
            progress = run_study(folder, backend, display, on_kept)
        if isinstance(self.study, Search):
            draw_search(folder)
        return progress.is_successful

    def _print(self, folder: StudyFolder[Any]) -> None:
        from downpour.experiments.studies import Search, grid_results
        from downpour.experiments.studies.folder import status_of
        from downpour.experiments.studies.search import search_files
        from downpour.show.tables.terminal_tables import search_table, study_table

        status, is_search = status_of(folder), isinstance(self.study, Search)
        files = search_files(folder) if is_search else []
        if self.options.as_json:
            named: dict[str, Any] = {"files": list(map(str, files))} if is_search else {}
            print_json({**status.to_dict(), **named})
            return
        if not is_search:
            for subgrid in grid_results(folder).subgrids:
                out().print(study_table(subgrid))
        elif (result := folder.study.plan(folder.ended()).result).runs:
            out().print(search_table(result))
        for line in (status, *files):
            say(str(line))


@command
def grid(
    context: typer.Context,
    options: _GridOptions,
    credentials: Credentials,
    launching: LaunchOptions,
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
    checked = _checked(context, options, options.file)
    require("downpour grid", "report")
    from downpour.experiments.studies import Grid

    _StudyRun(Grid.from_file(options.file), checked, credentials, launching).run()


def _checked(context: typer.Context, options: _StudyOptions, file: Path) -> _StudyOptions:
    """Refuse options that exclude each other; return all, with the event command's whole path."""
    refuse_both(detach=options.detach, status=options.status)
    refuse_own_data(context, options.manager)
    allow_code(options.allow, file)
    return replace(options, on_event=checked_command(options.on_event) if options.on_event else "")


@command
def tune(
    context: typer.Context,
    options: _TuneOptions,
    credentials: Credentials,
    launching: LaunchOptions,
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
    checked = _checked(context, options, options.file)
    if not options.status:
        require("downpour tune", "tune")
    from downpour.experiments.studies import Search

    _StudyRun(Search.from_file(options.file), checked, credentials, launching).run()
