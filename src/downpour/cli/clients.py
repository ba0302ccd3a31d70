"""The commands that call a manager: submit, status, watch, list, cancel, results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from downpour.base import options as base
from downpour.base.errors import SpecError, Unreachable
from downpour.base.options import argument, flag, option
from downpour.cli import common, printing
from downpour.cli.asking import client_of, find, stored
from downpour.cli.common import SHARED, command, refuse_both
from downpour.cli.spec_options import AskedSpec
from downpour.core.spec import ResolvedSpec, Spec
from downpour.host.paths import Credentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from downpour.experiments.client import Client
    from downpour.experiments.following import Follower
    from downpour.network.rpc.messages import Status
    from downpour.record import Result

_LISTED = 100
"""A few screens. Printing all of a directory's 100,000 experiments would take minutes."""

_any_experiment = partial(
    argument, text="An experiment; without it, the active one.", metavar="ID", value=""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerCall:
    """The options of each command that calls a manager."""

    manager: str = base.manager()
    shared: Path | str | None = common.shared_if_seen()


@dataclass(frozen=True, slots=True, kw_only=True)
class _SubmitOptions(ManagerCall):
    connect_seconds: float = base.connect_seconds()
    watch: bool = flag("Wait for its end, then print the result.")
    tensorboard: Path | None = common.tensorboard()
    resume: str | None = common.resume()
    priority: int = option(0, "Of the waiting experiments, the one with the most is next.", "N")


@command
def submit(options: _SubmitOptions, credentials: Credentials, request: AskedSpec) -> None:
    """Submit an experiment to a manager, and print its ID.

    Without --shards, it gets one shard for each worker that the manager has now. The command also
    prints the fields of the spec that differ from the defaults, and the values chosen for `auto`.
    --resume reads the experiment's folder in the shared directory, so this machine must have that
    directory. It refuses code that has changed since.
    """
    spec, tensorboard = request.spec, options.tensorboard
    if request.file is None and options.resume is None and not spec.model_fields_set:
        accepted = "name a spec file, or give its fields as options"
        raise SpecError("FILE", None, accepted)
    _check_priority(options.priority)
    if tensorboard is not None and not options.watch:
        later = "needs --watch; `downpour results ID --tensorboard DIR` writes them later"
        raise SpecError("tensorboard", str(tensorboard), later)
    from downpour.core.resolve import explained
    from downpour.experiments.following import Follower, event_files

    with (
        client_of(options.manager, credentials, options.shared, options.connect_seconds) as client,
        Follower(event_files(tensorboard)) as follower,
    ):
        experiment = client.submit(spec, priority=options.priority)
        printing.say(experiment)
        resolved = ResolvedSpec.make(client.results(experiment).spec)
        if not options.watch:
            why = explained(spec, resolved)
            printing.print_spec(resolved, [why] if why is not None else [])
            return
        try:
            result = _stay(client, experiment, spec, resolved, follower)
        except KeyboardInterrupt:
            printing.note(f"{experiment} goes on; `downpour cancel {experiment}` stops it")
            raise
    printing.print_result(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatusOptions(ManagerCall):
    experiment: str = _any_experiment()
    as_json: bool = common.as_json()


@command
def status(options: _StatusOptions, credentials: Credentials) -> None:
    """Show the workers and the experiment, as they are now.

    If you name no manager and none answers, the command reads the record in the shared directory.
    The manager of a `downpour run` answers only its own command.
    """
    try:
        with client_of(options.manager, credentials, options.shared) as client:
            now = client.status(options.experiment)
    except Unreachable as error:
        place = options.shared or SHARED
        found = () if options.manager else stored(place, error, 1, options.experiment)
        if not found:
            raise
        from downpour.network.rpc.messages import Status

        now = Status(change=0, experiment=found[-1])
    if options.as_json:
        printing.print_json(asdict(now))
        return
    from downpour.show.tables.live import status_view

    printing.out().print(status_view(now))


@dataclass(frozen=True, slots=True, kw_only=True)
class _WatchOptions(ManagerCall):
    experiment: str = _any_experiment()
    connect_seconds: float = base.connect_seconds()


@command
def watch(options: _WatchOptions, credentials: Credentials) -> None:
    """Show the workers and the experiment until it ends.

    Without an ID it shows the active experiment, or the next that becomes active.
    """
    from rich.live import Live

    from downpour.show.tables.live import status_view

    with (
        client_of(options.manager, credentials, options.shared, options.connect_seconds) as client,
        Live(console=printing.out(), refresh_per_second=4) as live,
    ):
        for now in client.watch(options.experiment):
            live.update(status_view(now))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListOptions(ManagerCall):
    last: int = option(_LISTED, "List the last N experiments; 0: all.", "N")
    as_json: bool = common.as_json()


@command
def list_experiments(options: _ListOptions, credentials: Credentials) -> None:
    """List the manager's last experiments, oldest first.

    If you name no manager and none answers, the command reads the records in the shared directory.
    It lists them by the time of the last write, or by ID if they are in an object store. Runs of
    `downpour run` are among them.
    """
    last = options.last
    if last < 0:
        raise SpecError("--last", last, "must be a number, 0 or above; 0 lists all")
    # One more tells us whether others exist.
    most = last + 1 if last else None
    try:
        with client_of(options.manager, credentials, options.shared) as client:
            experiments = client.experiments(most)
    except Unreachable as error:
        place = options.shared or SHARED
        found = stored(place, error, most) if not options.manager else None
        if found is None:
            raise
        experiments = found
    if last and len(experiments) > last:
        printing.note(f"only the last {last} experiments are listed; --last 0 lists all")
        experiments = experiments[-last:]
    if options.as_json:
        printing.print_json([asdict(summary) for summary in experiments])
        return
    from downpour.show.tables.live import experiments_table

    printing.out().print(experiments_table(experiments))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangeOptions(ManagerCall):
    experiment: str = common.experiment()


@command
def cancel(options: _ChangeOptions, credentials: Credentials) -> None:
    """Stop an experiment; its files stay.

    The command prints how far it was. An experiment that has ended stays as it is.
    """
    _change(options, credentials, lambda client: client.cancel(options.experiment), "cancelled")


@command
def pause(options: _ChangeOptions, credentials: Credentials) -> None:
    """Give no more tasks of an experiment, until it continues.

    Its workers hand over, or end their tasks if another worker would compute other bytes. Then the
    next experiment in the queue runs.
    """
    _change(options, credentials, lambda client: client.pause(options.experiment), "paused")


@command
def continue_(options: _ChangeOptions, credentials: Credentials) -> None:
    """Let a paused experiment go on, when its turn comes."""
    one = options.experiment
    _change(options, credentials, lambda client: client.pause(one, paused=False), "continued")


@dataclass(frozen=True, slots=True, kw_only=True)
class _PrioritizeOptions(_ChangeOptions):
    priority: int = argument("The new priority: a whole number, 0 or above.", "N")


@command
def prioritize(options: _PrioritizeOptions, credentials: Credentials) -> None:
    """Change the priority of a waiting experiment.

    It may be paused. Of the waiting experiments, the one with the highest priority is next.
    """
    one, new = options.experiment, options.priority
    _check_priority(new)
    _change(options, credentials, lambda each: each.prioritize(one, new), f"got priority {new}")


def _check_priority(priority: int) -> None:
    if not 0 <= priority < 2**31:
        raise SpecError("priority", priority, "must be a whole number, 0 or above")


def _change(
    options: _ChangeOptions, credentials: Credentials, ask: Callable[[Client], None], done: str
) -> None:
    """Change an experiment, and say where it was."""
    with client_of(options.manager, credentials, options.shared) as client:
        before = client.status(options.experiment).experiment
        ask(client)
        now = client.status(options.experiment).experiment
    if before is None or now is None:
        return
    if before.state.ended:
        said = f"was {before.state} already: nothing to do"
    elif now.state.ended and now.state != done:
        said = f"was {now.state} just before: nothing to do"
    elif done != "cancelled" and (before.paused, before.priority) == (now.paused, now.priority):
        said = f"was {before.condition} already: nothing to do"
    else:
        where = f", {before.where}" if before.state == "running" else ""
        said = f"{done}; it was {before.condition}{where}"
    printing.note(f"{before.experiment} {said}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResultsOptions:
    experiment: str = common.experiment()
    shared: Path | str | None = common.shared_if_seen()
    manager: str = base.manager()
    tensorboard: Path | None = common.tensorboard()
    as_json: bool = common.as_json()
    as_csv: bool = common.as_csv()


@command
def results(options: _ResultsOptions, credentials: Credentials) -> None:
    """Print an experiment's results, even while it runs.

    The command reads them from the shared directory or, if that lacks the experiment, from the
    manager. With an object store it asks the manager first, because a training manager knows more
    than the store.
    """
    refuse_both(json=options.as_json, csv=options.as_csv)
    found = find(options.experiment, options.shared, options.manager, credentials)
    if options.tensorboard is not None:
        from downpour.show.event_files import write_events

        write_events(found.record, options.tensorboard)
    result = found.result(with_tasks=options.as_json)
    printing.print_result(result, as_json=options.as_json, as_csv=options.as_csv)


def _stay(
    client: Client, experiment: str, asked: Spec, resolved: ResolvedSpec, follower: Follower
) -> Result:
    """Show an experiment until it ends, and write its event files."""
    from downpour.show.tables.live import LINE_SECONDS, ProgressDisplay

    with ProgressDisplay(printing.err(), line_seconds=LINE_SECONDS) as display:
        shown = printing.RunNotes(display.show, asked)
        shown.resolved(resolved)

        def look(status: Status) -> None:
            shown.status(status)
            follower.follow(experiment, client.record)

        return client.wait(experiment, on_status=look)
