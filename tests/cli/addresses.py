"""Which manager each command reaches, beside an unrelated cluster at the default port.

    python -m tests.cli.addresses

Three clusters serve in a network namespace of their own: `first` at the default port, `folder` at
another one, and `bucket` in an object store, with a token. Each command is given an address, a
folder or both, and the table says whose manager it reached. `docs/how-to/which-cluster.md` has
it.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from downpour import Client, Credentials
from tests.chaos import forked
from tests.chaos.stage import Process
from tests.files.objects.lab import S3Server

INSIDE = "DOWNPOUR_TESTS_INSIDE"
PYTHON = (
    "import downpour, sys\n"
    "with downpour.Client(connect_seconds=0) as client:\n"
    "    print(*[one.experiment for one in client.experiments()])\n"
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A manager that serves, and the one experiment that it knows."""

    name: str
    address: str
    shared: str
    experiment: str
    credentials: Credentials

    def experiments(self) -> list[str]:
        """Return the experiments that its manager knows by now."""
        with Client(self.address, credentials=self.credentials) as client:
            return [one.experiment for one in client.experiments()]

    def workers(self) -> list[str]:
        """Return the workers that it has."""
        with Client(self.address, credentials=self.credentials) as client:
            return [one.worker for one in next(client.watch()).workers]


@dataclass(frozen=True, slots=True)
class Given:
    """What a user's environment names, and whose manager is meant; empty: a refusal."""

    words: str
    environment: Mapping[str, str]
    meant: str
    says: tuple[str, ...] = ()


def why_not() -> str:
    """Say in one line why there can be no such namespace here; empty if there can."""
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return "" if made.returncode == 0 else f"needs network namespaces: {made.stderr.strip()}"


def matrix() -> str:
    """Return the table, made in a network namespace of its own, where all ports are free."""
    words = f"{sys.executable} -m tests.cli.addresses"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", f"ip link set lo up && exec {words}"],
        env={**os.environ, INSIDE: "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


@contextmanager
def clusters(folder: Path) -> Iterator[dict[str, Cluster]]:
    """Serve the three clusters; each has an experiment that waits for workers."""
    with ExitStack() as stack:
        server = stack.enter_context(S3Server(folder / "s3.log"))
        server.make_bucket("lab")
        os.environ.update(server.environment, DOWNPOUR_LOCAL=str(folder / "local"))
        (folder / "token").write_text("t" * 32)
        (folder / "token").chmod(0o600)
        token = "--token-file", str(folder / "token")
        made: dict[str, Cluster] = {}
        for name, shared, port, more in (
            ("first", str(folder / "a"), "9090", ()),
            ("folder", str(folder / "b"), "0", ()),
            ("bucket", "s3://lab/place", "0", token),
        ):
            manager = Process("manager", "--shared", shared, "--port", port, *more)
            stack.callback(manager.kill)
            address = manager.says(r"^manager at (\S+),")[1]
            words = "submit", "--shards", "1", "--name", f"of-{name}", "--manager", address, *more
            done = _run(*words, environment={}, folder=folder)
            if done.returncode != 0:
                raise RuntimeError(done.stderr)
            experiment = done.stdout.split()[0]
            credentials = Credentials(token="t" * 32) if more else Credentials()
            made[name] = Cluster(name, address, shared, experiment, credentials)
        yield made


def situations(known: Mapping[str, Cluster], folder: Path) -> list[Given]:
    """Return what a user may have named."""
    first, other, bucket = known["first"], known["folder"], known["bucket"]
    at = {"DOWNPOUR_MANAGER": other.address}
    of = {"DOWNPOUR_SHARED": other.shared}
    there = {"DOWNPOUR_SHARED": bucket.shared, "DOWNPOUR_TOKEN_FILE": str(folder / "token")}
    wrong = {"DOWNPOUR_MANAGER": first.address, "DOWNPOUR_SHARED": other.shared}
    names = first.address, other.shared
    return [
        Given("nothing", {}, "first"),
        Given("an address", at, "folder"),
        Given("a folder", of, "folder"),
        Given("both of one cluster", at | of, "folder"),
        Given("both of two clusters", wrong, "", names),
        Given("a bucket and its token", there, "bucket"),
        Given("a bucket and another's address", wrong | there, "", (first.address, bucket.shared)),
    ]


def commands(meant: Cluster) -> dict[str, tuple[str, ...]]:
    """Return each command that calls a manager, as a user types it; `cancel` comes last."""
    spec = "--shards", "1", "--epochs", "1", "--name", "made"
    return {
        "submit": ("submit", *spec, "--connect-seconds", "0"),
        "status": ("status", meant.experiment),
        "list": ("list",),
        "results": ("results", meant.experiment),
        "ping": ("ping",),
        "Python": (),
        "worker": ("worker", "--name", "w", "--connect-seconds", "0"),
        "cancel": ("cancel", meant.experiment),
        "watch": ("watch", meant.experiment, "--connect-seconds", "0"),
    }


def reached(
    words: tuple[str, ...], given: Given, known: Mapping[str, Cluster], folder: Path
) -> str:
    """Return the name of the cluster that a command has reached; "refused", or what is wrong."""
    if words[:1] == ("worker",):
        return _joined(words, given, known, folder)
    done = _run(*words, environment=given.environment, folder=folder)
    if done.returncode != 0:
        return _refused(done.stderr if words else done.stderr.splitlines()[-1], given)
    if words[:1] == ("submit",):
        made = done.stdout.split()[0]
        return "+".join(n for n, one in known.items() if made in one.experiments())
    if words[:1] in {("cancel",), ("results",)}:  # it knows the experiment, or it would have failed
        return given.meant or "folder"
    said = done.stdout + done.stderr
    return "+".join(
        name
        for name, one in known.items()
        if one.experiment in said or f":{one.address.rpartition(':')[2]}," in said
    )


def table() -> str:
    """Return the matrix as Markdown: a row a command, a column a situation."""
    with tempfile.TemporaryDirectory() as name, clusters(Path(name)) as known:
        folder = Path(name)
        given = situations(known, folder)
        rows: dict[str, list[str]] = {}
        for one in given:
            for called, words in commands(known[one.meant or "folder"]).items():
                rows.setdefault(called, []).append(reached(words, one, known, folder))
    head = ["command", *(one.words for one in given)]
    lines = [head, ["---"] * len(head), *([f"`{called}`", *row] for called, row in rows.items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _refused(said: str, given: Given) -> str:
    """Say whether a refusal is the right one: one line that names what does not fit."""
    if said.strip().endswith("shared_dir: no such folder"):
        return "needs a folder"
    right = given.says and all(name in said for name in given.says)
    return "refused" if right and len(said.strip().splitlines()) == 1 else said.strip()


def _joined(
    words: tuple[str, ...], given: Given, known: Mapping[str, Cluster], folder: Path
) -> str:
    """Start a worker, and see whose status names it; then it leaves."""
    log = folder / "worker.log"
    with log.open("w") as errors:
        worker = forked.Forked(words, _environment(given.environment), folder, {2: errors.fileno()})
    try:
        while worker.poll() is None and not re.search("^worker at", log.read_text(), re.MULTILINE):
            time.sleep(0.1)
        if worker.returncode is not None:
            return _refused(log.read_text(), given)
        return "+".join(n for n, one in known.items() if "w" in one.workers())
    finally:
        worker.terminate()
        worker.wait()


def _run(
    *words: str, environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    if words:
        return forked.run(words, _environment(environment), folder)
    return subprocess.run(
        [sys.executable, "-c", PYTHON],
        cwd=folder,
        env=_environment(environment),
        capture_output=True,
        text=True,
        check=False,
    )


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join(
        [str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    )
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **more}


if __name__ == "__main__":
    sys.stdout.write(table() if INSIDE in os.environ else matrix())
