"""The commands of a cluster that stays: up, ps, down; and `--on`, which says where workers run."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from downpour.base import options as base
from downpour.base.errors import DownpourError, SpecError, one_line, require
from downpour.base.names import check_device
from downpour.base.options import OptionText, checked_seconds, flag, option, options_of
from downpour.cli import common
from downpour.cli.common import CommandPart, Values, command, parameter, refuse_unused
from downpour.cli.printing import err, note, out, print_json, say
from downpour.cli.serving import page_socket, page_url
from downpour.cluster.launchers import (
    LAUNCHERS,
    Launching,
    LaunchPlan,
    checked_table,
    kind_of,
    owners,
    planning,
)
from downpour.cluster.launchers.cluster_files import ClusterFiles, ClusterInfo, cluster_processes
from downpour.cluster.launchers.ssh_script import SshOptions, read_hosts
from downpour.cluster.options import ManagerOptions, checked_patience
from downpour.files.spec_file import read_launch
from downpour.host.child import checked_command, notice_at
from downpour.host.machine import usable_cores
from downpour.host.paths import TOKEN_NAME, Credentials
from downpour.learning.allowlist import VARIABLE
from downpour.learning.auto import devices_for

if TYPE_CHECKING:
    from rich.table import Table

    from downpour.cluster.launchers.cluster_files import ClusterProcess
    from downpour.files.store import SharedDirectory
    from downpour.network.rpc.messages import Status


workers = partial(option, value=None, metavar="N")
dry_run = partial(
    flag, text=f"Print what would be submitted or run, and start nothing ({', '.join(planning())})."
)


def refuse_own_data(context: typer.Context, manager: str) -> None:
    """Refuse this machine's folders if a manager elsewhere trains: it has its own folders."""
    if manager:
        accepted = "cannot go with --manager: that manager has its own"
        refuse_unused(context, {"shared", "data_dir"}, accepted)
        accepted = f"is for runs here; start manager and workers with {VARIABLE} instead"
        refuse_unused(context, {"allow"}, accepted)
        accepted = "cannot go with --manager: that manager has workers"
        refuse_unused(context, {"on", *owners()}, accepted)


def _file_table(values: Values) -> dict[str, Any]:
    """Return the table of a command's FILE; a manager elsewhere has its own workers."""
    file = values.get("file")
    # The command itself reports a missing file, after other mistakes in its options.
    if file is None or values.get("manager") or not file.is_file():
        return {}
    return checked_table(read_launch(file), file, takes_workers="workers" in values)


def _parameters() -> list[Parameter]:
    """Return the options of all plans, then those of launchers under headings that name these."""
    where = OptionText(
        f"The place to run the workers: {LAUNCHERS.described()}.", "|".join(LAUNCHERS), "local"
    )
    made = {"on": parameter("on", str, None, where)}
    for kind in (LaunchPlan, *(kind_of(on).options for on in LAUNCHERS)):
        hints = get_type_hints(kind) if kind else {}
        for name, (declared, text) in options_of(kind).items():
            titles = [kind_of(on).title for on in owners().get(name, ())]
            shown = (
                str(declared.default).removesuffix(".0") if text.default is None else text.default
            )
            seen = OptionText(
                text.help, text.metavar, shown, flag=text.flag, title=" and ".join(titles) or None
            )
            made.setdefault(name, parameter(name, hints[name], None, seen))
    return [*made.values()]


LaunchOptions = Annotated[
    Launching,
    CommandPart(_parameters(), lambda values: Launching.of(values, _file_table(values))),
]
"""The parameter of a command that starts workers.

The table `[launch]` of the command's FILE supplies the options that the user leaves out.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _UpOptions:
    shared: Path = common.shared()
    workers: int | None = workers(
        text="How many workers.",
        default="one a slot of the hosts, or one a processor of this machine",
    )
    host: str | None = option(
        None,
        "The address for the manager of this machine's workers. If other machines can reach it, "
        "the command creates a token in the shared directory.",
        "ADDRESS",
        default="127.0.0.1",
    )
    port: int = base.port()
    device: str = base.device()
    threads: int = option(1, "Threads that a worker computes with.", "N")
    data_dir: Path | None = base.data_dir()
    patience: float = base.patience()
    on_event: str = base.on_event()
    metrics_port: int | None = base.metrics_port()
    dashboard_port: int | None = common.dashboard_port()
    dashboard: bool = common.dashboard()
    service: bool = flag(
        "Let the user's own systemd keep the cluster: it starts it with the machine, without a "
        "login. `downpour down --service` removes the services, and --dry-run prints them."
    )
    no_manager: bool = flag(
        "With --service, start only workers, for the manager that leads in the shared directory."
    )
    dry_run: bool = dry_run()


@command
def up(options: _UpOptions, credentials: Credentials, launching: LaunchOptions) -> None:
    """Start a manager and workers that keep running.

    A supervisor in the background restarts processes that die, and gives policies the workers that
    they ask for. It needs this machine, but no terminal. Send experiments with `downpour submit`.
    From every machine that has the shared directory, `downpour ps` shows the processes and
    `downpour down` stops them. Unfinished experiments continue after the next `up`.
    """
    check_device(options.device)
    if options.threads < 1:
        raise SpecError("threads", options.threads, "must be at least 1")
    _check_manager(options)
    _check_place(options, launching.on)
    manager = ManagerOptions(
        shared=str(options.shared.absolute()),
        host=options.host or "127.0.0.1",
        port=options.port,
        data_dir=str(options.data_dir.absolute() if options.data_dir else ""),
        patience=checked_patience(options.patience),
        on_event=checked_command(options.on_event) if options.on_event else "",
        metrics_port=options.metrics_port,
        credentials=credentials,
    )
    plan = LaunchPlan(
        manager,
        _wanted(launching, options.device),
        threads=options.threads,
        device=options.device,
        **launching.settings,
    )
    if launching.on == "local" and plan.notice:
        notice_at(plan.notice)  # elsewhere, workers check it, because only they see the file
    if options.service:
        _serve(plan, with_manager=not options.no_manager, dry_run=options.dry_run)
    elif options.dry_run:
        for line in launching.planned(plan).splitlines():
            say(line)
    else:
        page = page_socket(credentials, options.dashboard_port, wanted=options.dashboard)
        _keep(plan, launching, page)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DownOptions:
    shared: Path = common.shared()
    drain_seconds: float = option(
        0.0,
        "How long workers may take to finish their tasks. Unfinished ones are saved, and continue "
        "after the next `downpour up`.",
        "X",
    )
    service: bool = flag("Stop and remove this machine's services instead.")


@command
def down(options: _DownOptions) -> None:
    """Stop a cluster that keeps running.

    The command returns when all processes of the cluster are gone. You can run it on any machine
    that has the shared directory. Experiments keep their state. If no cluster is up, it does
    nothing, with exit status 0.
    """
    from downpour.cluster.launchers import supervisor

    shared = options.shared
    if options.service:
        names = supervisor.disable(str(shared.absolute()))
        note(f"stopped {', '.join(names)}" if names else f"no service uses {shared}")
        return
    seconds = checked_seconds("drain_seconds", options.drain_seconds)
    folder = ClusterFiles(shared.absolute())
    is_kept = folder.is_kept()
    with err().status("stopping"):
        cluster = supervisor.stop(folder, seconds)
    if cluster is None:
        note(f"no cluster is up in {shared}")
    elif not is_kept:
        note("the cluster's supervisor had died, and the rest with it")
    else:
        count = len(cluster.workers)
        note(f"stopped {count} worker{'' if count == 1 else 's'} and the manager")


def _wanted(launching: Launching, device: str) -> int:
    """Return the number of workers to start; here, one for each accelerator or core."""
    workers = launching.workers
    if workers is not None:
        if workers < 1:
            raise SpecError("workers", workers, "must be a whole number, at least 1")
        return workers
    match launching.on:
        case "inline":
            raise SpecError("on", "inline", "ends with the command, so it cannot keep a cluster")
        case "ssh":
            hosts = read_hosts(SshOptions(**launching.options).hosts)
            return sum(host.slots for host in hosts)
        case "local":
            return devices_for(device).cards(device) or usable_cores()
    raise SpecError("workers", workers, f"must be options with --on {launching.on}")


def _keep(plan: LaunchPlan, launching: Launching, page: socket.socket | None) -> None:
    """Start a plan's supervisor, and tell the user how to give it work."""
    from downpour.cluster.launchers.supervisor import SupervisedPlan, start
    from downpour.files.store import SharedDirectory

    shared = Path(plan.manager.shared)
    SharedDirectory.open(shared, create=True)
    with err().status("starting"):
        cluster = start(SupervisedPlan(on=launching.on, options=launching.options, plan=plan))
    planned = [plan.worker(number, "").name for number in range(1, plan.workers + 1)]
    late = [name for name in planned if name not in cluster.registered]
    devices = f" on {', '.join(cluster.devices)}" if cluster.devices else ""
    workers = f"{plan.workers} worker{'' if plan.workers == 1 else 's'}{devices}"
    say(f"manager at {cluster.manager}, {workers}, shared directory {shared}")
    if late:
        where = f"`downpour ps` shows when they have, and {cluster.log} says why they wait"
        note(f"not registered yet: {', '.join(late)}; {where}")
    token = f" --token-file {shared / cluster.token_file}" if cluster.token_file else ""
    note(f"`downpour submit FILE --manager {cluster.manager}{token}` gives it work")
    if page is not None:
        _serve_page(plan, page)


def _check_place(options: _UpOptions, on: str) -> None:
    """Refuse options that need --on local, or that services cannot have."""
    for name, value in {"host": options.host, "service": options.service}.items():
        if value and on != "local":
            raise SpecError(name, value, "works only on this machine, so it needs --on local")
    if options.service and (options.dashboard or options.dashboard_port is not None):
        accepted = "cannot be combined with --service; run `downpour dashboard` for a page"
        raise SpecError("dashboard", value=True, accepted=accepted)


def _check_manager(options: _UpOptions) -> None:
    """Refuse workers without a manager except as services, and metrics without a manager."""
    if options.no_manager and not options.service:
        raise SpecError("no_manager", value=True, accepted="needs --service")
    if options.metrics_port is None:
        return
    if options.no_manager:
        accepted = "the manager serves these metrics, and --no-manager starts none"
        raise SpecError("metrics_port", options.metrics_port, accepted)
    require("--metrics-port", "metrics")


def _serve_page(plan: LaunchPlan, listener: socket.socket) -> None:
    """Serve a page from a process that ends with the cluster."""
    from downpour.experiments.page_server.process import PAGE_LOG, is_served, start_page
    from downpour.network.rpc.trust import Trust

    options = plan.manager
    url = page_url(listener, Trust.load(options.credentials))
    page = start_page(options.shared, listener, options.credentials, follows_cluster=True)
    log = Path(options.shared) / PAGE_LOG
    note(f"page at {url}" if is_served(page) else f"no page is served; {log} says why")


def _serve(plan: LaunchPlan, *, with_manager: bool, dry_run: bool) -> None:
    """Hand a plan over to systemd, or print its units."""
    from downpour.cluster.launchers import supervisor

    texts = supervisor.units(plan, with_manager=with_manager)
    if dry_run:
        for name, text in texts.items():
            for line in (f"# {name}", *text.splitlines()):
                say(line)
        return
    for name in supervisor.enable(plan, texts):
        say(name)
    if not supervisor.linger():
        note("they end with your login until an administrator runs `loginctl enable-linger USER`")


_DEAD = 1
_ASK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _PsOptions:
    shared: Path = common.shared()
    as_json: bool = common.as_json()


@command
def ps(options: _PsOptions, credentials: Credentials) -> None:
    """Show the processes of a cluster that keeps running.

    Each row has a process's machine, ID and state and, for a worker, its current task. The exit
    status is 1 if the process that keeps the cluster has died.
    """
    folder = ClusterFiles(options.shared.absolute())
    cluster, is_kept = folder.read(), folder.is_kept()
    rows = _processes(cluster, folder.root, credentials, is_kept=is_kept)
    if options.as_json:
        about = asdict(cluster) | {"kept": is_kept} if cluster is not None else None
        print_json({"cluster": about, "processes": [asdict(row) for row in rows]})
    elif rows:
        out().print(_table(rows))
    else:
        say(f"no cluster is up in {options.shared}")
    if cluster is not None and not options.as_json:
        if cluster.trouble:
            when = " when that is gone" if cluster.state == "waiting" else ""
            say(f"{cluster.trouble}; the supervisor restarts the cluster{when}")
        if not is_kept:
            say("its supervisor has died, and the rest with it; `downpour up` restarts it")
    if cluster is not None and not is_kept:
        raise typer.Exit(_DEAD)


def _processes(
    cluster: ClusterInfo | None, root: Path, credentials: Credentials, *, is_kept: bool
) -> list[ClusterProcess]:
    """Return the processes, or none if neither a supervisor nor a manager answers."""
    from downpour.files.store import SharedDirectory
    from downpour.files.store.lease import leader_of

    if credentials == Credentials():
        token = root / (cluster.token_file if cluster is not None else TOKEN_NAME)
        credentials = Credentials(token_file=str(token) if token.is_file() else "")
    shared = SharedDirectory(root)
    leader = leader_of(shared)
    status = _status(shared, credentials)
    if cluster is None and status is None:
        return []
    return list(cluster_processes(cluster, leader, status, is_kept=is_kept))


def _status(shared: SharedDirectory, credentials: Credentials) -> Status | None:
    """Return the status from the manager that leads in a directory; None if it does not answer."""
    from downpour.network.discovery import Managers
    from downpour.network.rpc import Trust

    managers = Managers(shared, None, Trust.load(credentials), timeout_seconds=_ASK_SECONDS)
    with suppress(DownpourError), managers.first() as client:
        managers.check(client)
        return client.status()
    return None


def _table(rows: Sequence[ClusterProcess]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("process", no_wrap=True)
    table.add_column("host", overflow="fold")
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("state")
    table.add_column("trains")
    labelled = any(row.labels for row in rows)
    if labelled:
        table.add_column("labels")
    for row in rows:
        name = row.role if row.role != "worker" else row.name
        cells = [name, row.hostname, str(row.pid or ""), row.state, row.attempt]
        cells += [" ".join(row.labels)] if labelled else []
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    return table
