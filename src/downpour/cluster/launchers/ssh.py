"""Runs workers on other machines by ssh: each has a connection, which is also its tether."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from downpour.base.errors import LaunchError
from downpour.base.values import merged, missing
from downpour.cluster.launchers.base import Launcher, LaunchPlan
from downpour.cluster.launchers.cluster import PlacedCluster
from downpour.cluster.launchers.kinds import LauncherKind
from downpour.cluster.launchers.slurm import reachable_host
from downpour.cluster.launchers.ssh_script import (
    Host,
    SshOptions,
    command,
    look_at,
    read_hosts,
    refuse_unfit,
    worker_script,
)
from downpour.cluster.launchers.tether import TetheredWorkers
from downpour.cluster.options import training_environment


def on_ssh(options: SshOptions | None = None) -> Launcher:
    """Return a launcher that uses ssh, for `downpour.run(spec, on=on_ssh(options))`."""
    return lambda plan: PlacedCluster(plan, SshEngine(options or SshOptions()))


class SshEngine(TetheredWorkers):
    """Starts each worker with a separate ssh, whose input it holds open for as long as it runs."""

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        hosts = read_hosts(options.hosts)
        super().__init__(hosts, lambda host, script: command(host, options, script))
        self.manager_host = options.manager_host or "127.0.0.1"

    def check(self, plan: LaunchPlan) -> None:
        """Look at the hosts that meet the plan's needs, and learn how they reach this machine."""
        # Import it here: help texts import this module, and must not wait for numpy.
        from downpour.files.store import SharedDirectory

        self._leave_out_unfit(plan)
        slots = sum(host.slots for host in self.hosts)
        if plan.workers > slots:
            where = f" on hosts with {' and '.join(plan.needs)}" if plan.needs else ""
            reason = f"{plan.workers} workers, but {self._options.hosts} has slots for {slots}"
            raise LaunchError(reason + where, asked_wrongly=True)
        shared = Path(plan.manager.shared)
        SharedDirectory.open(shared, create=True)
        looks = look_at(self.hosts, self._options, shared)
        refuse_unfit(looks)
        if not self._options.manager_host:
            self.manager_host = address_seen(look.caller for look in looks)

    def planned(self, plan: LaunchPlan) -> str:
        """Return the commands of a plan's workers; the manager's address is not known yet."""
        self._leave_out_unfit(plan)
        placed: list[Host] = []
        for _ in range(plan.workers):
            placed.append(self.free_host(placed))
        address = f"{self._options.manager_host or 'ADDRESS'}:PORT"
        environment = training_environment(plan.threads)
        texts = []
        for number, host in enumerate(placed, start=1):
            words = command(host, self._options, "")[:-1]
            slot = placed[: number - 1].count(host)
            worker = replace(plan.worker(number, address), place=slot)
            script = worker_script(worker, host, environment)
            texts.append(f"# {' '.join(words)} /bin/sh\n{script}")
        return "\n".join(texts)

    def _leave_out_unfit(self, plan: LaunchPlan) -> None:
        """Keep the hosts whose workers meet all needs; every worker also has the plan's labels."""
        fit = (
            one for one in self.hosts if not missing(merged(plan.labels, one.labels), plan.needs)
        )
        self.hosts = tuple(fit)


def address_seen(callers: Iterable[str]) -> str:
    """Return the address at which hosts reach this machine, out of the addresses that they see.

    A host behind a jump host sees the jump host's address, so only this machine's addresses count.
    """
    seen = [caller for caller in callers if _is_ours(caller)]
    elsewhere = [caller for caller in seen if caller not in {"127.0.0.1", "::1"}]
    return next(iter([*elsewhere, *seen]), "") or reachable_host()


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as one:
        one.bind((address, 0))
        return bool(address)
    return False


def _make(options: SshOptions) -> Launcher:
    read_hosts(options.hosts)  # now, before a shared directory is made
    return on_ssh(options)


KIND = LauncherKind(
    title="SSH",
    options=SshOptions,
    make=_make,
    planned=lambda options, plan: SshEngine(options).planned(plan),
    labels=lambda options: [host.labels for host in read_hosts(options.hosts)],
)
