"""`downpour run`: trains with a manager and workers that end with the command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from downpour.base.errors import SpecError
from downpour.cli.dashboard import DashboardFlag, DashboardPort, page_on, page_socket
from downpour.cli.launch_options import DryRun, Launching, with_launcher
from downpour.cli.options import (
    SHARED,
    Allow,
    AsCsv,
    AsJson,
    DataDir,
    Log,
    OnEvent,
    Patience,
    Resume,
    Shared,
    TensorBoard,
    allow_code,
    allow_own_code,
    workers_option,
)
from downpour.cli.printing import SpecOnce, check_format, err, note, print_result, say
from downpour.cli.spec_options import parse_fields, with_spec
from downpour.cluster.disturbing.disturbances import Disturbances
from downpour.cluster.launchers import LaunchPlan, kind_of
from downpour.cluster.manager.options import ManagerOptions
from downpour.core.spec import Spec
from downpour.files.spec_file import read_spec, specs_in
from downpour.host.paths import Credentials

if TYPE_CHECKING:
    from downpour.experiments.running.surroundings import Surroundings
    from downpour.record import Result


_SAYS_WHAT = ("file", "resume", "task", "dataset", "model")
"""Arguments that say what to train, so that we look for no file."""


def with_found_spec(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command find its FILE in the current folder; `remark` then names the file."""

    @functools.wraps(command)
    def wrapped(**arguments: Any) -> Any:
        if not any(arguments[name] for name in _SAYS_WHAT):
            files = specs_in(Path.cwd())
            if len(files) > 1:
                _refuse_options(files, arguments)
                names = ", ".join(file.name for file in files)
                accepted = f"name one of the specs in this folder: {names}"
                raise SpecError("FILE", None, accepted)
            for file in files:
                arguments |= {"file": file, "remark": f"no FILE was named, so this is {file.name}"}
        return command(**arguments)

    signature = inspect.signature(command)
    own = [one for name, one in signature.parameters.items() if name != "remark"]
    wrapped.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return wrapped


def _refuse_options(files: Sequence[Path], arguments: Mapping[str, Any]) -> None:
    """Refuse options that are wrong with each of these files."""
    from downpour.experiments.running.surroundings import workers_for

    kind_of(arguments.get("on") or "local")
    workers_for(Spec(), arguments.get("workers"))
    fields = parse_fields({name: arguments.get(name) for name in Spec.model_fields})
    errors: dict[str, SpecError] = {}
    for file in files:
        try:
            read_spec(file, fields)
        except SpecError as error:
            errors.setdefault(str(error), error)
        else:
            return
    if len(errors) == 1:
        raise errors.popitem()[1]


Workers = Annotated[
    int | None,
    workers_option(
        "Worker processes; also the number of shards if the spec gives none.",
        show_default="one a shard, but no more than this machine's cores",
    ),
]

SlowWorkers = Annotated[
    list[str] | None,
    typer.Option(
        "--slow",
        metavar="WORKER=SPEED",
        help="Slow a worker down on purpose: worker-3=0.25 runs at a quarter of its speed. "
        "Add ,pauses=6/10 for a pause of 6 s in every 10 s. Repeatable.",
        show_default=False,
    ),
]
KillProcesses = Annotated[
    list[str] | None,
    typer.Option(
        "--kill",
        metavar="WHO@WHEN",
        help="Kill a process on purpose: worker-2@round3 (from 1), or manager@20s after "
        "training began. The manager restarts; a worker stays away unless ,restart "
        "follows. Repeatable.",
        show_default=False,
    ),
]


@with_found_spec
@with_launcher
@with_spec
def run(
    spec: Spec,
    workers: Workers = None,
    shared: Shared = SHARED,
    data_dir: DataDir = None,
    patience: Patience = 1.0,
    tensorboard: TensorBoard = None,
    *,
    log: Log = None,
    on_event: OnEvent = "",
    slow: SlowWorkers = None,
    kill: KillProcesses = None,
    dashboard: DashboardFlag = False,
    dashboard_port: DashboardPort = None,
    allow: Allow = None,
    resume: Resume = None,
    spec_file: Path | None = None,
    remark: str = "",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    dry_run: DryRun = False,
    launching: Launching,
) -> None:
    """Train with workers that this command starts.

    The spec comes from FILE, from options, or both. Without FILE, the command trains the one spec
    in the current folder, unless --dataset, --model or --task says what to train. If there is none,
    it trains a small network on the digits dataset. Modules next to FILE need no --allow. When
    training begins, the command prints the experiment's ID and the fields that differ from the
    defaults.
    """
    check_format(as_json=as_json, as_csv=as_csv)
    launching.check(spec)
    disturbances = Disturbances.of(slow, kill)
    allow_code(allow, spec_file)
    allow_own_code(spec, spec_file)
    if resume is not None:
        spec = _with_code_here(spec)
    if dry_run:
        _show_plan(spec, workers, shared, launching)
        return
    from downpour.files.store import SharedDirectory
    from downpour.host.event_command import command_for

    told = {"tensorboard": tensorboard, "loggers": log or (), "on_event": command_for(on_event)}
    place = replace(_place(shared, data_dir, patience, launching), disturbances=disturbances)
    # Credentials in the environment belong to another cluster.
    listener = page_socket(Credentials(), dashboard_port, wanted=dashboard)
    if listener is not None:  # the page reads an existing folder
        SharedDirectory.open(shared, create=True)
    with page_on(listener, shared, Credentials()):
        result = _trained(spec, workers, place, told, remark, quiet=as_json or as_csv)
    print_result(result, as_json=as_json, as_csv=as_csv)


def _place(
    shared: Path, data_dir: Path | None, patience: float, launching: Launching
) -> Surroundings:
    from downpour.experiments.running.surroundings import Surroundings

    return Surroundings.of(shared, data_dir, patience, launching.launcher, launching.on)


def _trained(
    spec: Spec,
    workers: int | None,
    place: Surroundings,
    told: Mapping[str, Any],
    remark: str,
    *,
    quiet: bool,
) -> Result:
    """Train, and show the progress; leave out the spec if a program reads the output."""
    from downpour.experiments.running.surroundings import explained
    from downpour.experiments.running.training import train
    from downpour.experiments.running.watching import Watching
    from downpour.show.tables.progress import LINE_SECONDS, ProgressDisplay

    remarks = [remark] if remark else []
    remarks += [] if workers is not None else [explained(spec, is_here=place.is_here)]
    with ProgressDisplay(err(), line_seconds=LINE_SECONDS) as display:
        shown = SpecOnce(display.show, spec, remarks)
        watching = Watching(
            on_resolved=shown.resolved,
            on_status=display.show if quiet else shown.status,
            progress=False,
            note=note,
            **told,
        )
        return train(spec, workers, place, watching)


def _show_plan(spec: Spec, workers: int | None, shared: Path, launching: Launching) -> None:
    """Print the commands that the launcher would submit or run."""
    from downpour.core.resolve import resolve
    from downpour.experiments.running.surroundings import workers_for

    number = workers_for(spec, workers, is_here=False)  # other runs need no plan
    resolve(spec, number)  # refuses a spec that no run can train
    options = ManagerOptions(shared=str(shared.absolute()), embedded=True)
    plan = LaunchPlan(
        options,
        number,
        threads=spec.threads,
        device=spec.device,
        labels=launching.labels,
        needs=spec.needs,
    )
    for line in launching.shown(plan).splitlines():
        say(line)


def _with_code_here(spec: Spec) -> Spec:
    """Let a resumed experiment use this machine's code, and note each changed file."""
    from downpour.learning.user_code import fixed_code

    code = fixed_code(spec.factories, {})
    for file in sorted(spec.code.keys() | code.keys()):
        if spec.code.get(file) != code.get(file):
            note(f"{file} has changed since the experiment trained with it")
    return spec.replace(code=code)
