"""Real clusters in containers: an image that is built once, and compose projects of it.

What a machine lacks is had through the tools beside the repository where they are, else the tests
are skipped with the reason in one line. Every project has a name of its own, and nothing of it
stays: no container, network or volume. The image does, for its layers make the next build quick.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from downpour.base.errors import DownpourError
from downpour.core.spec import Spec
from downpour.files.spec_file import read_spec
from downpour.host.paths import Credentials
from downpour.network.rpc import ManagerClient, Trust, parse_address
from downpour.network.rpc.messages import Status
from tests.cluster.packages import alone, installed

ROOT = Path(__file__).parents[3]
BESIDE = ROOT.parent / "shared"
BASE_IMAGE = "python:3.11-slim"
IMAGE = "downpour:test"
FILES = ("LICENSE", "README.md", "pyproject.toml", ".dockerignore")

EXAMPLE = "examples/mnist.toml"
CHANGES: Mapping[str, int | float] = {
    "train_limit": 3600,
    "test_limit": 1000,
    "shards": 6,
    "epochs": 3,
    "batch_size": 16,
    "learning_rate": 0.02,
    "momentum": 0.9,
}
"""What the example is cut down to, so that it takes seconds and still learns."""

OPTIONS = [
    word for key, value in CHANGES.items() for word in ("--" + key.replace("_", "-"), str(value))
]


def small_mnist() -> Spec:
    """The same experiment as the command line makes of EXAMPLE and OPTIONS."""
    return read_spec(ROOT / EXAMPLE).replace(**CHANGES)


def run(*words: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command that must succeed; returns what it wrote to standard output."""
    surroundings = {**os.environ, **(environment or {})}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=surroundings)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def docker(*words: str | Path) -> str:
    """Run a command of Docker that must succeed."""
    return run("docker", *words).strip()


def succeeds(*words: str | Path) -> bool:
    """Whether a command is there and succeeds."""
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def inspected_until(form: str, wanted: str, containers: list[str]) -> None:
    """Wait until that is what Docker says of each of the containers."""
    seen: list[str] = []
    for _ in range(600):
        seen = docker("inspect", "-f", form, *containers).splitlines()
        if set(seen) == {wanted}:
            return
        Event().wait(0.2)
    raise AssertionError(f"{form} never became {wanted}: {seen}")


@dataclass(frozen=True)
class Project:
    """A manager and workers in containers, by the repository's own compose file."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    closing: ExitStack

    def compose(self, *words: str) -> str:
        file = str(ROOT / "docker/compose.yaml")
        command = (*self.command, "-f", file, "-p", self.name, *words)
        return run(*command, environment=self.environment)

    def up(self, workers: int) -> None:
        """Bring up so many workers, and wait until the manager has them all."""
        self.compose("up", "-d", "--no-build", "--scale", f"worker={workers}")
        self.status_when(lambda status: len(status.workers) == workers)

    def containers(self, service: str) -> list[str]:
        """The short identifiers of a service's containers, running or not."""
        labels = {"project": self.name, "service": service}
        filters = [f"--filter=label=com.docker.compose.{key}={labels[key]}" for key in labels]
        return docker("ps", "--all", "--quiet", *filters).split()

    @property
    def manager(self) -> str:
        return self.containers("manager")[0]

    @property
    def network(self) -> str:
        """The network that the containers share."""
        return self._own("network")

    @property
    def volume(self) -> str:
        """The volume that the containers share."""
        return self._own("volume")

    def _own(self, kind: str) -> str:
        return docker(kind, "ls", "-q", f"--filter=label=com.docker.compose.project={self.name}")

    @property
    def token(self) -> str:
        """What the manager has made for all of them."""
        return docker("exec", self.manager, "cat", "/shared/token")

    @cached_property
    def client(self) -> ManagerClient:
        """A client on this machine, which reaches the containers' network."""
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        host = docker("inspect", "-f", form, self.manager)
        trust = Trust.load(Credentials(token=self.token))
        client = ManagerClient(parse_address(f"{host}:9090", field="manager"), trust=trust)
        self.closing.callback(client.close)
        return client

    def restart_manager(self) -> None:
        """Kill the manager's container and start it again; returns when it answers."""
        docker("kill", self.manager)
        docker("start", self.manager)
        for _ in range(600):
            self.__dict__.pop("client", None)  # it may come back under another address
            with suppress(DownpourError):
                self.client.status("", 0, 0.0)
                return
            Event().wait(0.1)
        raise AssertionError("the manager does not answer again")

    def status_when(self, holds: Callable[[Status], bool], experiment: str = "") -> Status:
        """Wait for the manager's status to satisfy a condition."""
        change = 0
        for _ in range(2000):
            status = self.client.status(experiment, change, 5.0)
            change = status.change
            if holds(status):
                return status
        raise AssertionError(f"never happened; last seen: {status}")

    def finished(self, experiment: str) -> None:
        """Wait until an experiment has ended, well."""
        end = self.status_when(
            lambda s: s.experiment is not None and s.experiment.state.ended, experiment
        ).experiment
        assert end is not None
        assert end.state == "finished", end.reason

    def record(self, experiment: str) -> list[dict[str, Any]]:
        lines: list[str] = []
        while page := self.client.results(experiment, len(lines), 0.0).lines:
            lines += page
        return [json.loads(line) for line in lines]

    def model(self, experiment: str) -> bytes:
        file = f"/shared/experiments/{experiment}/model.safetensors"
        words = ["docker", "exec", self.manager, "cat", file]
        return subprocess.run(words, capture_output=True, check=True).stdout


@dataclass(frozen=True)
class Outcome:
    """A run in containers: its name, what the client printed, and the model's bytes."""

    experiment: str
    printed: str
    model: bytes


Projects = Callable[..., AbstractContextManager[Project]]
"""Makes a project, with variables for its compose file."""


@pytest.fixture(scope="session")
def engine() -> None:
    """A Docker engine that has the base image, or may fetch it by itself."""
    if sys.platform != "linux":
        pytest.skip("containers' addresses can be reached only on Linux")
    tool = BESIDE / "tools/docker_base.sh"
    if tool.exists() and os.geteuid() == 0 and not succeeds("docker", "inspect", BASE_IMAGE):
        with alone():
            run(tool)
    if not succeeds("docker", "version"):
        pytest.skip("no Docker engine answers")


@pytest.fixture(scope="session")
def compose_command(engine: None) -> tuple[str, ...]:
    """The second version of compose where it is there, else the first."""
    del engine
    known = ("docker", "compose"), ("docker-compose",)
    found = [command for command in known if succeeds(*command, "version")]
    if not found and installed("docker-compose"):
        found = [command for command in known if succeeds(*command, "version")]
    if not found:
        pytest.skip("neither `docker compose` nor `docker-compose` is there")
    return found[0]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """A folder that has MNIST."""
    places = [Path(os.environ.get("DOWNPOUR_DATA") or BESIDE / "data"), BESIDE / "data"]
    for place in places:
        if (place / "MNIST/raw").is_dir():
            return place.resolve()
    pytest.skip("no MNIST: DOWNPOUR_DATA names no folder that holds MNIST/raw")


@pytest.fixture(scope="session")
def image(engine: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of this repository, with the wheel of torch that this machine has, if any."""
    del engine
    context = tmp_path_factory.mktemp("context")
    for name in FILES:
        shutil.copy(ROOT / name, context)
    for name in ("src", "docker"):
        shutil.copytree(ROOT / name, context / name, ignore=shutil.ignore_patterns("*.whl"))
    wheel = _torch_wheel()
    if wheel is not None:
        shutil.copy(wheel, context / "docker/wheels")
    version = f"=={wheel.name.split('-')[1]}" if wheel else ""
    file = context / "docker/Dockerfile"
    # The first of several processes takes minutes; the others then find its layers.
    with alone("image"):
        docker("build", "--build-arg", f"TORCH=torch{version}", "-t", IMAGE, "-f", file, context)
    return IMAGE


def _torch_wheel() -> Path | None:
    folders = os.environ.get("PIP_FIND_LINKS", "").split()
    wheels = [wheel for folder in folders for wheel in Path(folder).glob("torch-*-cp311-*.whl")]
    fitting = [wheel for wheel in wheels if re.search(r"linux.*_" + os.uname().machine, wheel.name)]
    return max(fitting, default=None)


@pytest.fixture(scope="session")
def projects(image: str, compose_command: tuple[str, ...], data_dir: Path) -> Projects:
    """Make projects; each is a context manager that leaves nothing behind."""

    @contextmanager
    def project(**variables: str) -> Iterator[Project]:
        name = f"downpour-test-{secrets.token_hex(4)}"
        environment = {"DOWNPOUR_IMAGE": image, "DOWNPOUR_DATA": str(data_dir), **variables}
        with ExitStack() as closing:
            made = Project(name, compose_command, environment, closing)
            closing.callback(made.compose, "down", "--volumes", "--timeout", "5")
            yield made

    return project


# Of a file, and no longer: the health checks of one that idles take a sixth of a core.
@pytest.fixture(scope="module")
def cluster(projects: Projects) -> Iterator[Project]:
    """A manager and five workers."""
    with projects() as project:
        project.up(workers=5)
        yield project


@pytest.fixture(scope="module")
def undisturbed(cluster: Project) -> Outcome:
    """The run that others are compared with, made as a user makes it."""
    printed = cluster.compose("run", "--rm", "-T", "submit", EXAMPLE, *OPTIONS)
    experiment = printed.split()[0]
    return Outcome(experiment, printed, cluster.model(experiment))
