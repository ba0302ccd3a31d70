"""The commands of a cluster that stays: up, ps, down."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from downpour.base.devices import AUTO, check_device
from downpour.base.errors import DownpourError, SpecError
from downpour.base.values import DEFAULT_PORT
from downpour.cli.dashboard import DashboardFlag, DashboardPort, page_socket, page_url
from downpour.cli.launch_options import DryRun, Launching, with_launcher
from downpour.cli.options import (
    SHARED,
    AsJson,
    DataDir,
    OnEvent,
    Patience,
    Shared,
    number,
    whole_number,
    with_credentials,
    workers_option,
)
from downpour.cli.printing import err, note, out, print_json, say
from downpour.cli.process_commands import Device, MetricsPort, Port
from downpour.cluster.launchers import LaunchPlan
from downpour.cluster.launchers.cluster_files import ClusterFiles, ClusterInfo
from downpour.cluster.launchers.hosts import read_hosts
from downpour.cluster.launchers.ssh_script import SshOptions
from downpour.cluster.manager.options import ManagerOptions, checked_patience
from downpour.host.event_command import checked_command
from downpour.host.extras import require
from downpour.host.machine import usable_cores
from downpour.host.paths import TOKEN_NAME, Credentials
from downpour.learning.devices import devices_for
from downpour.network.discovery.waiting import checked_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from downpour.cluster.operations.cluster_processes import ClusterProcess
    from downpour.files.store import SharedDirectory
    from downpour.network.rpc.messages import Status


Workers = Annotated[
    int | None,
    workers_option(
        "How many workers.",
        show_default="one a slot of the hosts, or one a processor of this machine",
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads", metavar="N", parser=whole_number, help="Threads that a worker computes with."
    ),
]

Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="The address for the manager of this machine's workers. If other machines can "
        "reach it, the command creates a token in the shared directory.",
        show_default="127.0.0.1",
    ),
]
Service = Annotated[
    bool,
    typer.Option(
        "--service",
        help="Let the user's own systemd keep the cluster: it starts it with the machine, "
        "without a login. `downpour down --service` removes the services, and --dry-run "
        "prints them.",
    ),
]
NoManager = Annotated[
    bool,
    typer.Option(
        "--no-manager",
        help="Start only workers, for the manager that leads in the shared directory.",
    ),
]


@with_launcher
@with_credentials
def up(
    shared: Shared = SHARED,
    workers: Workers = None,
    host: Host = None,
    port: Port = DEFAULT_PORT,
    device: Device = AUTO,
    threads: Threads = 1,
    data_dir: DataDir = None,
    patience: Patience = 1.0,
    *,
    on_event: OnEvent = "",
    metrics_port: MetricsPort = None,
    dashboard_port: DashboardPort = None,
    dashboard: DashboardFlag = False,
    service: Service = False,
    no_manager: NoManager = False,
    dry_run: DryRun = False,
    credentials: Credentials,
    launching: Launching,
) -> None:
    """Start a manager and workers that keep running.

    A supervisor in the background restarts processes that die, and gives policies the workers that
    they ask for. It needs this machine, but no terminal. Send experiments with `downpour submit`.
    From every machine that has the shared directory, `downpour ps` shows the processes and
    `downpour down` stops them. Unfinished experiments continue after the next `up`.
    """
    check_device(device)
    if threads < 1:
        raise SpecError("threads", threads, "must be at least 1")
    _check_manager(metrics_port, is_wanted=not no_manager, service=service)
    wants_page = dashboard or dashboard_port is not None
    _check_place(launching, host=host, service=service, wants_page=wants_page)
    manager = ManagerOptions(
        shared=str(shared.absolute()),
        host=host or "127.0.0.1",
        port=port,
        data_dir=str(data_dir.absolute() if data_dir else ""),
        patience=checked_patience(patience),
        on_event=checked_command(on_event) if on_event else "",
        metrics_port=metrics_port,
        credentials=credentials,
    )
    wanted = _wanted(launching, workers, device)
    plan = LaunchPlan(
        manager,
        wanted,
        threads=threads,
        device=device,
        idle_seconds=launching.idle_seconds,
        labels=launching.labels,
    )
    if service:
        _serve(plan, with_manager=not no_manager, dry_run=dry_run)
    elif dry_run:
        for line in launching.shown(plan).splitlines():
            say(line)
    else:
        _keep(plan, launching, page_socket(credentials, dashboard_port, wanted=dashboard))


def down(
    shared: Shared = SHARED,
    drain_seconds: Annotated[
        float,
        typer.Option(
            metavar="X",
            parser=number,
            help="How long workers may take to finish their tasks. Unfinished ones are saved, "
            "and continue after the next `downpour up`.",
        ),
    ] = 0.0,
    *,
    service: Annotated[
        bool, typer.Option("--service", help="Stop and remove this machine's services instead.")
    ] = False,
) -> None:
    """Stop a cluster that keeps running.

    The command returns when all processes of the cluster are gone. You can run it on any machine
    that has the shared directory. Experiments keep their state. If no cluster is up, it does
    nothing, with exit status 0.
    """
    from downpour.cluster.launchers import systemd
    from downpour.cluster.launchers.supervisor import stop

    if service:
        names = systemd.disable(str(shared.absolute()))
        note(f"stopped {', '.join(names)}" if names else f"no service uses {shared}")
        return
    seconds = checked_seconds("drain_seconds", drain_seconds)
    folder = ClusterFiles(shared.absolute())
    is_kept = folder.is_kept()
    with err().status("stopping"):
        cluster = stop(folder, seconds)
    if cluster is None:
        note(f"no cluster is up in {shared}")
    elif not is_kept:
        note("the cluster's supervisor had died, and the rest with it")
    else:
        note(f"stopped {len(cluster.workers)} workers and their manager")


def _wanted(launching: Launching, workers: int | None, device: str) -> int:
    """Return the number of workers to start; here, one for each accelerator or core."""
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
    raise SpecError("workers", workers, f"must be given with --on {launching.on}")


def _keep(plan: LaunchPlan, launching: Launching, page: socket.socket | None) -> None:
    """Start a plan's supervisor, and tell the user how to give it work."""
    from downpour.cluster.launchers.supervisor import SupervisedPlan, missing, start
    from downpour.files.store import SharedDirectory

    shared = Path(plan.manager.shared)
    SharedDirectory.open(shared, create=True)
    with err().status("starting"):
        cluster = start(SupervisedPlan(on=launching.on, options=launching.options, plan=plan))
    late = missing(cluster, plan.workers)
    devices = f" on {', '.join(cluster.devices)}" if cluster.devices else ""
    say(f"manager at {cluster.manager}, {plan.workers} workers{devices}, shared directory {shared}")
    if late:
        where = f"`downpour ps` shows when they have, and {cluster.log} says why they wait"
        note(f"not registered yet: {', '.join(late)}; {where}")
    token = f" --token-file {shared / cluster.token_file}" if cluster.token_file else ""
    note(f"`downpour submit FILE --manager {cluster.manager}{token}` gives it work")
    if page is not None:
        _serve_page(plan, page)


def _check_place(
    launching: Launching, *, host: str | None, service: bool, wants_page: bool
) -> None:
    """Refuse options that need --on local, or that services cannot have."""
    for name, value in {"host": host, "service": service}.items():
        if value and launching.on != "local":
            raise SpecError(name, value, "works only on this machine, so it needs --on local")
    if service and wants_page:
        accepted = "cannot be combined with --service; run `downpour dashboard` for a page"
        raise SpecError("dashboard", value=True, accepted=accepted)


def _check_manager(metrics_port: int | None, *, is_wanted: bool, service: bool) -> None:
    """Refuse workers without a manager except as services, and metrics without a manager."""
    if not is_wanted and not service:
        raise SpecError("no_manager", value=True, accepted="needs --service")
    if metrics_port is None:
        return
    if not is_wanted:
        accepted = "the manager serves these metrics, and --no-manager starts none"
        raise SpecError("metrics_port", metrics_port, accepted)
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
    from downpour.cluster.launchers import systemd

    texts = systemd.units(plan, with_manager=with_manager)
    if dry_run:
        for name, text in texts.items():
            for line in (f"# {name}", *text.splitlines()):
                say(line)
        return
    for name in systemd.enable(plan, texts):
        say(name)
    if not systemd.linger():
        note("they end with your login until an administrator runs `loginctl enable-linger USER`")


_DEAD = 1
_ASK_SECONDS = 5.0


@with_credentials
def ps(shared: Shared = SHARED, *, as_json: AsJson = False, credentials: Credentials) -> None:
    """Show the processes of a cluster that keeps running.

    Each row has a process's machine, ID and state and, for a worker, its current task. The exit
    status is 1 if the process that keeps the cluster has died.
    """
    folder = ClusterFiles(shared.absolute())
    cluster, is_kept = folder.read(), folder.is_kept()
    rows = _processes(cluster, folder.root, credentials, is_kept=is_kept)
    if as_json:
        about = asdict(cluster) | {"kept": is_kept} if cluster is not None else None
        print_json({"cluster": about, "processes": [asdict(row) for row in rows]})
    elif rows:
        out().print(_table(rows))
    else:
        say(f"no cluster is up in {shared}")
    if cluster is not None and not as_json:
        if cluster.trouble:
            say(f"the supervisor restarts it: {cluster.trouble}")
        if not is_kept:
            say("its supervisor has died, and the rest with it; `downpour up` restarts it")
    if cluster is not None and not is_kept:
        raise typer.Exit(_DEAD)


def _processes(
    cluster: ClusterInfo | None, root: Path, credentials: Credentials, *, is_kept: bool
) -> list[ClusterProcess]:
    """Return the processes, or none if neither a supervisor nor a manager answers."""
    from downpour.cluster.operations.cluster_processes import cluster_processes
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
    from downpour.network.discovery.managers import Managers
    from downpour.network.rpc import Trust

    managers = Managers(shared, None, Trust.load(credentials), timeout_seconds=_ASK_SECONDS)
    with suppress(DownpourError), managers.first() as client:
        managers.check(client)
        return client.status()
    return None


def _table(rows: Sequence[ClusterProcess]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from downpour.host.text import one_line

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
