"""The commands of upkeep: doctor and certs for machines, du and rm for shared directories."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from downpour.base import options as base
from downpour.base.errors import DownpourError, SpecError, Unreachable, require, size_in_words
from downpour.base.names import whole_id
from downpour.base.options import argument, flag, option
from downpour.cli import common, printing
from downpour.cli.common import SHARED, command, since_age
from downpour.cli.printing import err, note, out, print_json, say
from downpour.cluster.launchers.ssh_script import SshOptions, look_at, read_hosts
from downpour.host.paths import Credentials

if TYPE_CHECKING:
    from downpour.cluster.certificates import Issued
    from downpour.cluster.doctor import HostReport
    from downpour.cluster.launchers.ssh_script import Look
    from downpour.cluster.probes import Finding
    from downpour.experiments.housekeeping import DirectoryUsage, Housekeeper


_STYLES = {"ok": "green", "warning": "yellow", "failed": "red", "not checked": "dim"}
_MENDABLE = 2
_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _DoctorOptions:
    shared: Path | str = base.location()
    manager: str = option(
        "",
        "Check that this manager has the same shared directory.",
        "HOST:PORT",
        variable="DOWNPOUR_MANAGER",
        default="the one that leads there",
    )
    hosts: str | None = option(
        None,
        "Also check the hosts in this file, as `downpour run --on ssh` reads it.",
        "FILE",
        default="none",
    )
    ssh_config: str | None = option(
        None, "The configuration of ssh.", "FILE", default="~/.ssh/config"
    )
    as_json: bool = common.as_json()


@command
def doctor(options: _DoctorOptions, credentials: Credentials) -> None:
    """Check the shared directory, devices, and hosts by ssh.

    The command checks the shared directory as this machine sees it, and lets each accelerator
    compute a little. A failed check tells you what to change and sets the exit status to 2; a
    warning does not. The command takes a few seconds and leaves no files behind. For each host it
    shows the version, the clock's offset, and the free processors and memory. It also compares the
    hosts' shared folders and numeric classes.
    """
    from downpour.cluster.doctor import is_healthy

    reports = _reports(options.hosts, options.ssh_config, options.shared)
    findings = _findings(options.shared, options.manager, credentials)
    healthy = is_healthy(findings) and all(one.verdict != "failed" for one in reports)
    if options.as_json:
        checks = [{"check": name, **asdict(finding)} for name, finding in findings.items()]
        seen = {"hosts": [asdict(one) for one in reports]} if options.hosts else {}
        print_json({"healthy": healthy, "checks": checks, **seen})
    else:
        _print(findings, reports)
    if not healthy:
        raise typer.Exit(_MENDABLE)


def _reports(file: str | None, ssh_config: str | None, shared: Path | str) -> list[HostReport]:
    """Check the hosts of a file, if the user named one."""
    if file is None:
        if ssh_config is not None:
            raise SpecError("ssh_config", ssh_config, "needs --hosts")
        return []
    hosts = read_hosts(file)
    if not isinstance(shared, Path) or not shared.is_dir():
        raise SpecError("hosts", file, f"cannot be compared, because {shared} is no folder here")
    from downpour.cluster.doctor import judge

    with err().status(f"checking {len(hosts)} hosts"):
        options = SshOptions(ssh_config=ssh_config or "")
        return judge(look_at(hosts, options, shared.absolute(), numerics=True))


def _findings(shared: Path | str, manager: str, credentials: Credentials) -> Mapping[str, Finding]:
    from downpour.cluster.doctor import diagnose
    from downpour.network.discovery import managers_for
    from downpour.network.rpc import ManagerClient, Trust

    with ExitStack() as stack:

        def find() -> ManagerClient | None:
            trust = Trust.load(credentials)
            managers = managers_for(manager, shared, trust, timeout_seconds=_TIMEOUT_SECONDS)
            with suppress(Unreachable):
                client = managers.first()
                with suppress(DownpourError):
                    client.describe()
                    return stack.enter_context(client)
                # Of the leader's addresses, this machine may reach another one.
                return stack.enter_context(managers.another() or client)
            return None

        named = find() if manager else None
        shown = stack.enter_context(err().status("looking"))
        return diagnose(shared, named, lambda check: shown.update(f"checking: {check}"), find=find)


def _print(findings: Mapping[str, Finding], reports: Sequence[HostReport]) -> None:
    """Print the checks, then a row for each host, and below them a line for each problem."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("finding", overflow="fold")
    for name, finding in findings.items():
        text = Text(finding.seen)
        if finding.change:
            text.append(f"\n{finding.change}", style=_STYLES[finding.verdict])
        table.add_row(name, Text(finding.verdict, style=_STYLES[finding.verdict]), text)
    out().print(table)
    if not reports:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in ("host", "result", "slots", "version", "clock", "cores free", "memory free"):
        table.add_column(name, justify="left" if name in {"host", "result", "version"} else "right")
    for report in reports:
        look = report.look
        verdict = Text(report.verdict, style=_STYLES[report.verdict])
        seen = _seen(look) if look.version else ["–"] * 4
        table.add_row(look.host.name, verdict, str(look.host.slots), *seen)
    out().print(table)
    for report in reports:
        for problem in report.problems:
            change = f": {problem.change}" if problem.change else ""
            say(f"{report.look.host.name}: {problem.seen}{change}")


def _seen(look: Look) -> list[str]:
    idle = max(look.cores - look.load, 0.0)
    return [
        look.version,
        f"{look.ahead_seconds:+.1f} s",
        f"{idle:.0f} of {look.cores}",
        f"{look.memory_bytes / 2**30:.1f} GiB",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CertsOptions:
    names: tuple[str, ...] = argument(
        "A machine's names and IP addresses, separated by commas, such as "
        "first,first.lab,10.0.0.5; the first one names its files.",
        "NAME...",
    )
    folder: Path = option(Path("certs"), "The folder to write the files to.", "DIR", flag="--out")
    days: int = option(365, "How long the certificates are valid, in days.", "N")


@command
def certs(options: _CertsOptions) -> None:
    """Make certificates for mutual TLS, one for each machine.

    The first call in a folder also makes an authority. Later calls use it to add machines. The
    command never overwrites a file.
    """
    require("downpour certs", "certs")
    from downpour.cluster.certificates import issue

    issued = issue(options.names, options.folder, days=options.days)
    for line in _report(issued):
        say(line)


def _report(issued: Issued) -> list[str]:
    lines = []
    if issued.authority_is_new:
        signs = "its key, which signs certificates; no machine needs it"
        lines.append(f"{issued.authority}: the authority; every machine needs a copy")
        lines.append(f"{issued.authority_key}: {signs}")
    for files in issued.machines:
        until = f"valid until {files.until:%Y-%m-%d}"
        lines += [f"{files.certificate}: for {files.machine}; {until}", f"{files.key}: its key"]
    for files in issued.machines:
        three = {"cert": files.certificate, "key": files.key, "ca": issued.authority}
        paths = {word: shlex.quote(str(path)) for word, path in three.items()}
        options = " ".join(f"--tls-{word} {path}" for word, path in paths.items())
        variables = " ".join(f"DOWNPOUR_TLS_{word.upper()}={path}" for word, path in paths.items())
        lines += ["", f"On {files.machine.names[0]}, as options of every command:", ""]
        lines += [f"    {options}", "", "or in its environment:", "", f"    export {variables}"]
    return lines


_LARGEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _TidyOptions:
    shared: Path | str | None = option(
        None,
        "The shared directory or object store.",
        "DIR|URL",
        variable="DOWNPOUR_SHARED",
        default="./shared_dir",
        reads="location",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DuOptions(_TidyOptions):
    as_json: bool = common.as_json()


@command
def du(options: _DuOptions) -> None:
    """Show what takes room in the shared directory.

    The largest come first. For each experiment, the table shows its models, and the states that
    only `--resume` needs: those of optimizers, and earlier versions. `downpour rm` removes them.
    A file with two names counts once.
    """
    with _housekeeper(options.shared) as keeper:
        found = keeper.usage()
    if options.as_json:
        printing.print_json(asdict(found))
        return
    _print_usage(found)


def _print_usage(usage: DirectoryUsage) -> None:
    """Print the largest experiments and datasets, and the sums."""
    from downpour.show.tables.terminal_tables import text_table

    largest, data = usage.experiments[:_LARGEST], usage.datasets[:_LARGEST]
    days = (time.strftime("%Y-%m-%d", time.localtime(one.changed_seconds)) for one in largest)
    experiments = [
        ("experiment", [one.experiment for one in largest]),
        ("state", [one.state for one in largest]),
        ("changed", [*days]),
        ("models", [size_in_words(one.models_bytes) for one in largest]),
        ("states", [size_in_words(one.states_bytes) for one in largest]),
        ("other", [size_in_words(one.other_bytes) for one in largest]),
    ]
    users = (len(one.experiments) for one in data)
    datasets = [
        ("dataset", [one.key for one in data]),
        ("size", [size_in_words(one.total_bytes) for one in data]),
        ("used by", [f"experiments: {count}" if count else "no experiment" for count in users]),
    ]
    for columns in filter(lambda columns: columns[0][1], (experiments, datasets)):
        printing.out().print(text_table(columns, names={"state", "changed", "used by"}))
    total = size_in_words(usage.total_bytes)
    ending = f"{total} in all, {size_in_words(usage.logs_bytes)} of it logs"
    if more := len(usage.experiments) + len(usage.datasets) - len(largest) - len(data):
        ending += f"; {more} smaller ones are not shown (--json has all)"
    if usage.free_bytes is not None:
        ending += f"; {size_in_words(usage.free_bytes)} free"
    say(ending)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RmOptions(_TidyOptions):
    experiments: tuple[str, ...] = argument(
        "Experiments' IDs, or their beginnings if no others begin so.", "ID", ()
    )
    older: str = option(
        "",
        "Remove all experiments whose last change is older than this: 12h or 30d.",
        "AGE",
        default=False,
    )
    unused_data: bool = flag("Remove the prepared datasets that no experiment has used.")
    states: bool = flag(
        "Keep the experiments with their models; remove only the states that --resume needs."
    )
    unfinished: bool = flag("Remove also experiments that --resume or a manager could continue.")
    dry_run: bool = flag("Only say what would go.")


@command
def rm(options: _RmOptions) -> None:
    """Remove experiments that have ended, and unused datasets.

    The command never removes what a running or waiting experiment needs, and managers may run
    meanwhile. It refuses an experiment that --resume could continue, unless you add --unfinished;
    --older leaves such experiments there. If it refuses one of several IDs, it removes nothing.
    """
    if not (options.experiments or options.older or options.unused_data):
        raise SpecError("ID", None, "name experiments, or give --older or --unused-data")
    before = since_age("older", options.older)
    with _housekeeper(options.shared) as keeper:
        # An empty word, such as an unset variable, begins every ID.
        ids = keeper.experiments
        names = [whole_id(begin, ids if begin else ()) for begin in options.experiments]
        for name in names:
            keeper.check(name, unfinished=options.unfinished)
        if options.older:
            names += _removable(keeper, before, names, unfinished=options.unfinished)
        freed = sum([_remove(keeper, name, options) for name in names])
        for data in keeper.unused_data() if options.unused_data else ():
            freed += data.total_bytes if options.dry_run else keeper.remove_data(data.key)
            say(f"{data.key}: {size_in_words(data.total_bytes)}")
    verb = "would free" if options.dry_run else "freed"
    note(f"{verb} {size_in_words(freed)}")


def _removable(
    keeper: Housekeeper, before: float, besides: Sequence[str], *, unfinished: bool
) -> list[str]:
    """Return the old experiments that may go; say how many of them may not."""
    names, stay = list[str](), dict[str, str]()
    for name in keeper.older_than(before):
        try:
            keeper.check(name, unfinished=unfinished)
        except SpecError as error:
            stay[name] = error.accepted
        else:
            names += [name] if name not in besides else []
    for name, why in stay.items():
        note(f"{name} stays: {why}")
    return names


def _remove(keeper: Housekeeper, name: str, options: _RmOptions) -> int:
    """Remove an experiment or its states, and say so; returns how many bytes that frees."""
    if not options.dry_run:
        size = keeper.remove_states(name) if options.states else keeper.remove(name)
    else:
        use = keeper.usage_of(name)
        size = use.states_bytes if options.states else use.total_bytes
        if not options.states:
            keeper.forget(name)
    say(f"{name}{' (states)' if options.states else ''}: {size_in_words(size)}")
    return size


@contextmanager
def _housekeeper(location: Path | str | None) -> Iterator[Housekeeper]:
    from downpour.experiments.housekeeping import Housekeeper
    from downpour.files.store.directory import names_in
    from downpour.files.store.shared_directory import seen_location
    from downpour.record.stored_experiments import stored_records

    shared = seen_location(location or SHARED)
    if shared.bucket is None:
        names_in(shared.root)  # a missing folder is refused in one line
    with stored_records(shared) as records:  # from a bucket, copies of them
        yield Housekeeper(shared, records)
