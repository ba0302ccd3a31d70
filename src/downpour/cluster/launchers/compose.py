"""Runs workers as containers of a compose file, and the manager where the command runs.

Each container is on a tether (`ssh.py`): the `docker compose run` that started it holds its
shell's input open, so the container ends with the launcher. The compose file decides a worker's
image, limits and volumes; the volume at /shared is this machine's shared directory.
"""

import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from downpour.base.errors import LaunchError, last_line
from downpour.base.names import checked_calls
from downpour.base.options import option
from downpour.cluster.launchers import Launcher, LauncherKind, LaunchPlan, cluster, ssh, ssh_script
from downpour.cluster.options import WorkerOptions, training_environment
from downpour.host.child import LastWill
from downpour.host.paths import FILES

SERVICE = "worker"
DEFAULT_FILE, DEFAULT_IMAGE = "docker/compose.yaml", "downpour"
_PORT = 9091
"""The port at which the file's health check expects a worker; each container has its own ports."""
_THERE = ssh_script.Host("container", slots=ssh_script.SLOTS_MAX, python="python", shared="/shared")
_TRIES = 10
"""The last will's attempts, 3 s apart: they take half a minute of a worker's one-minute lease."""
_ANSWER_SECONDS = 60.0
_COMPOSE = ("docker", "compose"), ("docker-compose",)


@checked_calls
@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeOptions:
    """The compose file that has the service `worker`, and the image of its containers.

    `image` sets the file's DOWNPOUR_IMAGE; empty: the environment's, or else `downpour`.
    """

    compose_file: str = option(
        DEFAULT_FILE,
        "The compose file; its service `worker` describes a worker's container.",
        "FILE",
        path=True,
    )
    image: str = option(
        "",
        "The containers' image; the compose file gets it as DOWNPOUR_IMAGE.",
        "NAME",
        default=f"DOWNPOUR_IMAGE, or {DEFAULT_IMAGE}",
    )


def on_compose(options: ComposeOptions | None = None) -> Launcher:
    """Return a launcher of containers, for `downpour.run(spec, on=on_compose(options))`."""
    return lambda plan: cluster.PlacedCluster(plan, ComposeEngine(options or ComposeOptions()))


def variables(plan: LaunchPlan, options: ComposeOptions) -> dict[str, str]:
    """Return the compose file's variables: the image, the folder, and the user who writes there."""
    return {
        "DOWNPOUR_IMAGE": image_of(options),
        "DOWNPOUR_SHARED": str(Path(plan.manager.shared).absolute()),
        "DOWNPOUR_USER": os.environ.get("DOWNPOUR_USER") or f"{os.getuid()}:{os.getgid()}",
    }


def image_of(options: ComposeOptions) -> str:
    """Return the name of the image."""
    return options.image or os.environ.get("DOWNPOUR_IMAGE") or DEFAULT_IMAGE


def command(project: Sequence[str], script: str) -> list[str]:
    """Return the command line that runs a script in a new container, and then removes it."""
    # Blank the variables by which other managers' workers find theirs. The script has our values.
    blank = [word for name in ("DOWNPOUR_MANAGER", *FILES.values()) for word in ("-e", f"{name}=")]
    shell = ["--entrypoint", "/bin/sh -c", SERVICE, script]
    return [*project, "run", "--rm", "-T", "--no-deps", *blank, *shell]


class ComposeEngine(ssh.TetheredWorkers):
    """Starts each worker as a container of a project that ends with the cluster."""

    def __init__(self, options: ComposeOptions) -> None:
        self._options = options
        self._name = f"downpour-{secrets.token_hex(4)}"
        self._compose: tuple[str, ...] = _COMPOSE[0]
        self._variables: dict[str, str] = {}
        self._last_will: LastWill | None = None
        self.manager_host = "127.0.0.1"
        super().__init__([_THERE], lambda _, script: self._started(script))

    @property
    def _project(self) -> list[str]:
        return [*self._compose, "-p", self._name, "-f", self._options.compose_file]

    def check(self, plan: LaunchPlan) -> None:
        """Check that Docker has everything that a worker needs, and make the project's network."""
        if not Path(self._options.compose_file).is_file():
            reason = "no such file; the repository has one in docker/"
            raise _wrong(f"compose_file = {self._options.compose_file!r}: {reason}")
        _refuse_unseen(plan)
        self._compose = _compose_command()
        _refuse_missing(image_of(self._options))
        self._variables = variables(plan, self._options)
        try:
            self._last_will = LastWill(self._will, self._environment)
            # Make the network now, because containers that start at once would each try to make it.
            made = ["up", "--no-start", "--no-deps", "--no-build", SERVICE]
            _asked([*self._project, *made], self._environment)
            self.manager_host = self._gateway()
        except BaseException:
            self._remove()
            raise

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path | int) -> None:
        """Start a worker in a separate container."""
        super().start(replace(worker, port=_PORT), environment, log)

    def close(self) -> None:
        """Tell all workers to leave, and remove the rest of the project."""
        try:
            super().close()
        finally:
            self._remove()

    def planned(self, plan: LaunchPlan) -> str:
        """Return the commands of a plan's workers; the manager's address is not known yet."""
        texts = [f"{name}={value}" for name, value in variables(plan, self._options).items()]
        environment = training_environment(plan.threads)
        for number in range(1, plan.workers + 1):
            worker = replace(plan.worker(number, "ADDRESS:PORT"), port=_PORT)
            script = ssh_script.worker_script(worker, _THERE, environment)
            texts.append(f"# {shlex.join(command(self._project, '')[:-1])} SCRIPT\n{script}")
        return "\n".join(texts)

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._variables}

    def _started(self, script: str) -> list[str]:
        told = [f"{name}={value}" for name, value in self._variables.items()]
        return ["env", *told, *command(self._project, script)]

    def _gateway(self) -> str:
        """Return the address of this machine in the project's network."""
        ours = f"label=com.docker.compose.project={self._name}"
        networks = _asked(["docker", "network", "ls", "--quiet", "--filter", ours]).split()
        gateway = "{{range .IPAM.Config}}{{println .Gateway}}{{end}}"
        for network in networks:
            found = _asked(["docker", "network", "inspect", network, "--format", gateway]).split()
            if found:
                return found[0]
        raise _wrong(
            "the project's network has no gateway, so containers cannot reach this machine"
        )

    @property
    def _down(self) -> list[str]:
        # `--volumes` removes the volume that the file names; a folder of this machine replaces it.
        return [*self._project, "down", "--volumes", "--remove-orphans", "--timeout", "5"]

    @property
    def _will(self) -> str:
        # Repeat it until it succeeds: other commands remove the workers' containers at the same
        # time, and `down` stops at the first container that one of them removes.
        tries = " ".join(map(str, range(_TRIES)))
        return f"for try in {tries}; do {shlex.join(self._down)} && break; sleep 3; done"

    def _remove(self) -> None:
        _asked(self._down, self._environment)
        if self._last_will is not None:
            self._last_will.revoke()


def _compose_command() -> tuple[str, ...]:
    """Return the command of compose's second version if it is installed, else of the first."""
    if shutil.which("docker") is None:
        raise _wrong("`docker` is missing here: install Docker and its plugin compose")
    for words in _COMPOSE:
        with suppress(LaunchError):
            _asked([*words, "version"])
            return words
    raise _wrong("`docker compose` and `docker-compose` are missing here: install one of them")


def _refuse_missing(image: str) -> None:
    _asked(["docker", "version", "--format", "{{.Server.Version}}"])
    found = _asked(["docker", "image", "ls", "--quiet", image])
    if not found.strip():
        built = f"docker build -f docker/Dockerfile -t {image} ."
        raise _wrong(f"the image {image} is missing: `{built}` builds it")


def _refuse_unseen(plan: LaunchPlan) -> None:
    """Refuse credentials that a container would not find."""
    shared = Path(plan.manager.shared)
    for name in FILES:
        file = getattr(plan.manager.credentials, name)
        if file and not Path(file).is_relative_to(shared):
            raise _wrong(
                f"{name} = {file!r}: must be in {shared}, because containers only see that folder"
            )


def _asked(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command of Docker; raises LaunchError with Docker's message if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - words of this package
            words, env=environment, capture_output=True, check=False, timeout=_ANSWER_SECONDS
        )
    except FileNotFoundError:
        raise _wrong(f"`{words[0]}` is missing here") from None
    except subprocess.TimeoutExpired:
        raise _wrong(f"`{' '.join(words[:3])}` does not answer: is Docker running?") from None
    if done.returncode:
        reason = last_line(done.stderr.decode(errors="replace"))
        raise _wrong(reason or f"`{' '.join(words[:3])}` fails: is Docker running?")
    return done.stdout.decode(errors="replace")


def _wrong(reason: str) -> LaunchError:
    return LaunchError(reason, asked_wrongly=True)


KIND = LauncherKind(
    title="Compose",
    options=ComposeOptions,
    make=on_compose,
    planned=lambda options, plan: ComposeEngine(options).planned(plan),
)
