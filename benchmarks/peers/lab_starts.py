"""How each system is started on the hosts of a lab: what its documentation has a user type, where.

Each system has a function that yields the commands of its user: a host, and a command line for it.
A system with one command reaches the other hosts by itself.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peers.job import BATCH, MOMENTUM, RATE, TESTED
from peers.known import PEERS, environment_of

if TYPE_CHECKING:
    from tests.lab.hosts import LabHost
    from tests.lab.lab import Lab

Typed = tuple["LabHost", list[str]]
Starts = Callable[["Lab", str, Sequence[str]], Iterator[Typed]]
"""Takes a lab, the Python of the system's environment and the options of a script, and yields the
commands that a user types."""

_SCRIPTS = Path(__file__).parent
_PORT = 29_500
_FLOWER_PORT = 8000
_FLAGS = ("--look", "--padded")
_OUT = _SCRIPTS.parent / "out" / "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """How a user starts a system in the lab, and which peer's environment it needs.

    A system with one command starts on all hosts at once, so none of them can join late. Downpour
    needs the shared folder.
    """

    typed: Starts
    environment: str = ""
    one_command: bool = False
    is_downpour: bool = False

    @property
    def python(self) -> str:
        """The Python of the system's environment, which is made if it is missing."""
        known = {peer.name: peer for peer in PEERS}
        if not self.environment:
            return sys.executable
        return str(environment_of(known[self.environment], _OUT))


def torchrun(script: str) -> Starts:
    """Type torchrun's command on every host, each with its rank."""

    def typed(lab: Lab, python: str, words: Sequence[str]) -> Iterator[Typed]:
        hosts = list(lab)
        for rank, host in enumerate(hosts):
            start = [python, "-m", "torch.distributed.run", "--nnodes", str(len(hosts))]
            start += ["--node-rank", str(rank), "--nproc-per-node", "1"]
            start += ["--master-addr", hosts[0].address, "--master-port", str(_PORT)]
            yield host, [*start, str(_SCRIPTS / script), *words, *_FLAGS]

    return typed


def mpirun(lab: Lab, python: str, words: Sequence[str]) -> Iterator[Typed]:
    """Type MPICH's command on the first host; it reaches the others by ssh."""
    hosts = list(lab)
    start = [str(Path(python).with_name("mpirun")), "-launcher", "ssh", "-np", str(len(hosts))]
    start += ["-hosts", ",".join(host.name for host in hosts), "-localhost", hosts[0].address]
    yield hosts[0], [*start, python, str(_SCRIPTS / "mpi.py"), *words, *_FLAGS]


def replica_groups(lab: Lab, python: str, words: Sequence[str]) -> Iterator[Typed]:
    """Type torchft's lighthouse on the first host, and a replica group on every one."""
    first = next(iter(lab))
    lighthouse = str(Path(python).with_name("torchft_lighthouse"))
    yield first, [lighthouse, "--bind", f"[::]:{_PORT}", "--min_replicas", "1"]
    for number, host in enumerate(lab):
        variables = [f"REPLICA_GROUP_ID={number}"]
        variables += [f"TORCHFT_LIGHTHOUSE=http://{first.address}:{_PORT}"]
        variables += [f"TORCHFT_HOST={host.address}"]
        script = [python, str(_SCRIPTS / "torchft_groups.py"), *words, *_FLAGS]
        yield host, ["env", *variables, *script]


def ray_cluster(lab: Lab, python: str, words: Sequence[str]) -> Iterator[Typed]:
    """Type `ray start` on every host, and the script on the first."""
    first, *others = lab
    ray = [python, "-m", "ray.scripts.scripts", "start"]
    one = ["--num-cpus", "1", "--block"]
    head = ["--head", "--port", "6379", "--include-dashboard", "false"]
    yield first, [*ray, *head, "--node-ip-address", first.address, *one]
    there = f"bash -c 'exec 3<>/dev/tcp/{first.address}/6379' 2>/dev/null"
    for host in others:
        address = ["--address", f"{first.address}:6379", "--node-ip-address", host.address]
        # It gives up after 30 s, and is typed again: all hosts of the lab share two cores.
        again = f"until {shlex.join([*ray, *address, *one])}; do sleep 1; done"
        yield host, _once(there, ["sh", "-c", again])
    script = ["env", f"RAY_ADDRESS={first.address}:6379"]
    script += [python, str(_SCRIPTS / "ray_train.py"), *words, *_FLAGS]
    yield first, _once(there, script)


def flower_federation(lab: Lab, python: str, words: Sequence[str]) -> Iterator[Typed]:
    """Type a SuperLink on the first host, a SuperNode on every one, and `flwr run` on the first."""
    first = next(iter(lab))
    programs = Path(python).parent
    address = f"{first.address}:{_FLOWER_PORT}"
    _connection(first.home, address)
    yield first, [str(programs / "flower-superlink"), "--insecure", "--host", first.address]
    for number, host in enumerate(lab):
        node = [str(programs / "flower-supernode"), "--insecure", "--superlink", address]
        yield host, [*node, "--node-config", f"partition-id={number}"]
    asked = dict(zip(words[::2], words[1::2], strict=True))
    settings = " ".join(f"{name.removeprefix('--')}={value}" for name, value in asked.items())
    run = [str(programs / "flwr"), "run", str(_SCRIPTS / "flower_app"), "lab", "--stream"]
    there = f"bash -c 'exec 3<>/dev/tcp/{first.address}/{_FLOWER_PORT}' 2>/dev/null"
    yield first, _once(there, [*run, "--run-config", settings])


def _connection(home: Path, address: str) -> None:
    """Write where `flwr run` finds the SuperLink, as its user would."""
    file = home / ".flwr" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'[superlink.lab]\naddress = "{address}"\ninsecure = true\n')


def downpour_run(settings: Mapping[str, object]) -> Starts:
    """Type one command on the first host, which reaches the others by ssh."""

    def typed(lab: Lab, python: str, words: Sequence[str]) -> Iterator[Typed]:
        hosts = list(lab)
        where = ["--on", "ssh", "--hosts", str(lab.hosts_file), "--workers", str(len(hosts))]
        spec = _spec(lab, words, settings)
        command = [python, "-m", "downpour", "run", spec, *where, "--shared", str(lab.folder)]
        yield hosts[0], command

    return typed


def downpour_cluster(lab: Lab, python: str, words: Sequence[str]) -> Iterator[Typed]:
    """Type a manager on the first host, its successor on the second, and a worker on each."""
    first, second = list(lab)[:2]
    shared = ["--shared", str(lab.folder)]
    token = [*shared, "--token-file", str(lab.folder / "token")]
    command = [python, "-m", "downpour"]
    there = f"test -e {shlex.quote(str(lab.folder / 'token'))}"
    yield first, [*command, "manager", "--host", first.address, *shared, "--make-token"]
    successor = [*command, "manager", "--host", second.address, *token, "--successor"]
    yield second, _once(there, successor)
    yield second, _once(there, [*command, "submit", _spec(lab, words, {}), "--watch", *token])
    for host in lab:
        yield host, _once(there, [*command, "worker", *token])


def _spec(lab: Lab, words: Sequence[str], settings: Mapping[str, object]) -> str:
    """Write the file of a spec with what every system is asked for; returns where it is.

    Its batches are those of one worker, so all workers share one of `BATCH`, as DDP's do.
    """
    asked = dict(zip(words[::2], words[1::2], strict=True))
    workers = int(asked["--workers"])
    fields: dict[str, object] = {
        "dataset": "mnist",
        "model": "padded:build",
        "train_limit": int(asked["--examples"]),
        "test_limit": TESTED,
        "batch_size": BATCH // workers,
        "learning_rate": RATE,
        "momentum": MOMENTUM,
        "epochs": int(asked["--epochs"]),
        "shards": workers,
        "seed": int(asked["--seed"]),
        **settings,
    }
    file = lab.path / "spec.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items()))
    return str(file)


def _once(condition: str, command: Sequence[str]) -> list[str]:
    """Return a command that waits until something is there, as a user would."""
    waiting = f"until {condition}; do sleep 0.2; done; exec {shlex.join(command)}"
    return ["sh", "-c", waiting]


FEW_BYTES = {"compression": "terngrad", "model_compression": "terngrad"}
"""Downpour's settings for slow networks, which are not its defaults."""
SYSTEMS: Mapping[str, Starter] = {
    "ddp": Starter(typed=torchrun("ddp.py")),
    "local-sgd": Starter(typed=torchrun("local_sgd.py")),
    "mpi4py": Starter(typed=mpirun, environment="mpi4py", one_command=True),
    "torchft": Starter(typed=replica_groups, environment="torchft"),
    "ray-train": Starter(typed=ray_cluster, environment="ray-train"),
    "flower": Starter(typed=flower_federation, environment="flower"),
    "downpour": Starter(typed=downpour_run({}), one_command=True, is_downpour=True),
    "downpour-few-bytes": Starter(
        typed=downpour_run(FEW_BYTES), one_command=True, is_downpour=True
    ),
    "downpour-often": Starter(typed=downpour_run({"meet": 10}), one_command=True, is_downpour=True),
    "downpour-cluster": Starter(typed=downpour_cluster, is_downpour=True),
}
