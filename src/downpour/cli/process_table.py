"""`downpour ps`: the processes of a cluster, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from downpour.base.errors import DownpourError
from downpour.cli.options import (
    SHARED,
    AsJson,
    Shared,
)
from downpour.cli.printing import out, print_json, say
from downpour.cli.trust_options import with_credentials
from downpour.cluster.launchers.cluster_files import ClusterFiles, ClusterInfo
from downpour.host.credentials import TOKEN_NAME, Credentials

if TYPE_CHECKING:
    from rich.table import Table

    from downpour.cluster.operations.cluster_processes import ClusterProcess
    from downpour.files.store import SharedDirectory
    from downpour.network.rpc.messages import Status


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
    from downpour.files.store.leaders import leader_of

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
