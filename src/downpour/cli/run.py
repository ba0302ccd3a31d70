"""`downpour run`: trains with a manager and workers that end with the command."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from downpour.base import options as base
from downpour.base.options import option
from downpour.cli import common
from downpour.cli.common import allow_code, allow_own_code, refuse_both
from downpour.cli.dashboard import page_on, page_socket
from downpour.cli.launch_options import LaunchOptions, dry_run, workers
from downpour.cli.parameters import command
from downpour.cli.printing import SpecOnce, err, note, print_result, say
from downpour.cli.spec_options import FoundSpec, SpecRequest
from downpour.cluster.disturbances import Disturbances
from downpour.cluster.launchers import Launching, LaunchPlan
from downpour.cluster.options import ManagerOptions
from downpour.core.spec import Spec
from downpour.host.paths import Credentials

if TYPE_CHECKING:
    from downpour.experiments.surroundings import Surroundings
    from downpour.record import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `downpour run`, beside those of the spec and of the launcher."""

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
def run(options: RunOptions, request: FoundSpec, launching: LaunchOptions) -> None:
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
    request: SpecRequest, workers: int | None, place: Surroundings, options: RunOptions
) -> Result:
    """Train, and show the progress; leave out the spec if a program reads the output."""
    from downpour.experiments.following import Watching
    from downpour.experiments.surroundings import explained
    from downpour.experiments.training import train
    from downpour.host.child import command_for
    from downpour.show.tables.live import LINE_SECONDS, ProgressDisplay

    spec, quiet = request.spec, options.as_json or options.as_csv
    remarks = [request.remark] if request.remark else []
    remarks += [] if workers is not None else [explained(spec, is_here=place.is_here)]
    with ProgressDisplay(err(), line_seconds=LINE_SECONDS) as display:
        shown = SpecOnce(display.show, spec, remarks)
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


def _show_plan(spec: Spec, shared: str, launching: Launching) -> None:
    """Print the commands that the launcher would submit or run."""
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
            note(f"{file} has changed since the experiment trained with it")
    return spec.replace(code=code)
